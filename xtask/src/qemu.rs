//! QEMU's command line for a virtual machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::vm::Arguments;
use crate::{install, tunnel};

/// With these options the clock of a machine is the number of its instructions, of two nanoseconds each.
const ICOUNT: &str = "shift=1,sleep=off";
pub(crate) const NS_PER_INSTRUCTION: u64 = 2;

/// On x86-64 the kernel patches its own text while it boots (`sched_clock_stable` at its end, lock prefixes). QEMU's
/// processors run in threads of their own, and one may keep the breakpoint that stood there meanwhile: "Oops: int3". So
/// it boots on one processor, the first process brings up the others, and nothing is patched for that or because the
/// TSC is measured anew.
const ONE_PROCESSOR_PATCHES: &str = " maxcpus=1 noreplace-smp tsc=reliable";

/// What a machine's kernel and programs are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processor {
    X86_64,
    Aarch64,
}

impl Processor {
    /// That of the kernel with this name.
    pub(crate) fn of(kernel: &str) -> Self {
        if kernel.contains("-arm64") { Self::Aarch64 } else { Self::X86_64 }
    }

    /// As Rust names it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// As Debian and Go name it.
    pub(crate) const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Rust's target for static programs.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::X86_64 => install::GUEST,
            Self::Aarch64 => install::AARCH64,
        }
    }
}

/// The machine, but for its kernel, its disks and its ports. It ends with the thread that starts it, however that ends.
pub(crate) fn machine(arguments: &Arguments, processor: Processor, accelerated: bool) -> anyhow::Result<Command> {
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", &format!("qemu-system-{}", processor.name())]);
    qemu.args(["-nographic", "-no-reboot", "-monitor", "none", "-m", &arguments.memory]);
    if let Some(socket) = &arguments.monitor {
        qemu.arg("-qmp").arg(format!("unix:{},server=on,wait=off", escaped(socket)));
    }
    if arguments.network {
        let forwards = arguments.tunnel.as_deref().map_or(Ok(String::new()), tunnel::open)?;
        qemu.arg("-nic").arg(format!("user,model=virtio-net-pci{forwards}"));
    } else {
        qemu.args(["-net", "none"]);
    }
    if processor == Processor::Aarch64 {
        // The board's own port is one, and three are needed: all of them are PCI cards.
        qemu.args(["-machine", "virt", "-serial", "none"]);
    }
    if accelerated {
        qemu.args(["-cpu", "host", "-accel", "kvm", "-smp", &arguments.cpus.to_string()]);
    } else {
        qemu.args(["-cpu", emulated(processor)]);
        if arguments.icount {
            qemu.args(["-accel", "tcg,thread=single", "-icount", ICOUNT, "-smp", "1"]);
        } else {
            qemu.args(["-accel", "tcg,thread=multi", "-smp", &arguments.cpus.to_string()]);
        }
    }
    if arguments.numa {
        qemu.args(nodes(&arguments.memory, arguments.cpus)?);
    }
    Ok(qemu)
}

/// QEMU's name of the processor that is emulated.
const fn emulated(processor: Processor) -> &'static str {
    match processor {
        // Without ERMS and FSRM the kernel clears pages with plain stores, which the emulator does 16 times faster.
        Processor::X86_64 => "max,la57=off,erms=off,fsrm=off",
        // Of servers, and without pointer authentication, which takes an emulator long.
        Processor::Aarch64 => "neoverse-n1",
    }
}

/// The kernel's parameters for such a machine.
pub(crate) fn parameters(processor: Processor, accelerated: bool) -> String {
    let patches = if accelerated || processor == Processor::Aarch64 { "" } else { ONE_PROCESSOR_PATCHES };
    format!("console=ttyS0 psi=1 panic=-1 quiet mitigations=off{patches}")
}

/// The serial ports, in their order: the terminal, and one for each of these files.
pub(crate) fn ports(qemu: &mut Command, processor: Processor, files: &[&Path]) {
    let files = files.iter().map(|file| format!("file,path={}", file.display()));
    for (index, end) in ["stdio".to_owned()].into_iter().chain(files).enumerate() {
        qemu.arg("-chardev").arg(format!("{end},id=port{index}"));
        match processor {
            Processor::X86_64 => qemu.arg("-serial").arg(format!("chardev:port{index}")),
            Processor::Aarch64 => qemu.arg("-device").arg(format!("pci-serial,chardev=port{index}")),
        };
    }
}

/// A path as QEMU reads it within an option, where a comma ends a value unless there are two.
pub(crate) fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// QEMU's arguments for two nodes, each with one half of the memory and of the processors.
fn nodes(memory: &str, cpus: u32) -> anyhow::Result<Vec<String>> {
    let half = mebibytes(memory).filter(|all| all % 2 == 0).map(|all| all / 2);
    let half = half.with_context(|| format!("two nodes need an even number of MiB, such as 1G, not {memory}"))?;
    ensure!(cpus > 1, "two nodes need two processors, not {cpus}");
    let mut words = Vec::new();
    for (node, first, last) in [(0, 0, cpus / 2 - 1), (1, cpus / 2, cpus - 1)] {
        words.extend(["-object".into(), format!("memory-backend-ram,id=memory{node},size={half}M")]);
        words.extend(["-numa".into(), format!("node,nodeid={node},cpus={first}-{last},memdev=memory{node}")]);
    }
    Ok(words)
}

/// QEMU's way to write an amount of memory: MiB unless the unit is named.
fn mebibytes(memory: &str) -> Option<u64> {
    let gibibytes = memory.strip_suffix(['G', 'g']);
    let number = gibibytes.or_else(|| memory.strip_suffix(['M', 'm'])).unwrap_or(memory);
    number.parse::<u64>().ok()?.checked_mul(if gibibytes.is_some() { 1024 } else { 1 })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::{Processor, escaped, nodes, ports};

    #[test]
    fn a_comma_in_a_path_ends_no_value() {
        assert_eq!(
            escaped(Path::new("/roots/trixie,earlyoom,nohang/root.ext4")),
            "/roots/trixie,,earlyoom,,nohang/root.ext4"
        );
    }

    #[test]
    fn two_nodes_have_one_half_each() {
        let words = nodes("1G", 2).expect("halves").join(" ");
        assert_eq!(
            words,
            "-object memory-backend-ram,id=memory0,size=512M -numa node,nodeid=0,cpus=0-0,memdev=memory0 \
             -object memory-backend-ram,id=memory1,size=512M -numa node,nodeid=1,cpus=1-1,memdev=memory1"
        );
        assert_eq!(nodes("768", 3).expect("halves")[3], "node,nodeid=0,cpus=0-0,memdev=memory0");
        for (memory, cpus) in [("1G", 1), ("3", 2), ("1T", 2), ("G", 2)] {
            assert!(nodes(memory, cpus).is_err(), "{memory} {cpus}");
        }
    }

    #[test]
    fn the_terminal_is_the_first_port_on_every_processor() {
        for (processor, first) in
            [(Processor::X86_64, "-serial chardev:port0"), (Processor::Aarch64, "-device pci-serial,chardev=port0")]
        {
            let mut qemu = Command::new("qemu");
            ports(&mut qemu, processor, &[Path::new("/a"), Path::new("/b")]);
            let words: Vec<_> = qemu.get_args().map(|word| word.to_string_lossy()).collect();
            let words = words.join(" ");
            assert!(words.starts_with(&format!("-chardev stdio,id=port0 {first} ")), "{words}");
            assert!(
                words.contains("-chardev file,path=/a,id=port1 ") && words.contains("file,path=/b,id=port2 "),
                "{words}"
            );
        }
    }
}
