//! Man pages, completions, documents, and what an installation begins with, of a release, as they are installed below a prefix
//! such as /usr/local.

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

/// Of the checkout, by the same paths below [`CHECKOUT`]: so links between documents hold, and paths in them.
const SHIPPED: [&str; 5] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT", "agent/deploy", "agent/docs"];
/// Where those are installed, below the prefix.
const CHECKOUT: &str = "share/plimsoll";

/// An archive of all that the program `command_line` writes, which is that example, and of what the checkout at `root` has for
/// installations.
pub(crate) fn archive(root: &Path, command_line: &Path) -> anyhow::Result<Vec<u8>> {
    let mut files = Vec::new();
    for path in SHIPPED {
        add(root, path, &mut files)?;
    }
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

/// Adds a file of the checkout at `root`, or all in a folder.
fn add(root: &Path, path: &str, files: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    let from = root.join(path);
    if !from.is_dir() {
        let data = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        files.push((format!("{CHECKOUT}/{path}"), data));
        return Ok(());
    }
    for entry in fs::read_dir(&from).with_context(|| format!("cannot list {}", from.display()))? {
        let name = entry?.file_name();
        let name = name.to_str().with_context(|| format!("{} in {path} is no name for a release", name.display()))?;
        // What editors leave.
        if !name.starts_with('.') && !name.ends_with('~') {
            add(root, &format!("{path}/{name}"), files)?;
        }
    }
    Ok(())
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
        let root = run::root();
        let made = archive(root, &program).expect("an archive");
        assert_eq!(made, archive(root, &program).expect("an archive"));
        fs::write(&program, script.replace("echo b", "echo c")).expect("writable");
        assert_ne!(made, archive(root, &program).expect("an archive"));
        archive(folder.path(), &program).expect_err("there is no checkout");
        fs::write(&program, "#!/bin/sh\nexit 3\n").expect("writable");
        archive(root, &program).expect_err("it fails");
    }

    /// What is shipped of this checkout, by its paths there.
    fn shipped() -> Vec<(String, String)> {
        let mut files = Vec::new();
        for path in SHIPPED {
            add(run::root(), path, &mut files).expect("it is there");
        }
        let below = |path: &str| path.strip_prefix(CHECKOUT).and_then(|path| path.strip_prefix('/')).map(str::to_owned);
        let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
        files.iter().map(|(path, data)| (below(path).expect("below it"), text(data))).collect()
    }

    #[test]
    fn a_machine_and_a_cluster_can_be_installed_from_what_is_shipped() {
        let files = shipped();
        let has = |path: &str| files.iter().any(|(it, _)| it == path);
        for path in [
            "agent/deploy/plimsoll.service",
            "agent/deploy/plimsoll.yaml",
            "agent/deploy/plimsoll.schema.json",
            "agent/deploy/prometheus/rules.yaml",
            "agent/docs/install.md",
        ] {
            assert!(has(path), "{path}");
        }
        let mut resources = 0;
        for (path, text) in files.iter().filter(|(path, _)| path.ends_with("/kustomization.yaml")) {
            let (folder, _) = path.rsplit_once('/').expect("it is in one");
            for file in text.lines().filter_map(|line| line.trim().strip_prefix("- ")?.strip_suffix(".yaml")) {
                resources += 1;
                assert!(has(&format!("{folder}/{file}.yaml")), "{path} names {file}.yaml");
            }
        }
        assert!(resources > 10, "{resources}");
    }

    #[test]
    fn installation_names_files_that_are_shipped() {
        let files = shipped();
        let (_, install) = files.iter().find(|(path, _)| path == "agent/docs/install.md").expect("it is shipped");
        let named = install.split(['`', ' ', '\n', '=']).filter_map(|word| word.split_once("share/plimsoll/"));
        let named: Vec<&str> = named.map(|(_, path)| path.trim_end_matches(['.', ',', ':'])).collect();
        assert!(named.len() > 3, "{named:?}");
        for path in named {
            let is_shipped = files.iter().any(|(it, _)| it == path || it.starts_with(&format!("{path}/")));
            assert!(is_shipped, "{path} is not shipped");
        }
    }
}
