//! `plimsoll check`: what this machine can and cannot do, why, and what is lost. Changes nothing.

use std::fmt::Write as _;
use std::path::Path;

use plimsoll_node::os::CgroupMode;
use plimsoll_node::peers::{Peer, peers};
use plimsoll_node::{capabilities, process};
use plimsoll_sense::probe::KernelFacts;
use plimsoll_sense::{Kind, rules};
use plimsoll_state::ActingLock;
use serde::Serialize;

use crate::log::escaped;
use crate::options::Options;

/// Exit codes, as `--help` has them.
const CODES: &str = "Exit codes: 0 everything that the agent can use is there; 2 wrong arguments or configuration; \
3 this machine cannot be served; 4 the agent runs, with less than it could use.";
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
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
    missing_capabilities: Vec<(&'static str, &'static str)>,
    peers: Vec<Peer>,
    other_acts: Option<bool>,
}

/// Each capability with what the agent does with it.
const CAPABILITIES: [(capabilities::Capability, &str, &str); 8] = [
    (capabilities::BPF, "CAP_BPF", "load the programs in the kernel"),
    (capabilities::PERFMON, "CAP_PERFMON", "attach them"),
    (capabilities::SYSLOG, "CAP_SYSLOG", "see the addresses of the kernel's counters"),
    (capabilities::SYS_RESOURCE, "CAP_SYS_RESOURCE", "be the last that the OOM killer thinks of, and lock memory"),
    (capabilities::KILL, "CAP_KILL", "continue and kill processes of other users"),
    (capabilities::DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "freeze and kill cgroups that belong to users"),
    (capabilities::IPC_LOCK, "CAP_IPC_LOCK", "keep its memory from being paged out"),
    (capabilities::SYS_NICE, "CAP_SYS_NICE", "run before others when everything waits"),
];

impl Facts {
    fn gather(state_directory: &Path) -> Self {
        let held = capabilities::held().unwrap_or_default();
        let lock = state_directory.join("lock");
        Self {
            kernel: KernelFacts::gather(),
            mode: CgroupMode::detect(),
            files: some_cgroup().map(|path| (path.join("cgroup.kill").exists(), path.join("cgroup.freeze").exists())),
            missing_capabilities: CAPABILITIES
                .into_iter()
                .filter(|(capability, ..)| !held.contains(capability))
                .map(|(_, name, action)| (name, action))
                .collect(),
            peers: peers(),
            // Looked at only where it is: nothing is made here.
            other_acts: if lock.exists() {
                ActingLock::try_acquire(&lock).ok().map(|free| free.is_none())
            } else {
                Some(false)
            },
        }
    }
}

/// A cgroup below the root, to see which files this kernel gives one.
fn some_cgroup() -> Option<std::path::PathBuf> {
    let own = process::cgroup_path(None).filter(|path| !path.is_empty());
    let own =
        own.map(|path| Path::new(plimsoll_node::os::CGROUP_ROOT).join(escaped(&path))).filter(|path| path.is_dir());
    own.or_else(|| {
        let entries = std::fs::read_dir(plimsoll_node::os::CGROUP_ROOT).ok()?.flatten();
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
        rows.push(row("cgroup.kill", kill, if kill { "there" } else { "missing" }, advice));
        let advice = "what grows is not held while deciding: Linux 5.2 has it";
        rows.push(row("cgroup.freeze", freeze, if freeze { "there" } else { "missing" }, advice));
    }
    rows.extend(kernel_rows(&facts.kernel));
    rows.extend(hook_rows(&facts.kernel));
    for (name, action) in &facts.missing_capabilities {
        rows.push(row(name, false, "not held", &format!("needed to {action}: run as root or with the shipped unit")));
    }
    for Peer { name, pid } in &facts.peers {
        let advice = "it kills by its own rules for the same reason: run one of the two";
        rows.push(row("other OOM daemon", false, format!("{name} runs as process {}", pid.as_raw_nonzero()), advice));
    }
    let advice = "this one would shadow it, and act once that is gone";
    let found = match facts.other_acts {
        Some(false) => "none",
        Some(true) => "another plimsoll acts",
        None => "cannot be seen",
    };
    rows.push(row("other agent", facts.other_acts == Some(false), found, advice));
    let source = source(&facts.kernel);
    let advice = "crossings are seen later than they could be; the rows above say why";
    rows.push(row("source", source == Kind::Ebpf, format!("`run` would watch by {source}"), advice));
    rows
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
    let there = |good: bool| if good { "there" } else { "missing" };
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
    let (tracing, tracing_found) = programs(&kernel.tracing_programs);
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
            lockdown != "confidentiality",
            lockdown,
            "confidentiality forbids programs that read the kernel's memory: boot with lockdown=integrity or without",
        ),
        row(
            "bpffs",
            kernel.bpffs,
            there(kernel.bpffs),
            "no in-kernel brake, for what it stops could not be undone: mount bpffs at /sys/fs/bpf",
        ),
        row("tracing programs", tracing, tracing_found, "kprobes carry what they can; some hooks are left out"),
        row("kprobe programs", kprobes, kprobes_found, "without tracing programs there is no eBPF source"),
    ]
}

fn hook_rows(kernel: &KernelFacts) -> Vec<Row> {
    let planned = rules::plan(kernel);
    let rows = planned.into_iter().map(|planned| {
        let found = match (planned.ways.first(), &planned.reason) {
            (Some(way), _) => {
                let hung: Vec<String> = way.iter().map(|it| format!("{} {}", it.way.name(), it.target)).collect();
                hung.join(", ")
            }
            (None, reason) => reason.clone().unwrap_or_else(|| "cannot be attached".into()),
        };
        row(&format!("hook {}", planned.family.name), !planned.ways.is_empty(), found, planned.family.degrades)
    });
    rows.collect()
}

/// What the ladder would come to, as far as can be said without starting it.
fn source(kernel: &KernelFacts) -> Kind {
    let line =
        rules::plan(kernel).into_iter().any(|planned| planned.family.name == rules::LINE && !planned.ways.is_empty());
    match (line, kernel.psi) {
        (true, _) => Kind::Ebpf,
        (false, true) => Kind::PsiTrigger,
        (false, false) => Kind::Polling,
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
    let rows = rows(&Facts::gather(&configuration.state_directory));
    match arguments.output {
        Output::Text => print!("{}", text(&rows)),
        Output::Json => println!("{}", serde_json::json!({ "code": code(&rows), "rows": rows })),
    }
    Ok(code(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This machine's own facts with everything in order, as far as rows look at it.
    fn good() -> Facts {
        let mut kernel = KernelFacts::gather();
        kernel.btf = Ok(());
        kernel.memory_controller = true;
        kernel.psi = true;
        kernel.symbols_visible = true;
        kernel.kptr_restrict = Some(0);
        kernel.lockdown = None;
        kernel.bpffs = true;
        kernel.tracing_programs = Ok(true);
        kernel.kprobe_programs = Ok(true);
        Facts {
            kernel,
            mode: CgroupMode::Unified,
            files: Some((true, true)),
            missing_capabilities: Vec::new(),
            peers: Vec::new(),
            other_acts: Some(false),
        }
    }

    fn state(facts: &Facts, name: &str) -> State {
        let rows = rows(facts);
        rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name} in {rows:?}")).state
    }

    #[test]
    fn each_thing_that_is_missing_is_a_row_with_advice() {
        type Break = fn(&mut Facts);
        let table: [(&str, Break); 13] = [
            ("memory controller", |facts| facts.kernel.memory_controller = false),
            ("cgroup.kill", |facts| facts.files = Some((false, true))),
            ("cgroup.freeze", |facts| facts.files = Some((true, false))),
            ("pressure (PSI)", |facts| facts.kernel.psi = false),
            ("BTF", |facts| facts.kernel.btf = plimsoll_sense::btf::Btf::parse(Vec::new()).map(drop)),
            ("kernel symbols", |facts| facts.kernel.symbols_visible = false),
            ("lockdown", |facts| facts.kernel.lockdown = Some("confidentiality".into())),
            ("bpffs", |facts| facts.kernel.bpffs = false),
            ("tracing programs", |facts| facts.kernel.tracing_programs = Err("refused".into())),
            ("cgroups", |facts| facts.mode = CgroupMode::Hybrid { unified: "/sys/fs/cgroup/unified".into() }),
            ("CAP_BPF", |facts| facts.missing_capabilities = vec![("CAP_BPF", "load")]),
            ("other OOM daemon", |facts| {
                let pid = process::Pid::from_raw(7).expect("not zero");
                facts.peers = vec![Peer { name: "earlyoom", pid }];
            }),
            ("other agent", |facts| facts.other_acts = Some(true)),
        ];
        for (name, spoil) in table {
            let mut facts = good();
            spoil(&mut facts);
            assert_eq!(state(&facts, name), State::Degraded, "{name}");
            let rows = rows(&facts);
            assert!(rows.iter().all(|row| (row.state == State::Ok) == row.advice.is_empty()), "{rows:?}");
            assert_eq!(code(&rows), DEGRADED);
        }
        for name in ["memory controller", "cgroups", "lockdown", "BTF"] {
            assert_eq!(state(&good(), name), State::Ok, "{name}");
        }
    }

    #[test]
    fn version_1_cannot_be_served() {
        let mut facts = good();
        facts.mode = CgroupMode::Legacy;
        assert_eq!(state(&facts, "cgroups"), State::Fatal);
        assert_eq!(code(&rows(&facts)), CANNOT);
        assert!(text(&rows(&facts)).contains("cannot    cgroups"));
    }
}
