//! `cargo xtask vm`: boots a Debian kernel with a program of ours as PID 1, runs one command in it, and ends with the
//! command's exit code. QEMU without hardware virtualisation: the same on every machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::{build_ebpf, install, kernels, run};

const TARGET: &str = "x86_64-unknown-linux-musl";

/// What to boot and what to run in it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Which kernel: a Debian suite (bookworm, trixie, forky) or its version (6.1, 6.12, 7.2).
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Memory of the machine, as QEMU writes it.
    #[arg(long, default_value = "1G")]
    memory: String,
    /// Virtual processors.
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Time follows instructions, on one processor: two runs agree however busy the host is.
    #[arg(long)]
    icount: bool,
    /// End the machine after so many seconds.
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// The command and its arguments; /bin/plimsoll-guest and /bin/busybox are there.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Builds what goes into the machine, boots it and returns the command's exit code.
pub(crate) fn run(mode: install::Mode, arguments: &Arguments) -> anyhow::Result<i32> {
    let kernel = kernels::get(&arguments.kernel)?;
    build_ebpf::run(mode)?;
    run::shown(
        Command::new("cargo")
            .args([
                "build",
                "--release",
                "--locked",
                "--target",
                TARGET,
                "-p",
                "plimsoll-init",
                "-p",
                "plimsoll-guest",
                "-p",
                "plimsoll",
            ])
            .args(["--features", "plimsoll/strict"])
            .current_dir(run::root()),
    )?;
    let place = run::root().join("target/vm").join(std::process::id().to_string());
    fs::create_dir_all(&place)?;
    let code = boot(arguments, &kernel.image, &place);
    fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    code
}

fn boot(arguments: &Arguments, image: &Path, place: &Path) -> anyhow::Result<i32> {
    let initramfs = place.join("initramfs");
    fs::write(&initramfs, archive(&arguments.command)?)?;
    let result = place.join("result");
    let mut qemu = Command::new("qemu-system-x86_64");
    // Without ERMS and FSRM the kernel clears pages with plain stores, which the emulator does 16 times faster.
    qemu.args(["-cpu", "max,la57=off,erms=off,fsrm=off", "-nographic", "-no-reboot", "-m", &arguments.memory]);
    if arguments.icount {
        qemu.args(["-accel", "tcg,thread=single", "-icount", "shift=1,sleep=off", "-smp", "1"]);
    } else {
        qemu.args(["-accel", "tcg,thread=multi", "-smp", &arguments.cpus.to_string()]);
    }
    qemu.arg("-kernel").arg(image).arg("-initrd").arg(&initramfs);
    qemu.args([
        "-append",
        "console=ttyS0 psi=1 panic=-1 quiet mitigations=off",
        "-serial",
        "stdio",
        "-monitor",
        "none",
    ]);
    qemu.arg("-serial").arg(format!("file:{}", result.display())).stdin(Stdio::null());
    let mut child = qemu.spawn().context("cannot start qemu-system-x86_64: install qemu-system-x86")?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > Duration::from_secs(arguments.timeout) {
            child.kill()?;
            child.wait()?;
            bail!("the machine was ended after {} s", arguments.timeout);
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    ensure!(status.success(), "QEMU ended with {status}");
    let said = fs::read_to_string(&result)?;
    let code = said.trim().strip_prefix("exit ").and_then(|code| code.parse().ok());
    code.with_context(|| format!("the machine ended without an exit code; it said {said:?}"))
}

/// The initramfs: PID 1, the guest's program, busybox and the command.
fn archive(command: &[String]) -> anyhow::Result<Vec<u8>> {
    let built = run::root().join("target").join(TARGET).join("release");
    let files: [(&str, PathBuf); 4] = [
        ("init", built.join("plimsoll-init")),
        ("bin/plimsoll-guest", built.join("plimsoll-guest")),
        ("bin/plimsoll", built.join("plimsoll")),
        ("bin/busybox", PathBuf::from("/bin/busybox")),
    ];
    let mut cpio = Cpio::default();
    for folder in ["bin", "dev", "out", "proc", "run", "sys", "tmp"] {
        cpio.entry(folder, 0o040_755, &[]);
    }
    for (name, path) in files {
        let data = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        cpio.entry(name, 0o100_755, &data);
    }
    cpio.entry("command", 0o100_644, command.join("\n").as_bytes());
    Ok(cpio.end())
}

/// A cpio archive in the "newc" form, which the kernel unpacks as its first root.
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        use std::io::Write;
        self.entries += 1;
        let (inode, size, length) = (self.entries, data.len(), name.len() + 1);
        write!(
            self.bytes,
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}{0:08x}{0:08x}{0:08x}{0:08x}{length:08x}{0:08x}",
            0, 1
        )
        .expect("a Vec takes all");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Cpio;

    #[test]
    fn an_entry_is_a_header_of_110_bytes_then_name_and_data_each_on_four_bytes() {
        let mut cpio = Cpio::default();
        cpio.entry("ab", 0o100_644, b"12345");
        assert_eq!(&cpio.bytes[..14], b"07070100000001");
        assert_eq!(&cpio.bytes[110..116], b"ab\0\0\0\0".get(..6).expect("six bytes"));
        assert_eq!(cpio.bytes.len(), 116 + 8);
        assert_eq!(&cpio.bytes[116..121], b"12345");
    }
}
