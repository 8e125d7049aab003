//! Debian's kernels, through apt with its signature check, unpacked once into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::qemu::Processor;
use crate::{lock, run};

/// The keys of Debian's archive; Ubuntu's package of the same name has them at the same place.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The packages a kernel may be split into; those that a suite does not have are left out.
const PARTS: [&str; 4] = ["linux-image", "linux-binary", "linux-modules", "linux-base"];
/// Debian's own program to install Debian, which names a mirror.
pub(crate) const DEBOOTSTRAP: &str = "/usr/sbin/debootstrap";
/// A suite and the version of its kernel: those that every change is tested on.
pub(crate) const SUITES: [(&str, &str); 3] = [("bookworm", "6.1"), ("trixie", "6.12"), ("forky", "7.2")];
/// Those that long runs boot besides. What follows the version is Debian's name of the flavour, amd64 where none does.
pub(crate) const MORE: [(&str, &str); 3] =
    [("bullseye", "5.10"), ("trixie", "6.12-arm64"), ("trixie", "6.12-arm64-16k")];

/// The kernels that every change is tested on, by version.
pub(crate) fn of_gate() -> [&'static str; SUITES.len()] {
    SUITES.map(|(_, kernel)| kernel)
}

/// An unpacked kernel.
pub(crate) struct Kernel {
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// Its unpacked packages.
    pub(crate) unpacked: PathBuf,
    /// What it runs on.
    pub(crate) processor: Processor,
}

impl Kernel {
    /// Its modules: a folder that is called as its release.
    pub(crate) fn modules(&self) -> anyhow::Result<PathBuf> {
        let places = ["usr/lib/modules", "lib/modules"].map(|place| self.unpacked.join(place));
        let mut found = places.iter().filter_map(|place| fs::read_dir(place).ok()?.flatten().next());
        found.next().map(|entry| entry.path()).with_context(|| format!("no modules below {}", self.unpacked.display()))
    }

    /// A static busybox for its processor.
    pub(crate) fn busybox(&self) -> PathBuf {
        match self.processor {
            Processor::X86_64 => "/bin/busybox".into(),
            Processor::Aarch64 => self.unpacked.join("usr/bin/busybox"),
        }
    }
}

/// The version, as above, of the kernel that is named by it or by the suite whose default kernel it is.
pub(crate) fn version(wanted: &str) -> anyhow::Result<&'static str> {
    let mut all = SUITES.into_iter().chain(MORE);
    let found = all.find(|(suite, version)| *suite == wanted || *version == wanted);
    found.map(|(_, version)| version).with_context(|| {
        format!("no kernel {wanted}: choose a suite or a version of {SUITES:?}, or a version of {MORE:?}")
    })
}

/// The suite that packages the kernel of this version.
pub(crate) fn suite(version: &str) -> &'static str {
    let found = SUITES.iter().chain(&MORE).find(|(_, known)| *known == version);
    found.expect("a version that was looked up before").0
}

/// The flavour of the kernel of this version.
fn flavour(version: &str) -> &str {
    version.split_once('-').map_or("amd64", |(_, flavour)| flavour)
}

/// Whether the kernel of this version is in the cache, whole.
pub(crate) fn is_there(version: &str) -> anyhow::Result<bool> {
    Ok(place(version)?.join("complete").is_file())
}

fn place(version: &str) -> anyhow::Result<PathBuf> {
    let (suite, flavour) = (suite(version), flavour(version));
    let folder = if flavour == "amd64" { suite.to_owned() } else { format!("{suite}-{flavour}") };
    Ok(run::cache()?.join("kernels").join(folder))
}

/// The kernel that is named by its version or its suite.
pub(crate) fn get(wanted: &str) -> anyhow::Result<Kernel> {
    let version = version(wanted)?;
    let place = place(version)?;
    let unpacked = place.join("unpacked");
    lock::once(
        &place,
        || is_there(version),
        || {
            download(version, &place, &unpacked)?;
            let complete = place.join("complete");
            fs::write(&complete, "").with_context(|| format!("cannot write {}", complete.display()))
        },
    )?;
    let image = find(&unpacked, "vmlinuz").with_context(|| format!("no vmlinuz below {}", unpacked.display()))?;
    Ok(Kernel { image, unpacked, processor: Processor::of(version) })
}

fn download(version: &str, place: &Path, unpacked: &Path) -> anyhow::Result<()> {
    let (suite, flavour, processor) = (suite(version), flavour(version), Processor::of(version));
    println!("getting the kernel of {suite} for {flavour}");
    ensure!(Path::new(KEYRING).is_file(), "{KEYRING} is missing: install debian-archive-keyring");
    // Of a download that was stopped, another version of the kernel may be there.
    for folder in ["packages", "unpacked"] {
        match fs::remove_dir_all(place.join(folder)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot clear {}", place.display()));
            }
            _ => {}
        }
    }
    for folder in ["lists/partial", "archives/partial", "packages", "unpacked"] {
        fs::create_dir_all(place.join(folder))?;
    }
    let list = place.join("sources.list");
    fs::write(&list, format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror()?))?;
    let status = place.join("status");
    fs::write(&status, "").with_context(|| format!("cannot write {}", status.display()))?;
    let apt = |program: &str| {
        let mut command = Command::new(program);
        for (key, value) in [
            ("Dir::Etc::sourcelist", list.clone()),
            ("Dir::Etc::sourceparts", "-".into()),
            ("Dir::Etc::preferences", "-".into()),
            ("Dir::Etc::preferencesparts", "-".into()),
            // What this machine has installed, and prefers, is no package of the suite.
            ("Dir::State::status", status.clone()),
            ("Dir::State::lists", place.join("lists")),
            ("Dir::Cache", place.into()),
            ("Acquire::Languages", "none".into()),
            ("APT::Architecture", processor.debian().into()),
            ("APT::Architectures", processor.debian().into()),
            ("APT::Sandbox::User", "root".into()),
        ] {
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        command.current_dir(place.join("packages"));
        command
    };
    run::shown(apt("apt-get").args(["update", "-q"]))?;
    let newest = format!("linux-image-{flavour}");
    let about = run::text(apt("apt-cache").args(["show", &newest]))?;
    let release = about
        .lines()
        .filter(|line| line.starts_with("Depends:"))
        .find_map(|line| line.split("linux-image-").nth(1)?.split([' ', ',', '(']).next())
        .with_context(|| format!("{newest} of {suite} names no kernel"))?;
    let mut packages = PARTS.map(|part| format!("{part}-{release}")).to_vec();
    packages.retain(|package| run::text(apt("apt-cache").args(["show", package])).is_ok());
    if processor == Processor::Aarch64 {
        packages.push("busybox-static".into());
    }
    run::shown(apt("apt-get").args(["download", "-q"]).args(&packages))?;
    for package in fs::read_dir(place.join("packages"))? {
        run::shown(Command::new("dpkg").arg("-x").arg(package?.path()).arg(unpacked))?;
    }
    Ok(())
}

/// `PLIMSOLL_DEBIAN_MIRROR`, else the mirror that this machine's own apt uses for Debian, else the one that Debian's
/// installing program uses where it is given none. Whichever it is, apt checks Debian's signature.
pub(crate) fn mirror() -> anyhow::Result<String> {
    mirror_of_apt()
        .or_else(|| mirror_of_debootstrap(&fs::read_to_string(DEBOOTSTRAP).ok()?))
        .context("neither apt nor debootstrap names a Debian mirror: set PLIMSOLL_DEBIAN_MIRROR to the address of one")
}

/// Whether a mirror is known without debootstrap.
pub(crate) fn apt_names_a_mirror() -> bool {
    mirror_of_apt().is_some()
}

fn mirror_of_apt() -> Option<String> {
    if let Some(mirror) = std::env::var("PLIMSOLL_DEBIAN_MIRROR").ok().filter(|mirror| !mirror.is_empty()) {
        return Some(mirror);
    }
    // Other files in sources.list.d are of other repositories.
    ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .find_map(|text| mirror_in(&text, &|path| fs::read_to_string(path).ok()))
}

/// Suites of Debian alone; those with security updates have other names.
const DEBIAN: [&str; 9] = ["bullseye", "bookworm", "trixie", "forky", "duke", "sid", "stable", "testing", "unstable"];

/// The first address of a whole Debian archive in apt's list of sources, in either of its forms. `read` gives the
/// content of a list of mirrors.
fn mirror_in(sources: &str, read: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let entries = lines_of_one(sources).chain(stanzas(sources));
    let whole = entries.filter(|Entry { suites, components, .. }| {
        components.contains(&"main") && suites.iter().any(|suite| DEBIAN.contains(suite))
    });
    whole.flat_map(|entry| entry.addresses).find_map(|address| {
        let address = match address.strip_prefix("mirror+file:") {
            // The first of several; what follows an address on its line are its priority and its kinds.
            Some(path) => {
                let list = read(&format!("/{}", path.trim_start_matches('/')))?;
                list.lines().find(|line| line.starts_with("http"))?.split_whitespace().next()?.to_owned()
            }
            None => address.to_owned(),
        };
        address.starts_with("http").then(|| address.trim_end_matches('/').to_owned())
    })
}

/// One source of packages, as apt is configured with it.
struct Entry<'a> {
    addresses: Vec<&'a str>,
    suites: Vec<&'a str>,
    components: Vec<&'a str>,
}

/// `deb [options] ADDRESS SUITE COMPONENT...`
fn lines_of_one(sources: &str) -> impl Iterator<Item = Entry<'_>> {
    sources.lines().filter_map(|line| {
        let rest = line.strip_prefix("deb ")?.trim_start();
        let rest = if rest.starts_with('[') { rest.split_once(']')?.1 } else { rest };
        let mut words = rest.split_whitespace();
        Some(Entry { addresses: vec![words.next()?], suites: vec![words.next()?], components: words.collect() })
    })
}

/// Fields with a name, an entry in each group of lines. A line that begins with a blank goes on with the field before.
fn stanzas(sources: &str) -> impl Iterator<Item = Entry<'_>> {
    let lines: Vec<&str> = sources.lines().collect();
    let groups: Vec<Vec<&str>> = lines.split(|line| line.trim().is_empty()).map(<[&str]>::to_vec).collect();
    groups.into_iter().filter_map(|stanza| {
        let mut entry = Entry { addresses: Vec::new(), suites: Vec::new(), components: Vec::new() };
        let (mut types, mut enabled) = (Vec::new(), Vec::new());
        let mut field = "";
        for line in stanza.into_iter().filter(|line| !line.starts_with('#')) {
            let values = match line.split_once(':') {
                Some((name, values)) if !line.starts_with([' ', '\t']) => {
                    field = name;
                    values
                }
                _ => line,
            };
            let into = match field {
                "URIs" => &mut entry.addresses,
                "Suites" => &mut entry.suites,
                "Components" => &mut entry.components,
                "Types" => &mut types,
                "Enabled" => &mut enabled,
                _ => continue,
            };
            into.extend(values.split_whitespace());
        }
        // Switched off, as apt reads it, or of sources only.
        let off = enabled.iter().any(|word| ["no", "false", "without", "off", "disable", "0"].contains(word));
        (types.contains(&"deb") && !off).then_some(entry)
    })
}

/// What the shell program sets as its default.
fn mirror_of_debootstrap(program: &str) -> Option<String> {
    let value = program.lines().find_map(|line| line.trim().strip_prefix("DEF_MIRROR="))?;
    let address = value.trim_matches(['"', '\'']).trim_end_matches('/');
    (address.starts_with("http") && address.ends_with("/debian")).then(|| address.to_owned())
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
    use super::{MORE, Processor, SUITES, flavour, mirror_in, mirror_of_debootstrap, place, version};

    #[test]
    fn each_kernel_has_a_name_and_a_place_of_its_own() {
        for (suite, kernel) in SUITES {
            assert_eq!((version(suite).expect("a suite"), flavour(kernel)), (kernel, "amd64"));
        }
        let all: Vec<_> = SUITES.into_iter().chain(MORE).map(|(_, kernel)| kernel).collect();
        let places: std::collections::BTreeSet<_> = all.iter().map(|kernel| place(kernel).expect("a cache")).collect();
        assert_eq!(places.len(), all.len());
        assert!(version("5.15").is_err());
        for (kernel, processor, debians) in [
            ("5.10", Processor::X86_64, "amd64"),
            ("6.12-arm64", Processor::Aarch64, "arm64"),
            ("6.12-arm64-16k", Processor::Aarch64, "arm64-16k"),
        ] {
            assert_eq!(version(kernel).expect("one of them"), kernel);
            assert_eq!((Processor::of(kernel), flavour(kernel)), (processor, debians));
        }
    }

    #[test]
    fn only_a_whole_debian_archive_is_a_mirror() {
        let stanza = |address: &str, suites: &str, components: &str| {
            format!(
                "Types: deb\n# URIs: http://no.example.org\nURIs: {address}\nSuites: {suites}\nComponents: {components}\n"
            )
        };
        let security = stanza("http://example.org/debian-security", "bookworm-security", "main");
        for (sources, expected) in [
            (stanza("http://example.org/debian/", "trixie trixie-updates", "main"), Some("http://example.org/debian")),
            (stanza("http://example.org/any", "bookworm", "main contrib"), Some("http://example.org/any")),
            (stanza("http://example.org/ubuntu", "noble noble-updates", "main universe"), None),
            (stanza("http://example.org/tool/debian", "bookworm", "stable"), None),
            (security.clone(), None),
            (
                security + "\n" + &stanza("http://example.org/debian", "bookworm", "main"),
                Some("http://example.org/debian"),
            ),
            (
                "Types: deb deb-src\nURIs:\n http://example.org/debian\nSuites: sid\nComponents: main\n".into(),
                Some("http://example.org/debian"),
            ),
            (
                "Enabled: no\n".to_owned()
                    + &stanza("http://example.org/off", "trixie", "main")
                    + " \nTypes: deb-src\nURIs: http://example.org/source\nSuites: trixie\nComponents: main\n\n"
                    + &stanza("http://example.org/debian", "trixie", "main"),
                Some("http://example.org/debian"),
            ),
            (stanza("mirror+file:/etc/apt/mirrors/debian.list", "trixie", "main"), Some("https://example.org/first")),
            (stanza("mirror+file:///etc/apt/mirrors/debian.list", "trixie", "main"), Some("https://example.org/first")),
            (stanza("mirror+file:/etc/apt/mirrors/absent.list", "trixie", "main"), None),
            (
                "deb [arch=amd64 signed-by=/k.gpg] https://example.org/debian trixie main\n".into(),
                Some("https://example.org/debian"),
            ),
            ("deb http://example.org/ubuntu noble main\n".into(), None),
            ("# deb http://example.org/debian sid main\n".into(), None),
        ] {
            let read = |path: &str| {
                (path == "/etc/apt/mirrors/debian.list")
                    .then(|| "# not http://no.example.org\nhttps://example.org/first/\tpriority:1\nhttps://example.org/second\n".into())
            };
            assert_eq!(mirror_in(&sources, &read).as_deref(), expected, "{sources}");
        }
    }

    #[test]
    fn debootstraps_default_is_a_mirror_where_it_is_debians() {
        for (program, expected) in [
            (
                "#!/bin/sh\nDEF_MIRROR=\"http://example.org/debian\"\nDEF_HTTPS_MIRROR=x\n",
                Some("http://example.org/debian"),
            ),
            ("DEF_MIRROR='http://example.org/debian/'\n", Some("http://example.org/debian")),
            ("DEF_MIRROR=http://example.org/ubuntu\n", None),
            ("MIRROR=http://example.org/debian\n", None),
        ] {
            assert_eq!(mirror_of_debootstrap(program).as_deref(), expected, "{program}");
        }
    }
}
