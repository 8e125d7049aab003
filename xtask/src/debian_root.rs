//! Roots of Debian with systemd for virtual machines: an ext4 image of a suite with the modules of its kernel, made once
//! into the cache by mmdebstrap, through apt with its signature check. No machine writes to it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::image::Files;
use crate::kernels::{self, KEYRING, Kernel};
use crate::qemu::Processor;
use crate::{lock, run};

/// What is in each root, beside what Debian itself requires and apt.
const PACKAGES: [&str; 6] = ["dbus", "kmod", "libpam-systemd", "systemd", "systemd-sysv", "udev"];
/// What makes an image of the tree that mmdebstrap left.
const SCRIPT: &str = include_str!("debian_root.sh");
/// The size of the file system. The image is sparse.
const SIZE: &str = "4G";
/// What has to be free to make one: the tree, its packages and the image.
const NEEDED_BYTES: u64 = 3 << 30;
/// The agent's unit, its configuration, and where a package would put them.
pub(crate) const INSTALLED: [(&str, &str); 2] = [
    ("usr/lib/systemd/system/plimsoll.service", include_str!("../../agent/deploy/plimsoll.service")),
    ("etc/plimsoll/plimsoll.yaml", include_str!("../../agent/deploy/plimsoll.yaml")),
];
/// The unit that runs the machine's command, and is all that is started beside what every system needs.
const COMMAND: &str = "machine-command.service";
/// What a machine that lives for one command does without. The kernel itself makes the nodes of its devices, and the
/// modules of the disk are loaded; to find all other devices takes an emulated machine long.
const MASKED: [&str; 8] = [
    "kmod-static-nodes.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
    "systemd-journal-flush.service",
    "systemd-random-seed.service",
    "systemd-udev-load-credentials.service",
    "systemd-udev-trigger.service",
    "timers.target",
];

/// Names of packages as the command line has them.
pub(crate) fn names(packages: &[&str]) -> Vec<String> {
    packages.iter().map(|&package| package.to_owned()).collect()
}

/// Whether the root for this kernel with these additional packages is in the cache, whole.
pub(crate) fn is_there(version: &str, packages: &[String]) -> anyhow::Result<bool> {
    ensure!(Processor::of(version) == Processor::X86_64, "a root of Debian is made for x86-64 only, not {version}");
    Ok(kernels::is_there(version)? && Root::of(version, packages)?.is_there())
}

/// The image of the root for the kernel that is named by its version or its suite, with these packages besides.
pub(crate) fn get(wanted: &str, packages: &[String]) -> anyhow::Result<PathBuf> {
    let root = Root::of(kernels::version(wanted)?, packages)?;
    lock::once(&root.place, || Ok(root.is_there()), || root.make())?;
    Ok(root.image())
}

/// The kernel's parameters for a machine with such a root.
pub(crate) fn parameters() -> String {
    let masked: String = MASKED.map(|unit| format!(" systemd.mask={unit}")).concat();
    format!(" plimsoll.init=/sbin/init systemd.unit={COMMAND} systemd.show_status=0{masked}")
}

/// Adds what the root needs of this checkout: the agent's unit and configuration, and the unit of the command.
pub(crate) fn add_units(files: &mut Files, shell: bool) {
    for (place, text) in INSTALLED {
        files.text(place, text.into());
    }
    files.text(&format!("etc/systemd/system/{COMMAND}"), command_unit(shell));
}

/// A slice of its own keeps the command out of all that the agent may evict. Without an exit code the machine's end is
/// an error, so a unit that fails has to end it.
fn command_unit(shell: bool) -> String {
    let input = if shell { "tty-force" } else { "null" };
    format!(
        "[Unit]\nDescription=The command of this machine\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n\
         JobTimeoutSec=5min\nJobTimeoutAction=poweroff-force\nFailureAction=poweroff-force\n\n\
         [Service]\nExecStart=/init\nSlice=command.slice\nStandardInput={input}\nStandardOutput=tty\n\
         StandardError=tty\nTTYPath=/dev/console\nTasksMax=infinity\nLimitMEMLOCK=infinity\n"
    )
}

/// One root, whether or not it was made yet.
struct Root {
    kernel: Kernel,
    suite: &'static str,
    packages: Vec<String>,
    place: PathBuf,
}

impl Root {
    fn of(version: &str, more: &[String]) -> anyhow::Result<Self> {
        let suite = kernels::suite(version);
        let place = run::cache()?.join("roots").join(name(suite, more)?);
        let packages = PACKAGES.into_iter().map(str::to_owned).chain(more.iter().cloned()).collect();
        Ok(Self { kernel: kernels::get(version)?, suite, packages, place })
    }

    fn image(&self) -> PathBuf {
        self.place.join("root.ext4")
    }

    /// All that decides what is in it, but for the versions that the mirror has on that day.
    fn recipe(&self) -> anyhow::Result<String> {
        let modules = self.kernel.modules()?;
        let release = modules.file_name().unwrap_or_default().display().to_string();
        Ok(format!("suite {}\nkernel {release}\npackages {}\n{SCRIPT}", self.suite, self.packages.join(" ")))
    }

    /// The recipe is written last.
    fn is_there(&self) -> bool {
        let made = fs::read_to_string(self.place.join("recipe")).ok();
        made.is_some() && made == self.recipe().ok() && self.image().is_file()
    }

    fn make(&self) -> anyhow::Result<()> {
        let mirror = kernels::mirror()?;
        println!("making a root of Debian {} with {}, from {mirror}", self.suite, self.packages.join(", "));
        ensure!(Path::new(KEYRING).is_file(), "{KEYRING} is missing: install debian-archive-keyring");
        // Of a run that was stopped, or from another recipe.
        remove(&self.place)?;
        fs::create_dir_all(&self.place).with_context(|| format!("cannot make {}", self.place.display()))?;
        ensure_free(&self.place)?;
        let tree = self.place.join("tree");
        let from = format!("deb [signed-by={KEYRING}] {mirror} {} main", self.suite);
        let include = format!("--include={}", self.packages.join(","));
        let mut mmdebstrap = run::as_root("mmdebstrap");
        mmdebstrap.args(["--mode=root", "--variant=minbase", "--architectures=amd64", "--format=directory", &include]);
        // Up to bookworm, /bin and /lib become links into /usr only where they are before the first package.
        mmdebstrap.arg("--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr");
        // A suite that is no release yet is signed for a week, and a mirror may be behind. The signature is checked all the same.
        mmdebstrap.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
        mmdebstrap.arg(self.suite).arg(&tree).arg(from);
        run::shown(&mut mmdebstrap).with_context(|| format!("no root of Debian {} from {mirror}", self.suite))?;
        println!("making an image of it");
        let script = self.place.join("script");
        fs::write(&script, SCRIPT)?;
        let mut image = run::as_root("sh");
        image.arg(&script).arg(&tree).arg(self.kernel.modules()?).arg(self.image());
        image.arg(self.place.join("versions")).arg(SIZE);
        run::shown(&mut image).context("no image of the root")?;
        fs::write(self.place.join("recipe"), self.recipe()?)?;
        println!("{} has it; `versions` beside it names each package", self.image().display());
        Ok(())
    }
}

/// The name of a root's folder: the suite and the additional packages.
fn name(suite: &str, packages: &[String]) -> anyhow::Result<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-.:=~".contains(c);
    for package in packages {
        let starts = package.starts_with(|c: char| c.is_ascii_alphanumeric());
        ensure!(starts && package.chars().all(is_plain), "{package:?} is no name of a package of Debian");
    }
    Ok([suite].into_iter().chain(packages.iter().map(String::as_str)).collect::<Vec<_>>().join(","))
}

/// Removes a folder in which files may belong to root.
fn remove(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            run::shown(run::as_root("rm").arg("-rf").arg(folder))
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot clear {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// An error where the file system of this folder is too full.
fn ensure_free(folder: &Path) -> anyhow::Result<()> {
    let said = run::text(Command::new("df").args(["--block-size=1", "--output=avail"]).arg(folder))?;
    let free: u64 = said.lines().last().and_then(|line| line.trim().parse().ok()).context("df prints no number")?;
    ensure!(
        free >= NEEDED_BYTES,
        "{} MiB are free below {}, and {} are needed for a moment: make room, or set PLIMSOLL_CACHE",
        free >> 20,
        folder.display(),
        NEEDED_BYTES >> 20
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{COMMAND, command_unit, is_there, name, names, parameters};

    #[test]
    fn another_processor_is_refused_before_anything_is_fetched() {
        let error = is_there("6.12-arm64", &[]).expect_err("it cannot be made here").to_string();
        assert!(error.contains("x86-64 only, not 6.12-arm64"), "{error}");
    }

    #[test]
    fn each_list_of_packages_has_a_folder_of_its_own() {
        let named = |packages: &[&str]| name("trixie", &names(packages));
        assert_eq!(named(&[]).expect("none"), "trixie");
        assert_eq!(named(&["runc", "g++=4:14.2.0-1~x"]).expect("two"), "trixie,runc,g++=4:14.2.0-1~x");
        for package in ["../x", "", "a,b", "-o", "a b", "a/b"] {
            assert!(named(&[package]).is_err(), "{package}");
        }
    }

    #[test]
    fn only_a_shell_reads_from_the_terminal() {
        assert!(command_unit(true).contains("\nStandardInput=tty-force\n"));
        assert!(command_unit(false).contains("\nStandardInput=null\n"));
        assert!(parameters().contains(&format!(" systemd.unit={COMMAND} ")));
    }
}
