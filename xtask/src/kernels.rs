//! Debian's kernels, through apt with its signature check, unpacked once into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::run;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The packages a kernel may be split into; those that a suite does not have are left out.
const PARTS: [&str; 4] = ["linux-image", "linux-binary", "linux-modules", "linux-base"];
/// A suite and the version of its kernel.
pub(crate) const SUITES: [(&str, &str); 3] = [("bookworm", "6.1"), ("trixie", "6.12"), ("forky", "7.2")];

/// An unpacked kernel.
pub(crate) struct Kernel {
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// Its unpacked packages.
    pub(crate) unpacked: PathBuf,
}

/// The kernel of a suite, named by the suite or by its version.
pub(crate) fn get(wanted: &str) -> anyhow::Result<Kernel> {
    let Some((suite, _)) = SUITES.into_iter().find(|(suite, version)| *suite == wanted || *version == wanted) else {
        bail!("no kernel {wanted}: choose a suite or a version of {SUITES:?}");
    };
    let place = run::cache()?.join("kernels").join(suite);
    let unpacked = place.join("unpacked");
    if !place.join("complete").is_file() {
        download(suite, &place, &unpacked)?;
        fs::write(place.join("complete"), "")?;
    }
    let image = find(&unpacked, "vmlinuz").with_context(|| format!("no vmlinuz below {}", unpacked.display()))?;
    Ok(Kernel { image, unpacked })
}

fn download(suite: &str, place: &Path, unpacked: &Path) -> anyhow::Result<()> {
    println!("getting the kernel of {suite}");
    ensure!(Path::new(KEYRING).is_file(), "{KEYRING} is missing: install debian-archive-keyring");
    for folder in ["lists/partial", "archives/partial", "packages", "unpacked"] {
        fs::create_dir_all(place.join(folder))?;
    }
    let list = place.join("sources.list");
    fs::write(&list, format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror()?))?;
    let apt = |program: &str| {
        let mut command = Command::new(program);
        for (key, value) in [
            ("Dir::Etc::sourcelist", list.clone()),
            ("Dir::Etc::sourceparts", "-".into()),
            ("Dir::State::lists", place.join("lists")),
            ("Dir::Cache", place.into()),
            ("Acquire::Languages", "none".into()),
            ("APT::Sandbox::User", "root".into()),
        ] {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        command.current_dir(place.join("packages"));
        command
    };
    run::shown(apt("apt-get").args(["update", "-q"]))?;
    let about = run::text(apt("apt-cache").args(["show", "linux-image-amd64"]))?;
    let version = about
        .lines()
        .filter(|line| line.starts_with("Depends:"))
        .find_map(|line| line.split("linux-image-").nth(1)?.split([' ', ',', '(']).next())
        .with_context(|| format!("linux-image-amd64 of {suite} names no kernel"))?;
    for part in PARTS {
        let package = format!("{part}-{version}");
        if run::text(apt("apt-cache").args(["show", &package])).is_ok() {
            run::shown(apt("apt-get").args(["download", "-q", &package]))?;
        }
    }
    for package in fs::read_dir(place.join("packages"))? {
        run::shown(Command::new("dpkg").arg("-x").arg(package?.path()).arg(unpacked))?;
    }
    Ok(())
}

/// `PLIMSOLL_DEBIAN_MIRROR`, else the mirror that this machine's own apt uses for Debian. Whichever it is, apt checks
/// Debian's signature.
fn mirror() -> anyhow::Result<String> {
    if let Some(mirror) = std::env::var("PLIMSOLL_DEBIAN_MIRROR").ok().filter(|mirror| !mirror.is_empty()) {
        return Ok(mirror);
    }
    // Other files in sources.list.d are of other repositories, some of which end in "/debian", too.
    ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .find_map(|text| mirror_in(&text))
        .context("this machine's apt names no Debian mirror: set PLIMSOLL_DEBIAN_MIRROR to the address of one")
}

/// The first address of a whole Debian archive in apt's list of sources, in either of its forms.
fn mirror_in(sources: &str) -> Option<String> {
    let lines = sources.lines().filter_map(|line| line.strip_prefix("URIs:").or_else(|| line.strip_prefix("deb ")));
    lines
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_end_matches('/'))
        .find(|word| word.starts_with("http") && word.ends_with("/debian"))
        .map(str::to_owned)
}

/// The first file below `folder` whose name begins with `prefix`.
fn find(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let mut below = Vec::new();
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let kind = entry.file_type().ok()?;
        if kind.is_dir() {
            below.push(entry.path());
        } else if kind.is_file() && entry.file_name().to_string_lossy().starts_with(prefix) {
            return Some(entry.path());
        }
    }
    below.iter().find_map(|folder| find(folder, prefix))
}

#[cfg(test)]
mod tests {
    use super::mirror_in;

    #[test]
    fn only_a_debian_archive_is_a_mirror() {
        for (sources, expected) in [
            ("Types: deb\nURIs: http://mirror.example/debian/\nSuites: trixie\n", Some("http://mirror.example/debian")),
            (
                "deb [signed-by=/k.gpg] https://mirror.example/debian trixie main\n",
                Some("https://mirror.example/debian"),
            ),
            ("deb http://mirror.example/ubuntu noble main\n", None),
            ("URIs: http://mirror.example/debian-security\n", None),
            ("# deb http://mirror.example/debian sid main\n", None),
        ] {
            assert_eq!(mirror_in(sources).as_deref(), expected, "{sources}");
        }
    }
}
