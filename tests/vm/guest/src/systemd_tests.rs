//! The shipped unit under a real systemd, installed as a package would: what it leaves the agent, what becomes of the
//! agent when its supervisor dies or hangs, and that systemd's own work on cgroups undoes nothing.

use crate::agent::{DISORDER, NO_WATCHDOG, get, tail};
use crate::cgroup::Cgroup;
use crate::machine::{self, KernelLog, wait_for};
use crate::scenarios_of_death::{KILL_POINT, TRIES, grown};
use crate::scene::{MIB, PATIENCE, held, threshold_below, was_killed};
use crate::surroundings_tests::unit_capabilities;
use crate::systemd::{
    CONFIGURATION, UNIT, USER, as_user, drop_in, journal, manager, number, property, start_guest, systemctl, unit_of,
};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The configuration that is shipped, and the threshold in it.
const SHIPPED: &str = include_str!("../../../../agent/deploy/plimsoll.yaml");
const SHIPPED_THRESHOLD: &str = "memory.available: 100Mi";
/// The cgroup of the unit.
const CGROUP: &str = "plimsoll.slice/plimsoll.service";
/// Where the shipped configuration serves health.
const HEALTH: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);
/// The user that the reporter takes.
const REPORTER: &str = "65526";
/// More crashes than the starts that systemd allows a unit by default.
const CRASHES: u32 = 7;

/// Puts the shipped configuration in place, with another threshold where one is given, in bytes.
fn configure(threshold_bytes: Option<u64>) -> Result<()> {
    let text = match threshold_bytes {
        None => SHIPPED.to_owned(),
        Some(bytes) => SHIPPED.replace(SHIPPED_THRESHOLD, &format!("memory.available: \"{bytes}\"")),
    };
    ensure!(threshold_bytes.is_none() || text != SHIPPED, "the shipped file has no {SHIPPED_THRESHOLD:?}");
    fs::write(CONFIGURATION, text).with_context(|| format!("cannot write {CONFIGURATION}"))
}

/// Starts the unit, which systemd reports when the agent has reported that it is ready.
fn start() -> Result<()> {
    systemctl(&["start", UNIT]).map(drop).with_context(logged)
}

/// What the unit logged last, for messages.
fn logged() -> String {
    format!("its journal ends with: {}", journal().map_or_else(|error| format!("{error:#}"), |text| tail(&text)))
}

/// The supervisor, as systemd knows it.
fn supervisor() -> Result<Pid> {
    Pid::from_raw(i32::try_from(number("MainPID")?)?).context("the unit has no main process")
}

/// The agent's processes by their role: the second word of their command line.
pub(crate) fn processes() -> Result<BTreeMap<String, u32>> {
    let mut found = BTreeMap::new();
    for pid in Cgroup::existing(CGROUP)?.read("cgroup.procs")?.lines() {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let role = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
        found.insert(String::from_utf8_lossy(role).into_owned(), pid.parse()?);
    }
    Ok(found)
}

/// A field of /proc/PID/status: its words, or nothing.
fn status(pid: u32, field: &str) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The unit as shipped comes to READY=1, its processes have what they are to have and no more, and it is stopped in order.
pub(crate) fn confined() -> Result<()> {
    configure(None)?;
    start()?;
    ensure!(property(UNIT, "ActiveState")? == "active", "it is not active");
    let (code, ready) = get(HEALTH, "/readyz")?;
    ensure!(code == 200 && ready.contains("source ebpf") && !ready.contains("without hook"), "{code}: {ready}");
    let names = unit_capabilities().context("the unit names no capabilities")?;
    let numbers = names.iter().map(|name| plimsoll_node::capabilities::named(name).map(|it| it.index()));
    let unit = numbers.collect::<Option<Vec<_>>>().context("an unknown capability")?;
    let unit = unit.into_iter().fold(0_u64, |set, number| set | 1 << number);
    let processes = processes()?;
    let roles: Vec<&str> = processes.keys().map(String::as_str).collect();
    ensure!(roles == ["core", "reporter", "run"], "the unit's processes are {processes:?}");
    ensure!(processes["run"] == number("MainPID")?, "its main process is not the supervisor: {processes:?}");
    for (role, user, held) in [("run", "0", unit), ("core", "0", 0x26), ("reporter", REPORTER, 0)] {
        let pid = processes[role];
        let ids = [user; 4].join(" ");
        for (field, expected) in [
            ("Uid", ids.clone()),
            ("Gid", ids),
            ("CapPrm", format!("{held:016x}")),
            ("CapEff", format!("{held:016x}")),
            ("CapAmb", format!("{:016x}", 0)),
            ("NoNewPrivs", "1".into()),
            ("Seccomp", "2".into()),
        ] {
            let found = status(pid, field)?;
            ensure!(found == expected, "{field} of {role} is {found}, not {expected}");
        }
        // What none of its threads can ever get.
        let bounds = u64::from_str_radix(&status(pid, "CapBnd")?, 16)?;
        ensure!(bounds & !unit == 0, "{role} could get {bounds:x}, and the unit leaves it {unit:x}");
    }
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", processes["run"]))?;
    ensure!(score.trim() == "-999", "the OOM killer's score of the supervisor is {score}");
    systemctl(&["stop", UNIT])?;
    ensure!(property(UNIT, "ActiveState")? == "inactive", "it is not inactive; {}", logged());
    // systemd forgets how a unit ended that nothing refers to; it logs this where all its processes ended with success.
    let log = journal()?;
    ensure!(log.contains("plimsoll.service: Deactivated successfully."), "{}", tail(&log));
    ensure!(!log.contains(DISORDER) && !log.contains("SIGKILL"), "{}", tail(&log));
    let left = processes.values().filter(|pid| machine::alive(**pid)).count();
    ensure!(left == 0, "{left} processes are left of {processes:?}");
    ensure!(held().is_empty(), "after its end are held: {}", held().join(", "));
    ensure!(Path::new("/run/plimsoll").is_dir(), "the run record's directory is gone with the service");
    Ok(())
}

/// A process grows in a scope that a user's own manager made and delegated: it is evicted, and a service with a
/// reservation, the user's manager and the machine's own services live on.
pub(crate) fn delegated_scope() -> Result<()> {
    configure(None)?;
    let bystander = start_guest("bystander", &["MemoryLow=64M"], &["idle", "--mib", "16"])?;
    let user = as_user("systemd-run")?;
    start()?;
    let (oom_kills, mut log) = (machine::oom_kills()?, KernelLog::from_now()?);
    let hog = grow_as(user)?;
    wait_for("the scope is evicted", PATIENCE, || log.has(&format!("plimsoll: killed {hog}: usage ")))
        .with_context(|| format!("{hog}; {}", logged()))?;
    ensure!(machine::oom_kills()? == oom_kills, "the OOM killer fired");
    ensure!(bystander.populated()?, "the service with a reservation died; {}", logged());
    for unit in [UNIT, &format!("user@{USER}.service"), "systemd-journald.service"] {
        let state = property(unit, "ActiveState")?;
        ensure!(state == "active", "{unit} is {state}; {}", logged());
    }
    wait_for("nothing stays frozen or stopped", PATIENCE, || Ok(held().is_empty()))
}

/// Has a user's process fill memory in a delegated scope, until it is killed. Gives the scope's cgroup.
fn grow_as(mut user: Command) -> Result<String> {
    let mib = (machine::meminfo("MemTotal")? / MIB).to_string();
    let program = std::env::current_exe()?;
    user.args(["--user", "--quiet", "--scope", "--unit=test-hog", "--property=Delegate=yes"]);
    let mut hog = user.arg(program).args(["hog", "anon", "--mib", &mib, "--hold", "120"]).spawn()?;
    let own = format!("/proc/{}/cgroup", hog.id());
    let mut path = String::new();
    wait_for("the scope is made", PATIENCE, || {
        fs::read_to_string(&own)?.trim().trim_start_matches("0::/").clone_into(&mut path);
        Ok(path.ends_with("/test-hog.scope"))
    })?;
    let owner = fs::metadata(Path::new(crate::cgroup::ROOT).join(&path).join("cgroup.procs"));
    let owner = owner.map(|file| file.uid()).ok();
    ensure!(owner.is_none_or(|owner| owner == USER), "{path} belongs to {owner:?}");
    let mut ended = None;
    wait_for("the hog is killed", PATIENCE, || {
        ended = hog.try_wait()?;
        Ok(ended.is_some())
    })
    .with_context(logged)?;
    ensure!(ended.is_some_and(was_killed), "the hog ended by itself: {ended:?}; {}", logged());
    Ok(path)
}

/// The unit with a core that stopped itself with a workload frozen. The drop-in has these lines besides.
fn freeze(lines: &str) -> Result<Cgroup> {
    configure(Some(threshold_below(96)?.saturating_sub(24 * MIB)))?;
    drop_in(&format!("Environment={KILL_POINT}=freeze-recorded:pause {NO_WATCHDOG}=1\n{lines}"))?;
    // A hog that alone is responsible is killed at once: there is not always something to freeze.
    for number in 0..TRIES {
        systemctl(&["restart", UNIT]).with_context(logged)?;
        let mib = grown()?.to_string();
        let hog = start_guest(&format!("hog-{number}"), &[], &["hog", "anon", "--mib", &mib, "--hold", "300"])?;
        let is_stopped = || processes().is_ok_and(|all| all.get("core").is_some_and(|pid| is_stopped(*pid)));
        wait_for("the core has stopped itself, or the hog is dead", PATIENCE, || {
            Ok(is_stopped() || !hog.populated().unwrap_or(false))
        })
        .with_context(logged)?;
        // A worker may kill what was just frozen in the moment in which the core stops.
        std::thread::sleep(Duration::from_secs(1));
        if is_stopped() && hog.stands_still().unwrap_or(false) {
            return Ok(hog);
        }
        systemctl(&["kill", "--signal=SIGCONT", UNIT])?;
    }
    bail!("nothing was frozen; {}", logged())
}

fn is_stopped(pid: u32) -> bool {
    machine::process_state(pid) == Some('T')
}

/// systemd starts the service anew, once more than `before`, with another supervisor, and nothing is held by then.
fn is_started_anew(before: u32, old: Pid) -> Result<()> {
    wait_for("systemd starts it anew", PATIENCE, || {
        Ok(number("NRestarts")? > before && property(UNIT, "ActiveState")? == "active")
    })
    .with_context(logged)?;
    let new = supervisor()?;
    ensure!(new != old, "the supervisor is the old one");
    let left = machine::alive(u32::try_from(old.as_raw_nonzero().get())?);
    ensure!(!left, "the old supervisor still lives");
    ensure!(held().is_empty(), "held: {}", held().join(", "));
    let (code, ready) = get(HEALTH, "/readyz")?;
    ensure!(code == 200, "{code}: {ready}");
    Ok(())
}

/// What systemd does to cgroups by itself undoes no freeze. A supervisor that is killed then, with a core that cannot undo
/// anything, is started anew, and before that all goes on.
pub(crate) fn killed() -> Result<()> {
    start_guest("bystander", &["MemoryLow=64M"], &["idle", "--mib", "16"])?;
    let hog = freeze("")?;
    let bystander = unit_of("bystander");
    // The next start is far off: what thaws is not the next agent.
    drop_in("RestartSec=8s")?;
    for change in ["MemoryHigh=512M", "CPUWeight=50", "MemoryLow=32M"] {
        systemctl(&["set-property", "--runtime", &bystander, change])?;
        ensure!(hog.stands_still()?, "after {change} of a sibling the hog is not frozen");
    }
    // systemd looks at cgroups again when it has nothing else to do.
    std::thread::sleep(Duration::from_millis(500));
    ensure!(hog.stands_still()?, "after daemon-reload and set-property the hog is not frozen");
    let (before, old) = (number("NRestarts")?, supervisor()?);
    kill_process(old, Signal::KILL)?;
    wait_for("what was frozen goes on", PATIENCE, || Ok(held().is_empty())).with_context(logged)?;
    let state = property(UNIT, "SubState")?;
    ensure!(state == "stop-post" || state.starts_with("auto-restart"), "thawed by a later start: it is {state}");
    is_started_anew(before, old)
}

/// A supervisor that does not run, beside a core that does not either, is ended by systemd's watchdog, and all goes on.
pub(crate) fn stopped() -> Result<()> {
    freeze("WatchdogSec=4s")?;
    let (before, old) = (number("NRestarts")?, supervisor()?);
    // The next agent is a usual one.
    drop_in("WatchdogSec=4s")?;
    kill_process(old, Signal::STOP)?;
    is_started_anew(before, old)?;
    let log = journal()?;
    ensure!(log.contains("Watchdog timeout (limit 4s)!"), "systemd does not name its watchdog: {}", tail(&log));
    Ok(())
}

/// A supervisor that crashes again and again is started again and again.
pub(crate) fn crashes() -> Result<()> {
    configure(None)?;
    // The usual limit, over a time that no slow machine outlasts.
    manager("DefaultStartLimitIntervalSec=1h\nDefaultStartLimitBurst=5")?;
    drop_in("RestartSec=100ms\nRestartSteps=0")?;
    start()?;
    let mut old = supervisor()?;
    for crash in 1..=CRASHES {
        kill_process(old, Signal::KILL)?;
        wait_for("systemd starts it anew", PATIENCE, || {
            let Ok(new) = supervisor() else { return Ok(false) };
            let is_new = new != old;
            old = if is_new { new } else { old };
            Ok(is_new)
        })
        .with_context(|| format!("after {crash} crashes; {}", logged()))?;
    }
    wait_for("it is ready", PATIENCE, || Ok(property(UNIT, "ActiveState")? == "active")).with_context(logged)?;
    let restarts = number("NRestarts")?;
    ensure!(restarts >= CRASHES, "{restarts} starts after {CRASHES} crashes");
    Ok(())
}
