//! `plimsoll check`: what this machine can and cannot do, why, and what is lost. Changes nothing.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use plimsoll_config::{Configuration, SourceChoice};
use plimsoll_node::capabilities::{self, Capability};
use plimsoll_node::meminfo::MemInfo;
use plimsoll_node::os::{CGROUP_ROOT, CgroupMode};
use plimsoll_node::peers::{Peer, peers};
use plimsoll_node::process::{self, Released};
use plimsoll_sense::probe::KernelFacts;
use plimsoll_sense::{Kind, hooks, rules};
use plimsoll_units::Bytes;
use procfs::LockType;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::acting::MACHINE;
use crate::options::{Options, Output};

/// Exit codes, as `--help` has them.
const CODES: &str = "Exit codes: 0 everything that the agent can use is there; 2 wrong arguments or configuration; \
3 this machine cannot be served; 4 the agent runs, with less than it could use.";
/// The lockdown mode in which no program may read the kernel's memory.
const CONFIDENTIALITY: &str = "confidentiality";
/// Whether the kernel times its programs.
const RUN_TIMES: &str = "/proc/sys/kernel/bpf_stats_enabled";
const CANNOT: u8 = 3;
const DEGRADED: u8 = 4;

/// What to check, and how to print it.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// For people, or one JSON object.
    #[arg(long, default_value = "text")]
    output: Output,
}

/// How one thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// As it should be.
    Ok,
    /// Missing or in the way; the agent runs without.
    Degraded,
    /// The agent cannot run.
    Fatal,
}

/// One row of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    name: String,
    state: State,
    /// What was found.
    found: String,
    /// What is lost, and what to do; empty where nothing is.
    advice: String,
}

fn row(name: &str, good: bool, found: impl Into<String>, advice: &str) -> Row {
    let advice = if good { String::new() } else { advice.to_owned() };
    Row { name: name.into(), state: if good { State::Ok } else { State::Degraded }, found: found.into(), advice }
}

/// Everything that rows are made from: gathered once, or made up in a test.
struct Facts {
    kernel: KernelFacts,
    mode: CgroupMode,
    /// `cgroup.kill` and `cgroup.freeze` in some cgroup; `None` where there is none to look at.
    files: Option<(bool, bool)>,
    /// Whether the memory of a dying process can be taken, or what the kernel says instead.
    release: Result<(), String>,
    /// Those that this process holds, of those that the agent uses.
    held: Vec<Capability>,
    /// How much memory may be locked; `None` for any amount.
    lockable: Option<Bytes>,
    /// The highest real-time priority that may be taken without a capability.
    real_time: Option<u64>,
    /// The kernel times its programs, or would do so for this process.
    run_times: bool,
    /// All swap, and how much of it is free; `None` where it cannot be read.
    swap: Option<(Bytes, Bytes)>,
    peers: Vec<Peer>,
    other_acts: Option<bool>,
    /// What the configuration asks for.
    wish: SourceChoice,
    /// How many slices the kernel side may stop.
    in_kernel: usize,
}

/// Each capability with what the agent does with it.
const CAPABILITIES: [(Capability, &str); 10] = [
    (capabilities::BPF, "load programs into the kernel"),
    (capabilities::PERFMON, "attach them"),
    (capabilities::SYSLOG, "see the addresses of the kernel's counters"),
    (capabilities::SYS_RESOURCE, "raise its limits, watch short windows of pressure, and die last of all"),
    (capabilities::KILL, "continue and kill processes of other users"),
    (capabilities::DAC_OVERRIDE, "freeze and kill cgroups that belong to users"),
    (capabilities::DAC_READ_SEARCH, "open a new cgroup by its id, before a walk finds it"),
    (capabilities::IPC_LOCK, "keep its memory from being paged out"),
    (capabilities::SYS_NICE, "run before others when everything waits"),
    (Capability::CAP_SETPCAP, "give up all the others for good"),
];

impl Facts {
    fn gather(configuration: &Configuration) -> Self {
        let held = capabilities::held().unwrap_or_default();
        let mode = CgroupMode::detect();
        let cgroup = some_cgroup(mode.unified().unwrap_or(CGROUP_ROOT.as_ref()));
        Self {
            kernel: KernelFacts::gather(),
            mode,
            files: cgroup.map(|path| (path.join("cgroup.kill").exists(), path.join("cgroup.freeze").exists())),
            release: release(),
            held: CAPABILITIES.iter().map(|(capability, _)| *capability).filter(|it| held.contains(it)).collect(),
            lockable: getrlimit(Resource::Memlock).current.map(Bytes),
            real_time: getrlimit(Resource::Rtprio).current,
            run_times: held.contains(&Capability::CAP_SYS_ADMIN)
                || std::fs::read_to_string(RUN_TIMES).is_ok_and(|text| text.trim() == "1"),
            swap: MemInfo::open()
                .ok()
                .and_then(|file| file.read().ok())
                .map(|reading| (reading.swap_total, reading.swap_free)),
            peers: peers(),
            other_acts: is_locked(MACHINE.as_ref()),
            wish: configuration.machine.source,
            in_kernel: configuration.machine.brake.in_kernel.len(),
        }
    }

    fn holds(&self, capability: Capability) -> bool {
        self.held.contains(&capability)
    }
}

/// Asks the kernel to take the memory of this process, which it refuses: this process is not dying. What cannot do it
/// at all says so in another way.
fn release() -> Result<(), String> {
    let own = process::open(rustix::process::getpid()).map_err(|errno| errno.to_string())?;
    match process::release(own) {
        Released::Refused(errno) => Err(errno.to_string()),
        Released::Yes | Released::Gone | Released::Busy | Released::NotDying => Ok(()),
    }
}

/// Whether somebody holds the lock at `path`; `None` where that cannot be seen. The lock is not tried: for that moment
/// an agent that starts would find it taken.
fn is_locked(path: &Path) -> Option<bool> {
    match std::fs::metadata(path) {
        Ok(file) => Some(procfs::locks().ok()?.iter().any(|lock| {
            let device = rustix::fs::makedev(lock.devmaj, lock.devmin);
            (&lock.lock_type, device, lock.inode) == (&LockType::FLock, file.dev(), file.ino())
        })),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(false),
        Err(_) => None,
    }
}

/// A cgroup below the root of version 2, to see which files this kernel gives one.
fn some_cgroup(root: &Path) -> Option<PathBuf> {
    let own = process::cgroup_path(None).filter(|path| !path.is_empty());
    let own = own.map(|path| root.join(OsStr::from_bytes(&path))).filter(|path| path.join("cgroup.procs").exists());
    own.or_else(|| {
        let entries = std::fs::read_dir(root).ok()?.flatten();
        entries.map(|entry| entry.path()).find(|path| path.join("cgroup.procs").exists())
    })
}

fn rows(facts: &Facts) -> Vec<Row> {
    let mut rows = vec![cgroup_row(&facts.mode)];
    rows.push(row(
        "memory controller",
        facts.kernel.memory_controller,
        if facts.kernel.memory_controller { "on" } else { "not on the unified hierarchy" },
        "no workload has a usage of its own, so nobody can be chosen: remove cgroup_disable=memory from the kernel's \
         command line, or boot with systemd.unified_cgroup_hierarchy=1",
    ));
    if let Some((kill, freeze)) = facts.files {
        let advice = "processes are killed one by one, and one that forks may escape: Linux 5.14 has it";
        rows.push(row("cgroup.kill", kill, there(kill), advice));
        let advice = "what grows is not held while deciding: Linux 5.2 has it";
        rows.push(row("cgroup.freeze", freeze, there(freeze), advice));
    }
    let advice = "a victim's memory is back only when it has ended by itself: Linux 5.15 has it";
    let found = facts.release.clone().err().unwrap_or_else(|| there(true).into());
    rows.push(row("process_mrelease", facts.release.is_ok(), found, advice));
    rows.extend(kernel_rows(&facts.kernel));
    rows.extend(hook_rows(&facts.kernel));
    let source = source(facts);
    rows.push(kernel_brake_row(facts, source));
    rows.extend(own_rows(facts));
    let swap = match facts.swap {
        None => "cannot be read".to_owned(),
        Some((Bytes::ZERO, _)) => "none".to_owned(),
        Some((total, free)) => {
            format!("{} MiB, {} MiB of it free; not part of what is available", mib(total), mib(free))
        }
    };
    rows.push(row("swap", facts.swap.is_some(), swap, "what is swapped out is not counted: give it /proc/meminfo"));
    for Peer { name, pid } in &facts.peers {
        let advice = "it kills by its own rules for the same reason: run one of the two";
        rows.push(row("other OOM daemon", false, format!("{name} runs as process {}", pid.as_raw_nonzero()), advice));
    }
    if facts.peers.is_empty() {
        rows.push(row("other OOM daemon", true, "none", ""));
    }
    let advice = match facts.other_acts {
        None => "whether this one would act or shadow is not known: run as root",
        Some(_) => "this one would shadow it, and act once that is gone",
    };
    let found = match facts.other_acts {
        Some(false) => "none",
        Some(true) => "another plimsoll acts",
        None => "cannot be seen",
    };
    rows.push(row("other agent", facts.other_acts == Some(false), found, advice));
    rows.push(source_row(facts, source));
    rows
}

fn there(good: bool) -> &'static str {
    if good { "there" } else { "missing" }
}

fn mib(bytes: Bytes) -> u64 {
    bytes.0 >> 20
}

/// What this process may do. A service of the same machine may do more, or less.
fn own_rows(facts: &Facts) -> Vec<Row> {
    let mut rows: Vec<Row> = CAPABILITIES
        .iter()
        .map(|(capability, action)| {
            let held = facts.holds(*capability);
            let found = format!("{}, to {action}", if held { "held" } else { "not held" });
            row(&capability.to_string(), held, found, "this process cannot: run as root or with the shipped unit")
        })
        .collect();
    let unlimited = facts.lockable.is_none() || facts.holds(capabilities::SYS_RESOURCE);
    let found = match facts.lockable {
        None => "without limit".into(),
        Some(limit) if unlimited => format!("{} MiB, which the agent raises", mib(limit)),
        Some(limit) => format!("{} MiB", mib(limit)),
    };
    let advice = "only what the agent has at its start is locked, if anything: LimitMEMLOCK=infinity";
    rows.push(row("locked memory", unlimited, found, advice));
    let real_time = facts.holds(capabilities::SYS_NICE) || facts.real_time.is_none_or(|limit| limit > 0);
    let found = if real_time { "may be taken" } else { "refused" };
    let advice = "the watching thread waits its turn like others: give CAP_SYS_NICE, or LimitRTPRIO=1";
    rows.push(row("real-time priority", real_time, found, advice));
    let found = if facts.run_times { "told, for every BPF program of the machine" } else { "not told" };
    let advice = "the metrics have no run time and run count of programs: the kernel lets only CAP_SYS_ADMIN turn them \
                  on, which the agent does not ask for; sysctl kernel.bpf_stats_enabled=1 does so for all";
    rows.push(row("program run times", facts.run_times, found, advice));
    rows
}

/// Off is as good as possible: it is stopping processes that somebody has to ask for.
fn kernel_brake_row(facts: &Facts, source: Option<Kind>) -> Row {
    let possible = source == Some(Kind::Ebpf) && facts.kernel.bpffs;
    let found = match (facts.in_kernel, possible) {
        (0, true) => "possible; off, for machine.brake.inKernel names nothing".to_owned(),
        (0, false) => "not possible, and not asked for".to_owned(),
        (slices, true) => format!("on for {slices} patterns"),
        (slices, false) => format!("not possible, but asked for by {slices} patterns"),
    };
    let advice = "what grows is held only once the agent is awake: it needs the eBPF source, and bpffs at /sys/fs/bpf";
    row("in-kernel brake", possible, found, advice)
}

fn cgroup_row(mode: &CgroupMode) -> Row {
    match mode {
        CgroupMode::Unified => row("cgroups", true, "version 2", ""),
        CgroupMode::Hybrid { unified } => row(
            "cgroups",
            false,
            format!("hybrid: version 1 with version 2 at {}", unified.display()),
            "this machine can only be watched; nobody is stopped: boot with systemd.unified_cgroup_hierarchy=1",
        ),
        CgroupMode::Legacy | CgroupMode::Absent => Row {
            name: "cgroups".into(),
            state: State::Fatal,
            found: if *mode == CgroupMode::Legacy { "version 1 only" } else { "not mounted" }.into(),
            advice: mode.refusal().unwrap_or_default().into(),
        },
    }
}

fn kernel_rows(kernel: &KernelFacts) -> Vec<Row> {
    let lockdown = kernel.lockdown.as_deref().unwrap_or("none");
    let symbols = format!(
        "{}, kernel.kptr_restrict {}",
        if kernel.symbols_visible { "visible" } else { "hidden" },
        kernel.kptr_restrict.map_or_else(|| "unknown".into(), |value| value.to_string())
    );
    let programs = |result: &Result<bool, String>| match result {
        Ok(good) => (*good, there(*good).to_owned()),
        Err(why) => (false, why.clone()),
    };
    let (trampolines, trampolines_found) = programs(&kernel.trampolines);
    let (tracepoints, tracepoints_found) = programs(&kernel.raw_tracepoints);
    let (kprobes, kprobes_found) = programs(&kernel.kprobe_programs);
    let btf = kernel.btf.as_ref().err().map(ToString::to_string);
    vec![
        row("kernel", true, kernel.release.clone(), ""),
        row(
            "pressure (PSI)",
            kernel.psi,
            there(kernel.psi),
            "stall is not seen, and the second-best source is gone: boot with psi=1",
        ),
        row(
            "BTF",
            btf.is_none(),
            btf.unwrap_or_else(|| "there".into()),
            "no programs in the kernel: it must be built with CONFIG_DEBUG_INFO_BTF",
        ),
        row(
            "kernel symbols",
            kernel.symbols_visible,
            symbols,
            "no line in the kernel: set kernel.kptr_restrict to 1 or 0, and give CAP_SYSLOG",
        ),
        row(
            "lockdown",
            lockdown != CONFIDENTIALITY,
            lockdown,
            "confidentiality forbids programs that read the kernel's memory: boot with lockdown=integrity or without",
        ),
        row(
            "bpffs",
            kernel.bpffs,
            there(kernel.bpffs),
            "no in-kernel brake, for what it stops could not be undone: mount bpffs at /sys/fs/bpf",
        ),
        row("fentry programs", trampolines, trampolines_found, "kprobes carry what they can; some hooks are left out"),
        row("tracepoint programs", tracepoints, tracepoints_found, "hooks on tracepoints are left out"),
        row("kprobe programs", kprobes, kprobes_found, "without fentry programs there is no eBPF source"),
    ]
}

fn hook_rows(kernel: &KernelFacts) -> Vec<Row> {
    let rows = rules::plan(kernel).into_iter().map(|rules::Planned { family, choices, reason }| {
        let usable = choices.iter().find(|choice| refused(kernel, choice).is_none());
        let found = match (usable, choices.first()) {
            (Some(choice), _) => {
                let attached: Vec<String> =
                    choice.iter().map(|it| format!("{} {}", it.attach_type.name(), it.target)).collect();
                attached.join(", ")
            }
            (None, Some(choice)) => refused(kernel, choice).unwrap_or_default(),
            (None, None) => reason.unwrap_or_else(|| "cannot be attached".into()),
        };
        row(&format!("hook {}", family.name), usable.is_some(), found, family.degrades)
    });
    rows.collect()
}

/// Why a hook's programs cannot be loaded, as far as one program of each type tells it; `None` where they can.
fn refused(kernel: &KernelFacts, choice: &[hooks::Attachment]) -> Option<String> {
    choice.iter().find_map(|it| match kernel.programs(it.attach_type) {
        Ok(true) => None,
        Ok(false) => Some(format!("this kernel cannot attach {} programs", it.attach_type.name())),
        Err(why) => Some(why.clone()),
    })
}

/// What the ladder would come to, as far as can be said without starting it; `None` where the only source that is asked
/// for cannot stand.
fn source(facts: &Facts) -> Option<Kind> {
    let Facts { kernel, wish, .. } = facts;
    let threshold = rules::plan(kernel).into_iter().any(|planned| {
        planned.family.name == hooks::THRESHOLD
            && planned.choices.iter().any(|choice| refused(kernel, choice).is_none())
    });
    let allowed = kernel.lockdown.as_deref() != Some(CONFIDENTIALITY)
        && facts.holds(capabilities::BPF)
        && facts.holds(capabilities::PERFMON);
    match wish {
        SourceChoice::Auto | SourceChoice::Ebpf if threshold && allowed => Some(Kind::Ebpf),
        SourceChoice::Auto | SourceChoice::Psi if kernel.psi => Some(Kind::PsiTrigger),
        SourceChoice::Auto | SourceChoice::Poll => Some(Kind::Polling),
        SourceChoice::Ebpf | SourceChoice::Psi => None,
    }
}

fn source_row(facts: &Facts, source: Option<Kind>) -> Row {
    let name = "source";
    match (source, facts.wish) {
        (Some(kind), SourceChoice::Auto) => {
            let advice = "crossings are seen later than they could be; the rows above say why";
            row(name, kind == Kind::Ebpf, format!("`run` would watch by {kind}"), advice)
        }
        (Some(kind), SourceChoice::Ebpf | SourceChoice::Psi | SourceChoice::Poll) => {
            let advice = "crossings are seen later than they could be: with machine.source auto the best way is taken";
            row(name, kind == Kind::Ebpf, format!("`run` would watch by {kind}, as the configuration says"), advice)
        }
        (None, _) => Row {
            name: name.into(),
            state: State::Fatal,
            found: "the only source that the configuration allows cannot be had".into(),
            advice: "`run` could not start: set machine.source to auto, or see the rows above".into(),
        },
    }
}

fn text(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Row { name, state, found, advice } in rows {
        let mark = match state {
            State::Ok => "ok      ",
            State::Degraded => "degraded",
            State::Fatal => "cannot  ",
        };
        // Writing into a String does not fail.
        let _ = writeln!(text, "{mark}  {name:width$}  {found}");
        if !advice.is_empty() {
            let _ = writeln!(text, "          {:width$}  -> {advice}", "");
        }
    }
    text
}

fn code(rows: &[Row]) -> u8 {
    match rows.iter().map(|row| row.state).max() {
        Some(State::Fatal) => CANNOT,
        Some(State::Degraded) => DEGRADED,
        Some(State::Ok) | None => 0,
    }
}

/// Checks, prints, and gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    let configuration = crate::supervisor::configuration(&arguments.options)?;
    let rows = rows(&Facts::gather(&configuration));
    match arguments.output {
        Output::Text => crate::log::print(&text(&rows)),
        Output::Json => {
            crate::log::print(&format!("{}\n", serde_json::json!({ "code": code(&rows), "rows": rows })));
        }
    }
    Ok(code(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with everything in order.
    fn good() -> Facts {
        let targets = |typed: bool| {
            hooks::FAMILIES
                .iter()
                .flat_map(|family| family.choices.iter().copied().flatten())
                .filter(move |it| (it.attach_type == hooks::AttachType::Tracepoint) == typed)
                .map(|it| (it.target, true))
                .collect()
        };
        let kernel = KernelFacts {
            release: "6.12".into(),
            btf: Ok(()),
            functions: targets(false),
            tracepoints: targets(true),
            missing_members: Vec::new(),
            threshold_blind: None,
            task_count: true,
            symbols_visible: true,
            kptr_restrict: Some(0),
            lockdown: None,
            psi: true,
            memory_controller: true,
            bpffs: true,
            trampolines: Ok(true),
            raw_tracepoints: Ok(true),
            kprobe_programs: Ok(true),
        };
        Facts {
            kernel,
            mode: CgroupMode::Unified,
            files: Some((true, true)),
            release: Ok(()),
            held: CAPABILITIES.iter().map(|(capability, _)| *capability).collect(),
            lockable: Some(Bytes::mib(8)),
            real_time: Some(0),
            run_times: true,
            swap: Some((Bytes::ZERO, Bytes::ZERO)),
            peers: Vec::new(),
            other_acts: Some(false),
            wish: SourceChoice::Auto,
            in_kernel: 0,
        }
    }

    /// The rows that are not as they should be.
    fn troubles(facts: &Facts) -> Vec<String> {
        let rows = rows(facts);
        assert!(rows.iter().all(|row| (row.state == State::Ok) == row.advice.is_empty()), "{rows:?}");
        rows.into_iter().filter(|row| row.state != State::Ok).map(|row| row.name).collect()
    }

    fn without(facts: &mut Facts, capability: Capability) {
        facts.held.retain(|held| *held != capability);
    }

    #[test]
    fn where_everything_is_there_nothing_is_said_against_it() {
        assert_eq!(troubles(&good()), [""; 0]);
        assert_eq!(code(&rows(&good())), 0);
        let brake = Facts { in_kernel: 2, ..good() };
        assert_eq!(troubles(&brake), [""; 0]);
    }

    #[test]
    fn each_thing_that_is_missing_is_a_row_with_what_follows() {
        type Break = fn(&mut Facts);
        let lower: &[&str] = &["in-kernel brake", "source"];
        let table: [(&[&str], Break); 23] = [
            (&["memory controller"], |facts| facts.kernel.memory_controller = false),
            (&["cgroup.kill"], |facts| facts.files = Some((false, true))),
            (&["cgroup.freeze"], |facts| facts.files = Some((true, false))),
            (&["process_mrelease"], |facts| facts.release = Err("ENOSYS".into())),
            (&["pressure (PSI)"], |facts| facts.kernel.psi = false),
            (&["kernel symbols", "hook threshold", "hook tasks"], |facts| {
                facts.kernel.symbols_visible = false;
                facts.kernel.kptr_restrict = Some(2);
                facts.kernel.threshold_blind = Some("hidden".into());
                facts.kernel.task_count = false;
            }),
            (&["lockdown"], |facts| facts.kernel.lockdown = Some("confidentiality".into())),
            (&["bpffs", "in-kernel brake"], |facts| facts.kernel.bpffs = false),
            (&["hook oom"], |facts| facts.kernel.missing_members.push("OC_CHOSEN")),
            (&["cgroups"], |facts| facts.mode = CgroupMode::Hybrid { unified: "/sys/fs/cgroup/unified".into() }),
            (&["CAP_BPF"], |facts| without(facts, capabilities::BPF)),
            (&["CAP_PERFMON"], |facts| without(facts, capabilities::PERFMON)),
            (&["CAP_KILL"], |facts| without(facts, capabilities::KILL)),
            (&["CAP_SYS_RESOURCE", "locked memory"], |facts| without(facts, capabilities::SYS_RESOURCE)),
            (&["CAP_SYS_NICE", "real-time priority"], |facts| without(facts, capabilities::SYS_NICE)),
            (&["program run times"], |facts| facts.run_times = false),
            (&["swap"], |facts| facts.swap = None),
            (&["other OOM daemon"], |facts| {
                let pid = process::Pid::from_raw(7).expect("not zero");
                facts.peers = vec![Peer { name: "earlyoom", pid }];
            }),
            (&["other agent"], |facts| facts.other_acts = Some(true)),
            (&["other agent"], |facts| facts.other_acts = None),
            (&["in-kernel brake", "source"], |facts| facts.wish = SourceChoice::Psi),
            (&["fentry programs", "hook stall"], |facts| facts.kernel.trampolines = Ok(false)),
            (&["tracepoint programs", "hook kswapd", "hook direct reclaim", "hook tasks", "hook cgroups"], |facts| {
                facts.kernel.raw_tracepoints = Ok(false);
            }),
        ];
        let without_ebpf = ["kernel symbols", "lockdown", "CAP_BPF", "CAP_PERFMON"];
        for (index, (expected, spoil)) in table.into_iter().enumerate() {
            let mut facts = good();
            spoil(&mut facts);
            let mut expected = expected.to_vec();
            if without_ebpf.contains(&expected[0]) {
                expected.extend(lower);
            }
            let (mut expected, mut found) = (expected, troubles(&facts));
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, expected, "row {index}");
            assert_eq!(code(&rows(&facts)), DEGRADED, "row {index}");
        }
    }

    #[test]
    fn without_type_information_or_programs_there_is_no_hook() {
        let mut facts = good();
        facts.kernel.btf = plimsoll_sense::btf::Btf::parse(Vec::new()).map(drop);
        let no_types = troubles(&facts);
        let mut facts = good();
        facts.kernel.trampolines = Err("not permitted".into());
        facts.kernel.raw_tracepoints = Err("not permitted".into());
        facts.kernel.kprobe_programs = Err("not permitted".into());
        let no_programs = troubles(&facts);
        for found in [no_types, no_programs] {
            for family in hooks::FAMILIES {
                assert!(found.contains(&format!("hook {}", family.name)), "{found:?}");
            }
            assert!(found.contains(&"source".to_owned()), "{found:?}");
        }
    }

    #[test]
    fn the_source_is_the_best_that_stands_and_the_only_one_that_is_asked_for() {
        for (ebpf, psi, wish, expected) in [
            (true, true, SourceChoice::Auto, Some(Kind::Ebpf)),
            (false, true, SourceChoice::Auto, Some(Kind::PsiTrigger)),
            (false, false, SourceChoice::Auto, Some(Kind::Polling)),
            (true, true, SourceChoice::Psi, Some(Kind::PsiTrigger)),
            (true, true, SourceChoice::Poll, Some(Kind::Polling)),
            (true, false, SourceChoice::Psi, None),
            (false, true, SourceChoice::Ebpf, None),
        ] {
            let mut facts = Facts { wish, ..good() };
            if !ebpf {
                without(&mut facts, capabilities::BPF);
            }
            facts.kernel.psi = psi;
            assert_eq!(source(&facts), expected, "{ebpf} {psi} {wish:?}");
            assert_eq!(code(&rows(&facts)) == CANNOT, expected.is_none(), "{ebpf} {psi} {wish:?}");
        }
        // A kprobe carries the line where there are no trampolines.
        let mut facts = good();
        facts.kernel.trampolines = Ok(false);
        assert_eq!(source(&facts), Some(Kind::Ebpf));
    }

    #[test]
    fn what_cannot_be_served_says_so() {
        for (mode, says) in [(CgroupMode::Legacy, "version 1 only"), (CgroupMode::Absent, "not mounted")] {
            let rows = rows(&Facts { mode, ..good() });
            assert_eq!(code(&rows), CANNOT);
            let text = text(&rows);
            assert!(text.lines().any(|line| line.starts_with("cannot    cgroups ") && line.ends_with(says)), "{text}");
        }
    }

    #[test]
    fn a_lock_is_seen_without_being_tried() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        assert_eq!(is_locked(file.path()), Some(false));
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("nobody else knows it");
        assert_eq!(is_locked(file.path()), Some(true));
        let other = tempfile::NamedTempFile::new().expect("a temporary file");
        assert_eq!(is_locked(other.path()), Some(false));
        assert_eq!(is_locked(Path::new("/proc/self/none/lock")), Some(false));
    }
}
