//! Checks for tests, compiled only with the feature `fault-injection`: the agent dies at a named step, the process is
//! aborted where the watching thread allocates, and a filter ends it at a system call that this thread must not make.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use plimsoll_act::{KillPoint, on_reached};
use plimsoll_units::MonotonicNs;
use rustix::process::{Pid, Signal, kill_process};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// Names the step at which to die and the process that dies there: `NAME:core`, `NAME:supervisor` or `NAME:all`; or,
/// with `NAME:pause`, the step at which the core stops itself until it is continued; or, with `NAME:device`, the one at
/// which it reads from the device that [`DEVICE`] names. Before that, a line on standard error says that the step was
/// reached. Several are separated by commas, one for each core that is started.
pub(crate) const KILL_POINT: &str = "PLIMSOLL_KILL_POINT";
/// A device for `NAME:device`, opened at the start.
const DEVICE: &str = "PLIMSOLL_KILL_DEVICE";
/// Set to anything: the core may hang, because a test stops it on purpose.
const NO_WATCHDOG: &str = "PLIMSOLL_NO_WATCHDOG";
/// What is dropped: events of crossed thresholds (`crossings`), or of cgroups that came or went (`cgroups`).
const LOSE_EVENTS: &str = "PLIMSOLL_LOSE_EVENTS";

/// Runs what the watching thread does between a wake and its next wait. An allocation in it ends the process, so that a
/// test sees it.
pub(crate) fn without_allocation<T>(work: impl FnOnce() -> T) -> T {
    let mut result = None;
    let counted = allocation_counter::measure(|| result = Some(work()));
    match result {
        Some(result) if counted.count_total == 0 && counted.count_current == 0 => result,
        _ => {
            eprintln!("plimsoll: fault injection: allocations between a wake and the next wait: {counted:?}");
            std::process::abort()
        }
    }
}

/// Bars the calling thread, for good, from all but waiting, reading and writing open descriptors, clocks, waking other
/// threads, the values of BPF maps, and its end.
pub(crate) fn filter() -> anyhow::Result<()> {
    #[cfg(target_arch = "x86_64")]
    let waits = [libc::SYS_epoll_wait, libc::SYS_poll];
    #[cfg(not(target_arch = "x86_64"))]
    let waits = [];
    let whatever = [
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_ppoll,
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_write,
        libc::SYS_pwrite64,
        // The message of a check that failed.
        libc::SYS_writev,
        libc::SYS_clock_gettime,
        // The alarm of the heartbeat.
        libc::SYS_timerfd_settime,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_restart_syscall,
        libc::SYS_getpid,
        libc::SYS_getppid,
        libc::SYS_exit_group,
    ];
    let only = |argument: u8, mask: u64, values: &[u64]| -> anyhow::Result<Vec<SeccompRule>> {
        let rule = |value: &u64| {
            let condition =
                SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), *value)?;
            Ok(SeccompRule::new(vec![condition])?)
        };
        values.iter().map(rule).collect()
    };
    let flags =
        u64::from(u32::MAX) & !u64::from((libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME).cast_unsigned());
    let exactly = u64::from(u32::MAX);
    let conditional = [
        (libc::SYS_futex, only(1, flags, &[u64::from(libc::FUTEX_WAKE.cast_unsigned())])?),
        // Look up, change, take out and walk through values; nothing is made, loaded or attached.
        (libc::SYS_bpf, only(0, exactly, &[1, 2, 3, 4])?),
        // To die or to be stopped at a kill point.
        (libc::SYS_kill, only(1, exactly, &[libc::SIGKILL, libc::SIGSTOP].map(|it| u64::from(it.cast_unsigned())))?),
    ];
    let rules = whatever.into_iter().chain(waits).map(|call| (call, Vec::new())).chain(conditional).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)?;
    // Never given back: from here on this thread may not.
    let program: &BpfProgram = Box::leak(Box::new(filter.try_into()?));
    seccompiler::apply_filter(program).context("cannot install the filter of system calls")
}

/// Leaves the core that is started after so many others a kill point of its own, so that none dies where one has died.
pub(crate) fn leave_kill_point(command: &mut std::process::Command, started: usize) {
    let points = std::env::var(KILL_POINT).unwrap_or_default();
    match points.split(',').nth(started).filter(|point| !point.is_empty()) {
        Some(point) => command.env(KILL_POINT, point),
        None => command.env_remove(KILL_POINT),
    };
}

/// Whether no watchdog ends a core that hangs.
pub(crate) fn may_hang() -> bool {
    std::env::var_os(NO_WATCHDOG).is_some()
}

/// Arms the kill point that the environment names.
pub(crate) fn arm_kill_point() -> anyhow::Result<()> {
    HANGS.store(may_hang(), Ordering::Relaxed);
    match std::env::var(LOSE_EVENTS).as_deref() {
        Err(_) => {}
        Ok("crossings") => LOSES_CROSSINGS.store(true, Ordering::Relaxed),
        Ok("cgroups") => LOSES_CGROUPS.store(true, Ordering::Relaxed),
        Ok(other) => anyhow::bail!("{LOSE_EVENTS}={other}: expected crossings or cgroups"),
    }
    let Ok(wanted) = std::env::var(KILL_POINT) else { return Ok(()) };
    let parsed = wanted
        .split_once(':')
        .and_then(|(name, target)| Some((KillPoint::from_name(name)?, Target::from_name(target)?)));
    let (point, target) =
        parsed.with_context(|| format!("{KILL_POINT}={wanted}: expected NAME:core|supervisor|all|pause|device"))?;
    let reporter = if target == Target::All { sibling("reporter") } else { None };
    let device = if target == Target::Device { Some(open_device()?) } else { None };
    let marker = format!("plimsoll: fault injection: reached {}\n", point.name());
    WANTED.set(Wanted { point, target, reporter, device, marker }).ok().context("a kill point is armed already")?;
    on_reached(reached);
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Core,
    Supervisor,
    All,
    Pause,
    Device,
}

impl Target {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "core" => Some(Self::Core),
            "supervisor" => Some(Self::Supervisor),
            "all" => Some(Self::All),
            "pause" => Some(Self::Pause),
            "device" => Some(Self::Device),
            _ => None,
        }
    }
}

struct Wanted {
    point: KillPoint,
    target: Target,
    reporter: Option<Pid>,
    device: Option<Device>,
    /// The line on standard error, made beforehand.
    marker: String,
}

static WANTED: std::sync::OnceLock<Wanted> = std::sync::OnceLock::new();
static PASSED: AtomicBool = AtomicBool::new(false);
static HANGS: AtomicBool = AtomicBool::new(false);
static LOSES_CROSSINGS: AtomicBool = AtomicBool::new(false);
static LOSES_CGROUPS: AtomicBool = AtomicBool::new(false);

/// Until when the marks of the in-kernel brake hold, renewed now: for ever, where the core may hang.
pub(crate) fn lease_from(now: MonotonicNs) -> MonotonicNs {
    if HANGS.load(Ordering::Relaxed) { MonotonicNs(u64::MAX) } else { now.after(crate::core::BRAKE_LEASE) }
}

/// Whether this event is dropped as if the kernel had lost it.
pub(crate) fn loses(wake: &plimsoll_sense::Wake) -> bool {
    match wake {
        plimsoll_sense::Wake::ThresholdCrossed { .. } => LOSES_CROSSINGS.load(Ordering::Relaxed),
        plimsoll_sense::Wake::Cgroup { .. } => LOSES_CGROUPS.load(Ordering::Relaxed),
        _ => false,
    }
}

fn reached(point: KillPoint) {
    let Some(wanted) = WANTED.get() else { return };
    if wanted.point != point || PASSED.swap(true, Ordering::Relaxed) {
        return;
    }
    let _ = rustix::io::write(std::io::stderr(), wanted.marker.as_bytes());
    let own = rustix::process::getpid();
    if matches!(wanted.target, Target::Supervisor | Target::All)
        && let Some(supervisor) = rustix::process::getppid()
    {
        let _ = kill_process(supervisor, Signal::KILL);
    }
    if let Some(reporter) = wanted.reporter {
        let _ = kill_process(reporter, Signal::KILL);
    }
    match wanted.target {
        Target::Core | Target::All => drop(kill_process(own, Signal::KILL)),
        Target::Pause => drop(kill_process(own, Signal::STOP)),
        Target::Device => {
            if let Some((device, buffer)) = &wanted.device
                && let Ok(mut buffer) = buffer.lock()
            {
                let start = buffer.as_ptr().align_offset(4096);
                let _ = device.read_at(&mut buffer[start..start + READ], 0);
            }
        }
        Target::Supervisor => {}
    }
}

/// So much is read from the device at once, in several requests.
const READ: usize = 256 << 10;

/// The device, and what is read into without the page cache: it must be aligned.
type Device = (File, Mutex<Vec<u8>>);

fn open_device() -> anyhow::Result<Device> {
    let path = std::env::var_os(DEVICE).with_context(|| format!("{DEVICE} names no device"))?;
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(direct).open(&path);
    let device = opened.with_context(|| format!("cannot open {}", path.display()))?;
    Ok((device, Mutex::new(vec![0; READ + 4096])))
}

/// The supervisor's other child.
fn sibling(part: &str) -> Option<Pid> {
    let parent = rustix::process::getppid()?.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).find_map(|pid: i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        (line.split(|byte| *byte == 0).nth(1) == Some(part.as_bytes())).then(|| Pid::from_raw(pid)).flatten()
    })
}
