//! `plimsoll check`: what this machine can and cannot do, why, and what is lost. Changes nothing.

mod cluster;
mod facts;
mod journal;
mod node;
mod pod_facts;
mod pods;
mod slices;
mod static_pods;
mod workloads;

use std::fmt::Write as _;

use plimsoll_config::SourceChoice;
use plimsoll_node::capabilities;
use plimsoll_node::namespaces;
use plimsoll_node::os::CgroupMode;
use plimsoll_node::peers::Peer;
use plimsoll_report::text::printable;
use plimsoll_sense::probe::KernelFacts;
use plimsoll_sense::{Kind, hooks, rules};
use plimsoll_units::{Bytes, counted};
use serde::Serialize;

use crate::kill_switch::Found;
use crate::options::{Options, Output};
use crate::state_directory::StateDirectory;
use facts::{CAPABILITIES, Facts};

/// Exit codes, as `--help` has them.
const CODES: &str = "Exit codes: 0 everything that the agent can use is there; 2 wrong arguments or configuration; \
3 this machine cannot be served; 4 the agent runs, with less than it could use.";
/// The lockdown mode in which no program may read the kernel's memory.
const CONFIDENTIALITY: &str = "confidentiality";
const CANNOT: u8 = 3;
const DEGRADED: u8 = 4;
/// Characters of what a row takes from elsewhere. An answer may have a mebibyte.
const ROW_CHARACTERS: usize = 1000;

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

/// The state of one row.
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

/// What is taken from elsewhere, printable, and cut where it is long.
fn bounded(text: &str) -> String {
    printable(text).chars().take(ROW_CHARACTERS).collect()
}

fn rows(facts: &Facts) -> Vec<Row> {
    let mut rows = vec![cgroup_row(&facts.mode)];
    rows.push(row(
        "memory controller",
        facts.kernel.memory_controller,
        if facts.kernel.memory_controller { "on" } else { "not on the unified hierarchy" },
        "no workload has a usage of its own, so none can be evicted: remove cgroup_disable=memory from the kernel's \
         command line, or boot with systemd.unified_cgroup_hierarchy=1",
    ));
    if let Some((kill, freeze)) = facts.files {
        let advice = "processes are killed one by one, and one that forks may escape: Linux 5.14 has it";
        rows.push(row("cgroup.kill", kill, there(kill), advice));
        let advice = "what grows is not frozen while deciding: Linux 5.2 has it";
        rows.push(row("cgroup.freeze", freeze, there(freeze), advice));
    }
    let advice = "a victim's memory is back only when its processes have exited: Linux 5.15 has it";
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
            let zswap = facts.zswap.filter(|(_, uncompressed)| *uncompressed > Bytes::ZERO);
            let zswap = zswap.map_or_else(String::new, |(takes, uncompressed)| {
                format!("; {} MiB are compressed to {} MiB of memory", mib(uncompressed), mib(takes))
            });
            format!("{} MiB, {} MiB of it free{zswap}; not part of what is available", mib(total), mib(free))
        }
    };
    rows.push(row("swap", facts.swap.is_some(), swap, "what is swapped out is not counted: give it /proc/meminfo"));
    rows.push(counters_row(facts));
    for Peer { name, pid } in &facts.peers {
        let advice = "it kills for the same reason by other rules: run one of the two";
        rows.push(row("other OOM daemon", false, format!("{name} runs as process {}", pid.as_raw_nonzero()), advice));
    }
    if facts.peers.is_empty() {
        rows.push(row("other OOM daemon", true, "none", ""));
    }
    let advice = match facts.other_acts {
        None if facts.is_root => "whether this one would act or shadow is not known: its lock cannot be read",
        None => "whether this one would act or shadow is not known: run as root",
        Some(_) => "this one would shadow it, and act once that is gone",
    };
    let found = match facts.other_acts {
        Some(false) => "none",
        Some(true) => "another plimsoll acts",
        None => "cannot be seen",
    };
    rows.push(row("other agent", facts.other_acts == Some(false), found, advice));
    rows.push(state_row(&facts.state));
    rows.push(kill_switch_row(facts));
    rows.extend(facts.workloads.iter().flat_map(workloads::rows));
    rows.extend(node::rows(&facts.node));
    rows.extend(facts.known_pods.as_ref().map(pod_facts::pod_facts_row));
    rows.extend(facts.statics.as_ref().map(static_pods::static_pods_row));
    rows.extend(facts.journal.as_ref().map(journal::journal_row));
    rows.extend(facts.cluster.as_ref().map(cluster::cluster_row));
    rows.extend(facts.slices.iter().map(slices::slice_row));
    rows.extend(facts.pods.as_ref().map(pods::pods_row));
    rows.push(source_row(facts, source));
    rows
}

fn there(good: bool) -> &'static str {
    if good { "there" } else { "missing" }
}

fn mib(bytes: Bytes) -> u64 {
    bytes.0 >> 20
}

fn state_row(state: &StateDirectory) -> Row {
    let found = state.trouble().unwrap_or_else(|| printable(&state.path.display().to_string()));
    let advice = "an undo after the death of all processes, and the next agent, find it there as long as the configured one \
                  can only be read: set machine.stateDirectory, or --state-directory of the unit, to a directory that can be written to";
    row("state directory", state.read_only.is_none(), found, advice)
}

fn kill_switch_row(facts: &Facts) -> Row {
    let name = "kill switch";
    let Some((path, found)) = &facts.kill_switch else { return row(name, true, "none is configured", "") };
    let path = path.display();
    match found {
        Found::Absent if let Some(why) = &facts.kill_switch_distrust => {
            let found = format!("{path} is not there, and would not count: {why}");
            row(name, false, found, "what is put there stops nothing")
        }
        Found::Absent => row(name, true, format!("{path} is not there"), ""),
        Found::Thrown => {
            let advice = "nothing is evicted, frozen, reclaimed or removed, only reported, until it is removed";
            row(name, false, format!("{path} is there"), advice)
        }
        Found::Ignored(why) => row(name, false, format!("{path}: {why}"), "what is there stops nothing"),
    }
}

/// What this process may do. A service of the same machine may do more, or less.
fn own_rows(facts: &Facts) -> Vec<Row> {
    let mut rows: Vec<Row> = CAPABILITIES
        .iter()
        .map(|(capability, action)| {
            let held = facts.holds(*capability);
            let found = format!("{}, to {action}", if held { "held" } else { "not held" });
            let advice = if facts.is_root {
                "this process cannot, although it is root's: its container or service has to be given it, as the shipped unit is"
            } else {
                "this process cannot: run as root or with the shipped unit"
            };
            row(&capability.to_string(), held, found, advice)
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
    rows
}

/// What the CPUs keep back of the kernel's counters, against the thresholds that are compared with them.
fn counters_row(facts: &Facts) -> Row {
    let name = "memory counters";
    let Some((own, kubelet)) = facts.drift else {
        return row(name, false, "cannot be read", "how far they may be off is not known: give it /proc/zoneinfo");
    };
    let most = own.max(kubelet);
    let good = facts.lowest_threshold.is_none_or(|threshold| threshold > most);
    let found = format!("off by at most {} MiB, by the kubelet's reading {} MiB", mib_up(own), mib_up(kubelet));
    let advice = "the lowest threshold is not above that: near it each decision waits until every CPU has folded in what it \
                  keeps back; raise evictionHard.memory.available above it";
    row(name, good, found, advice)
}

/// In MiB, rounded up.
fn mib_up(bytes: Bytes) -> u64 {
    bytes.0.div_ceil(1 << 20)
}

/// Off is in order too: the configuration has to name what may be stopped.
fn kernel_brake_row(facts: &Facts, source: Option<Kind>) -> Row {
    let hidden = facts.hidden_processes.as_deref();
    let possible = source == Some(Kind::Ebpf) && facts.kernel.bpffs && hidden.is_none();
    let found = match (facts.in_kernel, possible) {
        (0, true) => "possible; off, because machine.brake.inKernel names nothing".to_owned(),
        (0, false) => "not possible, and not asked for".to_owned(),
        (slices, true) => format!("on for {}", counted(slices, "pattern", "patterns")),
        (slices, false) => {
            format!("not possible, but asked for by {}", counted(slices, "pattern", "patterns"))
        }
    };
    let why = hidden.unwrap_or("it needs the eBPF source, and bpffs at /sys/fs/bpf");
    row("in-kernel brake", possible, found, &format!("what grows is stopped only once the agent is awake: {why}"))
}

fn cgroup_row(mode: &CgroupMode) -> Row {
    match mode {
        CgroupMode::Unified => row("cgroups", true, "version 2", ""),
        CgroupMode::Hybrid { unified } => row(
            "cgroups",
            false,
            format!("hybrid: version 1 with version 2 at {}", unified.display()),
            "this machine can only be watched; no workload is evicted: boot with systemd.unified_cgroup_hierarchy=1",
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
    let (symbols, symbols_advice) = match (kernel.symbols_listed, kernel.symbols_visible) {
        (_, true) => ("visible", ""),
        (true, false) => {
            ("hidden", "no threshold in the kernel: set kernel.kptr_restrict to 1 or 0, and give CAP_SYSLOG")
        }
        // Its variables are not in the list, whatever may be seen of it.
        (false, false) => ("not listed", "no threshold in the kernel: it must be built with CONFIG_KALLSYMS_ALL"),
    };
    let symbols = format!(
        "{symbols}, kernel.kptr_restrict {}",
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
        row("kernel symbols", kernel.symbols_visible, symbols, symbols_advice),
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

/// Why a hook's programs cannot be loaded, as far as the facts that could not be read show it; `None` where they can.
fn refused(kernel: &KernelFacts, choice: &[hooks::Attachment]) -> Option<String> {
    let unknown = choice.iter().find_map(|it| kernel.programs(it.attach_type).as_ref().err());
    unknown.or(kernel.refused.as_ref().err()).cloned()
}

/// The source that `run` would take, as far as is known without starting one; `None` where the only source that is
/// allowed cannot work.
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
            let advice =
                "crossings are seen later than they could be: with machine.source auto the best source is taken";
            row(name, kind == Kind::Ebpf, format!("`run` would watch by {kind}, as the configuration says"), advice)
        }
        (None, _) => Row {
            name: name.into(),
            state: State::Fatal,
            found: "the only source that the configuration allows does not work here".into(),
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
    let configuration = crate::supervisor::plausible_configuration(&arguments.options)?;
    for warning in &configuration.warnings {
        crate::log::complain(&format!("warning: {warning}"));
    }
    // Where it is in a pod, its own files are out of sight from then on.
    let account = configuration.machine.cluster.in_cluster.then(crate::supervisor::service_account);
    let entered = namespaces::enter_cgroups().and_then(|mounts| mounts.map_or(Ok(()), namespaces::Mounts::enter));
    let mut rows = rows(&Facts::gather(&configuration, arguments.options.names_kubelet(), account));
    rows.extend(entered.err().map(|error| Row {
        name: "namespaces".into(),
        state: State::Fatal,
        found: "a container's".into(),
        advice: error.to_string(),
    }));
    match arguments.output {
        Output::Text => crate::log::print(&text(&rows)),
        Output::Json => {
            crate::log::print(&format!("{}\n", serde_json::json!({ "code": code(&rows), "rows": rows })));
        }
    }
    Ok(code(&rows))
}

#[cfg(test)]
mod tests;
