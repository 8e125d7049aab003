//! `cargo xtask vm`: boots a Debian kernel with a program of ours as PID 1, runs one command in it, and ends with the
//! command's exit code. QEMU without hardware virtualisation unless asked: the same on every machine.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::image::{Files, sent};
use crate::kernels::Kernel;
use crate::qemu::{self, Processor};
use crate::scratch::Scratch;
use crate::{build_ebpf, debian_root, install, kernels, lock, run};

/// How long a machine may take to boot and end where it is only tried whether hardware virtualisation works.
const PROBE: u64 = 20;
/// How many seconds a machine may take unless something else is asked for.
const TIMEOUT: u64 = 600;
/// How long a kernel may take until its first process runs; a boot takes some ten seconds on an idle host.
const BOOT: Duration = Duration::from_mins(3);
/// How often a machine is booted again whose kernel did not come to its first process, and how often one whose kernel the
/// emulator ended later.
pub(crate) const BOOTS_AGAIN: u32 = 2;
/// What the kernel reports where a processor of the emulator ran a breakpoint that is no more.
pub(crate) const STALE_BREAKPOINT: &str = "Oops: int3";
/// What the line begins with that reports such a boot.
pub(crate) const BOOTED_AGAIN: &str = "BOOTED AGAIN ";
/// What the first process writes when it starts, before its exit code.
const STARTED: &str = "started";
/// Where programs for machines are left, a folder for each build, and what a command needs while it runs.
pub(crate) const PLACE: &str = "target/vm";
/// What a machine is saved into: what it has written to its root, as qcow2, and its memory with the state of its devices, as
/// QEMU's migration has it.
pub(crate) const SAVED_DISK: &str = "disk.qcow2";
pub(crate) const SAVED_MEMORY: &str = "memory";

/// What to boot and what to run in it.
#[derive(Clone, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Arguments {
    /// Which kernel: a Debian suite (bookworm, trixie, forky) or its version (6.1, 6.12, 7.2), or one that only long runs
    /// boot (5.10, 6.12-arm64, 6.12-arm64-16k).
    #[arg(long, default_value = "6.12")]
    pub(crate) kernel: String,
    /// Memory of the machine, as QEMU writes it.
    #[arg(long, default_value = "1G")]
    pub(crate) memory: String,
    /// Virtual processors.
    #[arg(long, default_value_t = 2)]
    pub(crate) cpus: u32,
    /// Time follows instructions, on one processor: two runs agree however busy the host is.
    #[arg(long)]
    pub(crate) icount: bool,
    /// Use hardware virtualisation, if a machine that boots with it ends within 20 seconds.
    #[arg(long, conflicts_with = "icount")]
    pub(crate) kvm: bool,
    /// End the machine after so many seconds; 600 unless given, and no limit for a shell.
    #[arg(long)]
    timeout: Option<u64>,
    /// What the machine runs from.
    #[arg(long, value_enum, default_value_t = Root::Initramfs)]
    pub(crate) root: Root,
    /// A package of Debian to have in a root with systemd, as apt names it. Can be given more than once.
    #[arg(long = "package", value_name = "NAME")]
    pub(crate) packages: Vec<String>,
    /// Split the memory and the processors over two NUMA nodes.
    #[arg(long, conflicts_with = "icount")]
    pub(crate) numa: bool,
    /// More parameters for the kernel's command line, such as `psi=0`; of several for one thing the last counts.
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,
    /// How the agent is built.
    #[arg(long, value_name = "BUILD", value_enum, default_value_t = Build::FaultInjection)]
    pub(crate) agent: Build,
    /// Where the programs are, if not where each build leaves them for all commands.
    #[arg(skip)]
    pub(crate) programs: Option<PathBuf>,
    /// A network card. The machine's own address is 10.0.2.15, this host's loopback is 10.0.2.2 to it, and nothing can
    /// connect to it but by a tunnel.
    #[arg(long)]
    pub(crate) network: bool,
    /// A Unix socket that is made, on which HTTP CONNECT reaches a kubelet and an agent's metrics in the machine.
    #[arg(long, value_name = "SOCKET", requires = "network")]
    pub(crate) tunnel: Option<PathBuf>,
    /// A Unix socket that is made, on which QEMU is spoken to in its own protocol (QMP).
    #[arg(long, value_name = "SOCKET")]
    pub(crate) monitor: Option<PathBuf>,
    /// Restore a machine that was saved into this directory, with a root with systemd and all else as it had. It stands still
    /// until the monitor has it continue.
    #[arg(long, value_name = "DIRECTORY", requires = "monitor", conflicts_with_all = ["kvm", "shell"])]
    saved: Option<PathBuf>,
    /// A further disk, which is read alone: a file with a file system. Can be given more than once.
    #[arg(long = "disk", value_name = "FILE")]
    pub(crate) disks: Vec<PathBuf>,
    /// Put a file of the host into the machine. Can be given more than once.
    #[arg(long, value_name = "HOST:GUEST")]
    pub(crate) file: Vec<String>,
    /// Where the files go that the command leaves in /out.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) out: Option<PathBuf>,
    /// An interactive shell instead of a command; it ends with `exit`.
    #[arg(long)]
    shell: bool,
    /// The command and its arguments; /bin/plimsoll, /bin/plimsoll-guest and /bin/busybox are there.
    #[arg(last = true, required_unless_present = "shell")]
    pub(crate) command: Vec<String>,
}

/// What a machine runs from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Root {
    /// The initramfs.
    Initramfs,
    /// The same files on an ext4 disk, so that programs are backed by files.
    Ext4,
    /// Debian with systemd as the first process, of the suite that has the kernel, with the agent's unit installed.
    Systemd,
}

impl Root {
    /// Whether it is on a disk.
    pub(crate) const fn is_disk(self) -> bool {
        match self {
            Self::Initramfs => false,
            Self::Ext4 | Self::Systemd => true,
        }
    }
}

impl Arguments {
    /// What such a machine needs.
    pub(crate) fn needs(&self) -> anyhow::Result<Vec<install::Need>> {
        match self.root {
            Root::Systemd => install::systemd_machines(&[&self.kernel]),
            Root::Initramfs | Root::Ext4 => install::machines(&[&self.kernel]),
        }
    }

    /// Where its programs are.
    fn programs(&self) -> PathBuf {
        self.programs.clone().unwrap_or_else(|| self.agent.place(Processor::of(&self.kernel)))
    }

    fn limit(&self) -> Option<Duration> {
        let seconds = self.timeout.or((!self.shell).then_some(TIMEOUT));
        seconds.map(Duration::from_secs)
    }

    /// A machine with this kernel for one command, and the usual rest.
    pub(crate) fn of(kernel: &str, timeout: u64, command: &[&str]) -> Self {
        Self {
            kernel: kernel.into(),
            memory: "1G".into(),
            cpus: 2,
            icount: false,
            kvm: false,
            timeout: Some(timeout),
            root: Root::Initramfs,
            packages: Vec::new(),
            numa: false,
            append: None,
            agent: Build::FaultInjection,
            programs: None,
            network: false,
            tunnel: None,
            monitor: None,
            saved: None,
            disks: Vec::new(),
            file: Vec::new(),
            out: None,
            shell: false,
            command: command.iter().map(|&word| word.into()).collect(),
        }
    }
}

/// Builds what goes into the machine, boots it and returns the command's exit code.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    ensure!(
        arguments.packages.is_empty() || arguments.root == Root::Systemd,
        "--package is for `--root systemd`: other roots have no packages"
    );
    ensure!(
        arguments.saved.is_none() || arguments.root == Root::Systemd,
        "--saved is for `--root systemd`: of other roots no disk is saved"
    );
    install::all(&arguments.needs()?)?;
    arguments.agent.run(Processor::of(&arguments.kernel))?;
    boot(arguments, &mut |line| println!("{line}"))
}

/// The programs of a machine: the agent, and those that only machines have.
const PROGRAMS: [&str; 3] = ["plimsoll", "plimsoll-init", "plimsoll-guest"];

/// How the programs of a machine are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Build {
    /// As it is shipped: what is measured
    Release,
    /// The same without what makes a release slow to build
    Plain,
    /// With what tests use: kill points, counted allocations, barred system calls
    FaultInjection,
}

impl Build {
    const fn features(self) -> &'static [&'static str] {
        match self {
            Self::Release | Self::Plain => &[],
            Self::FaultInjection => &["--features", "plimsoll/fault-injection"],
        }
    }

    /// Where its programs for a processor are left.
    pub(crate) fn place(self, processor: Processor) -> PathBuf {
        let build = match self {
            Self::Release => "release",
            Self::Plain => "plain",
            Self::FaultInjection => "fault-injection",
        };
        let folder = run::root().join(PLACE);
        folder.join(if processor == Processor::X86_64 { build.into() } else { format!("{build}-{}", processor.name()) })
    }

    /// Builds the kernel side for this processor, and the static programs.
    pub(crate) fn run(self, processor: Processor) -> anyhow::Result<()> {
        // No other command replaces one of them before all are in their place.
        let _lock = lock::wait(&run::root().join(PLACE))?;
        self.build(processor)
    }

    /// The same, and gives copies that no other command replaces.
    pub(crate) fn copies(self, processor: Processor) -> anyhow::Result<Scratch> {
        let _lock = lock::wait(&run::root().join(PLACE))?;
        self.build(processor)?;
        let copies = Scratch::new("programs-")?;
        for program in PROGRAMS {
            put(&self.place(processor).join(program), &copies.path().join(program))?;
        }
        Ok(copies)
    }

    fn build(self, processor: Processor) -> anyhow::Result<()> {
        build_ebpf::run(&[processor.name()])?;
        let place = self.place(processor);
        fs::create_dir_all(&place)?;
        let (agent, others) = PROGRAMS.split_at(1);
        match self {
            Self::Release => {
                build("vm", others, &[], processor, &place)?;
                build("release", agent, &[], processor, &place)
            }
            // At once, so that what they share is built once.
            Self::Plain | Self::FaultInjection => build("vm", &PROGRAMS, self.features(), processor, &place),
        }
    }
}

/// Builds programs with a profile, and copies them to their place.
fn build(
    profile: &str,
    programs: &[&str],
    features: &[&str],
    processor: Processor,
    place: &Path,
) -> anyhow::Result<()> {
    let mut cargo = Command::new("cargo");
    let target = run::root().join("target");
    cargo.args(["build", "--profile", profile, "--locked", "--target", processor.target()]).args(features);
    // Wherever else cargo is set to leave what it builds.
    cargo.arg("--target-dir").arg(&target).current_dir(run::root());
    cargo.args(programs.iter().flat_map(|program| ["-p", program]));
    run::shown(&mut cargo)?;
    let built = target.join(processor.target()).join(profile);
    for program in programs {
        put(&built.join(program), &place.join(program))?;
    }
    Ok(())
}

/// Copies a program. What reads the one that is replaced goes on with that.
fn put(from: &Path, to: &Path) -> anyhow::Result<()> {
    let new = to.with_added_extension("new");
    fs::copy(from, &new)
        .and_then(|_| fs::rename(&new, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Boots a machine for which everything was prepared, hands on its lines, and gives the command's exit code.
///
/// A machine whose kernel does not come to its first process is booted again, at most twice, and a line that begins with
/// [`BOOTED_AGAIN`] reports that: the emulator's processors may run an instruction that the kernel has replaced
/// meanwhile, which is not what is tested.
pub(crate) fn boot(arguments: &Arguments, lines: &mut dyn FnMut(&str)) -> anyhow::Result<i32> {
    let kernel = kernels::get(&arguments.kernel)?;
    let accelerated = arguments.kvm && kvm_works(arguments, &kernel);
    until_started(&arguments.kernel, lines, |lines| start(arguments, &kernel, accelerated, lines))
}

/// Boots by `start` until the first process starts, at most so often.
fn until_started(
    kernel: &str,
    lines: &mut dyn FnMut(&str),
    start: impl Fn(&mut dyn FnMut(&str)) -> anyhow::Result<Start>,
) -> anyhow::Result<i32> {
    let mut booted_again = 0;
    loop {
        match start(lines)? {
            Start::Ended(code) => return Ok(code),
            Start::Dead(why) => {
                ensure!(booted_again < BOOTS_AGAIN, "{why}, in each of {} boots", booted_again + 1);
                booted_again += 1;
                lines(&format!("{BOOTED_AGAIN}{kernel}: {why}"));
            }
        }
    }
}

/// Boots a machine once, whatever comes of it: an error where the kernel did not come to its first process.
pub(crate) fn boot_once(arguments: &Arguments, lines: &mut dyn FnMut(&str)) -> anyhow::Result<i32> {
    match start(arguments, &kernels::get(&arguments.kernel)?, false, lines)? {
        Start::Ended(code) => Ok(code),
        Start::Dead(why) => bail!(why),
    }
}

/// What came of one boot.
enum Start {
    /// The command ran, and ended with this code.
    Ended(i32),
    /// The first process did not start.
    Dead(String),
}

fn start(
    arguments: &Arguments,
    kernel: &Kernel,
    accelerated: bool,
    lines: &mut dyn FnMut(&str),
) -> anyhow::Result<Start> {
    let place = Scratch::new("machine-")?;
    let place = place.path();
    let mut qemu = machine(arguments, kernel, place, accelerated)?;
    let result = place.join("result");
    let out = place.join("out");
    qemu::ports(&mut qemu, kernel.processor, &[&result, &out]);
    // A shell has the terminal to itself.
    if !arguments.shell {
        qemu.stdin(Stdio::null()).stdout(Stdio::piped());
    }
    let mut child = qemu.spawn().context("cannot start QEMU with setpriv")?;
    let (send, receive) = std::sync::mpsc::channel();
    let reader = child.stdout.take().map(|stdout| {
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                // The receiver is gone once the time is up.
                let _ = send.send(String::from_utf8_lossy(&line).trim_end().to_owned());
                line.clear();
            }
        })
    });
    let mut last = String::new();
    let mut forward = || {
        for line in receive.try_iter() {
            lines(&line);
            last = line;
        }
    };
    // It had started before it was saved.
    let has_started = || arguments.saved.is_some() || started(&result);
    let waited = wait(&mut child, arguments.limit(), has_started, &mut forward);
    if let Some(reader) = reader {
        let _ = reader.join();
    }
    forward();
    let status = match waited? {
        Waited::Ended(status) => status,
        Waited::NotStarted => return Ok(Start::Dead(dead(&format!("within {} s", BOOT.as_secs()), &last))),
    };
    ensure!(status.success(), "QEMU ended with {status}");
    if !has_started() {
        return Ok(Start::Dead(dead("before the machine ended", &last)));
    }
    if let Some(directory) = &arguments.out {
        fs::create_dir_all(directory)?;
        for (name, data) in sent(&fs::read(&out)?)? {
            fs::write(directory.join(&name), data).with_context(|| format!("cannot write {name}"))?;
        }
    }
    let said = fs::read_to_string(&result)?;
    let code = said.lines().find_map(|line| line.trim().strip_prefix("exit ")?.parse().ok());
    code.map(Start::Ended).with_context(|| {
        format!(
            "the machine ended after its first process had started, and without an exit code; its last line: {last}"
        )
    })
}

/// Whether the machine's first process has written that it started.
fn started(result: &Path) -> bool {
    fs::read_to_string(result).is_ok_and(|said| said.lines().any(|line| line.trim() == STARTED))
}

fn dead(when: &str, last: &str) -> String {
    format!("the kernel started no first process {when}; its last line: {last}")
}

/// How the wait for a machine ended.
enum Waited {
    Ended(std::process::ExitStatus),
    /// It was ended because its first process did not start in time.
    NotStarted,
}

fn wait(
    child: &mut Child,
    limit: Option<Duration>,
    started: impl Fn() -> bool,
    meanwhile: &mut dyn FnMut(),
) -> anyhow::Result<Waited> {
    let begun = Instant::now();
    let mut has_started = false;
    loop {
        meanwhile();
        if let Some(status) = child.try_wait()? {
            return Ok(Waited::Ended(status));
        }
        has_started = has_started || started();
        let too_long = limit.filter(|limit| begun.elapsed() > *limit);
        let not_started = !has_started && begun.elapsed() > BOOT;
        if too_long.is_some() || not_started {
            child.kill()?;
            child.wait()?;
        }
        if let Some(limit) = too_long {
            bail!("the machine was ended after {} s", limit.as_secs());
        }
        if not_started {
            return Ok(Waited::NotStarted);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// QEMU's command line, but for the ports.
fn machine(arguments: &Arguments, kernel: &Kernel, place: &Path, accelerated: bool) -> anyhow::Result<Command> {
    let files = files(arguments, kernel)?;
    let initramfs = place.join("initramfs");
    fs::write(&initramfs, files.archive())?;
    let mut qemu = qemu::machine(arguments, kernel.processor, accelerated)?;
    qemu.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&initramfs);
    let mut append = qemu::parameters(kernel.processor, accelerated);
    let drive = match arguments.root {
        Root::Initramfs => None,
        Root::Ext4 => Some(format!("file={},format=raw", qemu::escaped(&files.ext4(place)?))),
        // What is written goes into a file that has no name, so that one image serves many machines.
        Root::Systemd => {
            let image = qemu::escaped(&debian_root::get(&arguments.kernel, &arguments.packages)?);
            Some(match &arguments.saved {
                None => format!("file={image},format=raw,snapshot=on"),
                Some(folder) => format!(
                    "file={},format=qcow2,backing.driver=raw,backing.file.filename={image},snapshot=on",
                    qemu::escaped(&folder.join(SAVED_DISK))
                ),
            })
        }
    };
    if let Some(drive) = drive {
        qemu.env("TMPDIR", place).arg("-drive").arg(drive + ",if=virtio,cache=unsafe");
        append.push_str(" plimsoll.root=/dev/vda");
    }
    for disk in &arguments.disks {
        let drive = format!("file={},if=virtio,format=raw,readonly=on", qemu::escaped(disk));
        qemu.arg("-drive").arg(drive);
    }
    if arguments.root == Root::Systemd {
        append.push_str(&debian_root::parameters());
    }
    if let Some(more) = &arguments.append {
        append.push(' ');
        append.push_str(more);
    }
    qemu.args(["-append", &append]);
    if let Some(folder) = &arguments.saved {
        let memory = folder.join(SAVED_MEMORY).display().to_string();
        ensure!(!memory.contains('\''), "QEMU's shell cannot read {memory}");
        qemu.arg("-incoming").arg(format!("exec:cat '{memory}'"));
    }
    Ok(qemu)
}

fn files(arguments: &Arguments, kernel: &Kernel) -> anyhow::Result<Files> {
    let place = arguments.programs();
    let mut files = Files::new();
    files.host("init", &place.join("plimsoll-init"))?;
    files.host("bin/plimsoll-guest", &place.join("plimsoll-guest"))?;
    files.host("bin/plimsoll", &place.join("plimsoll"))?;
    files.host("bin/busybox", &kernel.busybox())?;
    files.modules(kernel, arguments.root.is_disk(), arguments.network)?;
    if arguments.root == Root::Systemd {
        debian_root::add_units(&mut files, arguments.shell);
    }
    for pair in &arguments.file {
        let (host, guest) = pair.split_once(':').with_context(|| format!("--file {pair}: HOST:GUEST is expected"))?;
        files.host(guest, Path::new(host))?;
    }
    let shell = ["/bin/busybox", "sh", "-i"].map(str::to_owned);
    let command = if arguments.shell { &shell[..] } else { &arguments.command };
    files.text("command", command.join("\n"));
    Ok(files)
}

/// Whether hardware virtualisation boots this kernel to its end. Where it hangs, the machine is ended.
fn kvm_works(arguments: &Arguments, kernel: &Kernel) -> bool {
    if !Path::new("/dev/kvm").exists() {
        println!("no /dev/kvm: the machine is emulated");
        return false;
    }
    let probe = Arguments {
        command: vec!["/bin/busybox".into(), "true".into()],
        timeout: Some(PROBE),
        shell: false,
        root: Root::Initramfs,
        packages: Vec::new(),
        out: None,
        tunnel: None,
        monitor: None,
        disks: Vec::new(),
        file: Vec::new(),
        ..arguments.clone()
    };
    match start(&probe, kernel, true, &mut |_| {}) {
        Ok(Start::Ended(0)) => true,
        Ok(Start::Ended(code)) => {
            println!("with hardware virtualisation a machine ended with {code}: it is emulated");
            false
        }
        Ok(Start::Dead(why)) => {
            println!("with hardware virtualisation {why}: the machine is emulated");
            false
        }
        Err(error) => {
            println!("hardware virtualisation does not work here ({error:#}): the machine is emulated");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::{self, File};
    use std::io::Read as _;
    use std::time::Duration;

    use super::{Arguments, Build, Processor, Start, put, until_started};

    #[test]
    fn what_reads_a_program_while_another_takes_its_place_has_the_whole_of_one() {
        let place = tempfile::tempdir().expect("a directory");
        let [built, program] = ["built", "program"].map(|name| place.path().join(name));
        fs::write(&built, "old").expect("written");
        put(&built, &program).expect("copied");
        let mut reader = File::open(&program).expect("it is there");
        fs::write(&built, "another").expect("written");
        put(&built, &program).expect("copied");
        let mut read = String::new();
        reader.read_to_string(&mut read).expect("a text");
        assert_eq!((&read[..], &fs::read_to_string(&program).expect("a text")[..]), ("old", "another"));
        assert_eq!(fs::read_dir(place.path()).expect("a directory").count(), 2);
    }

    #[test]
    fn a_machine_has_the_programs_it_is_given_or_those_of_its_build() {
        let usual = Arguments { agent: Build::Release, ..Arguments::of("6.12", 1, &["true"]) };
        assert_eq!(usual.programs(), Build::Release.place(Processor::X86_64));
        let given = Arguments { programs: Some("/copies".into()), ..usual };
        assert_eq!(given.programs().to_str(), Some("/copies"));
    }

    #[test]
    fn a_machine_without_a_first_process_is_booted_again_twice_and_each_time_reported() {
        let again = "BOOTED AGAIN 6.12: no first process";
        for (dead, code, reported) in [(0, Some(7), 0), (1, Some(7), 1), (2, Some(7), 2), (3, None, 2)] {
            let (boots, mut lines) = (Cell::new(0), Vec::new());
            let ended = until_started("6.12", &mut |line| lines.push(line.to_owned()), |_| {
                boots.set(boots.get() + 1);
                Ok(if boots.get() > dead { Start::Ended(7) } else { Start::Dead("no first process".into()) })
            });
            assert_eq!((lines, boots.get()), (vec![again.to_owned(); reported], reported + 1), "{dead} died");
            assert_eq!(ended.as_ref().ok(), code.as_ref(), "{dead} died");
            let why = ended.err().map(|error| error.to_string());
            assert_eq!(why.as_deref(), code.is_none().then_some("no first process, in each of 3 boots"));
        }
    }

    #[test]
    fn only_a_shell_has_no_limit_unless_one_is_given() {
        for (shell, timeout, expected) in
            [(false, None, Some(600)), (false, Some(5), Some(5)), (true, None, None), (true, Some(5), Some(5))]
        {
            let arguments = Arguments { timeout, shell, ..Arguments::of("6.12", 1, &["true"]) };
            assert_eq!(arguments.limit(), expected.map(Duration::from_secs), "{shell} {timeout:?}");
        }
    }
}
