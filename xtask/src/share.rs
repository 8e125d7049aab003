//! Man pages and completions of a release, as they are installed below a prefix such as /usr/local.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use plimsoll_oci::File;

use crate::run;

/// What an example of the agent's package can write.
pub(crate) const MAN: &str = "man";
/// The same of shells.
pub(crate) const COMPLETIONS: &str = "completions";

/// By how the names of generated files end, where those are installed, and whether the ending is dropped there.
const PLACES: [(&str, &str, bool); 6] = [
    (".1", "share/man/man1", false),
    (".bash", "share/bash-completion/completions", true),
    (".fish", "share/fish/vendor_completions.d", false),
    (".elv", "share/elvish/lib", false),
    (".ps1", "share/powershell/Completions", false),
    // zsh finds completions by this beginning, and they have no ending.
    ("_plimsoll", "share/zsh/site-functions", false),
];

/// An archive of all that the program `command_line` writes, which is that example.
pub(crate) fn archive(command_line: &Path) -> anyhow::Result<Vec<u8>> {
    let mut files = Vec::new();
    for what in [MAN, COMPLETIONS] {
        let directory = tempfile::tempdir()?;
        run::shown(Command::new(command_line).arg(what).arg(directory.path()))?;
        for entry in fs::read_dir(directory.path())? {
            let entry = entry?;
            let data = fs::read(entry.path()).with_context(|| format!("cannot read {}", entry.path().display()))?;
            files.push((place(&entry.file_name().to_string_lossy())?, data));
        }
    }
    // A directory is listed in no order.
    files.sort();
    let files: Vec<_> = files.iter().map(|(path, data)| File { path, data, is_program: false }).collect();
    Ok(plimsoll_oci::compressed(&files)?)
}

/// Where a generated file is installed, below the prefix.
fn place(name: &str) -> anyhow::Result<String> {
    let Some((ending, folder, is_dropped)) = PLACES.into_iter().find(|(ending, ..)| name.ends_with(ending)) else {
        bail!("it is not known where {name} is installed: give it a row in xtask/src/share.rs")
    };
    let name = if is_dropped { name.strip_suffix(ending).unwrap_or(name) } else { name };
    Ok(format!("{folder}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn each_file_is_where_its_reader_looks_for_it() {
        for (name, expected) in [
            ("plimsoll.1", "share/man/man1/plimsoll.1"),
            ("plimsoll-run.1", "share/man/man1/plimsoll-run.1"),
            ("plimsoll.bash", "share/bash-completion/completions/plimsoll"),
            ("plimsoll.fish", "share/fish/vendor_completions.d/plimsoll.fish"),
            ("_plimsoll", "share/zsh/site-functions/_plimsoll"),
            ("_plimsoll.ps1", "share/powershell/Completions/_plimsoll.ps1"),
            ("plimsoll.elv", "share/elvish/lib/plimsoll.elv"),
        ] {
            assert_eq!(place(name).expect("it has a place"), expected);
        }
        assert!(place("plimsoll.nu").expect_err("it has none").to_string().contains("plimsoll.nu"));
    }

    #[test]
    fn an_archive_has_what_the_program_writes_and_is_the_same_each_time() {
        let folder = tempfile::tempdir().expect("a directory");
        let program = folder.path().join("command_line");
        let script = "#!/bin/sh\ncase $1 in man) echo m > $2/plimsoll.1;; *) echo b > $2/plimsoll.bash;; esac\n";
        fs::write(&program, script).expect("writable");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("ours");
        let made = archive(&program).expect("an archive");
        assert_eq!(made, archive(&program).expect("an archive"));
        fs::write(&program, script.replace("echo b", "echo c")).expect("writable");
        assert_ne!(made, archive(&program).expect("an archive"));
        fs::write(&program, "#!/bin/sh\nexit 3\n").expect("writable");
        archive(&program).expect_err("it fails");
    }
}
