//! `plimsoll explain`: how far this machine is from each line, who would go first and why, and whom the OOM killer would
//! take instead. Decides in shadow over a fresh look; changes nothing.

use std::fmt::Write as _;
use std::path::Path;

use plimsoll_config::Configuration;
use plimsoll_node::meminfo::{MemReading, page_bytes};
use plimsoll_node::os::CgroupMode;
use plimsoll_node::process::cgroup_path;
use plimsoll_policy::kubelet::QosClass;
use plimsoll_policy::oom_score::{Requests, oom_score_adj};
use plimsoll_policy::{Config, Fate, MemoryReading, Plan, State, Threshold, decide, ranking, text};
use plimsoll_replay::trace::Look;
use plimsoll_replay::{machine_candidates, machine_plan, printable};
use plimsoll_units::{Bytes, Pages};
use serde::Serialize;
use serde_json::json;

use crate::observe::{Figures, Observer};
use crate::options::Options;

const CODES: &str = "Exit codes: 0 done; 1 this machine's memory cannot be read; 2 wrong arguments or configuration.";
/// So many of each kind are printed for people.
const MOST: usize = 10;
/// So many of the OOM killer's next ones are told.
const MOST_OOM: usize = 3;
/// Less active cache than this in a cgroup pushes nobody's figure.
const CACHE: Bytes = Bytes::mib(16);

/// What to explain by, and how to print it.
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

/// How far something is from a line; below zero: it is crossed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Distance {
    /// The slice; absent for the machine.
    slice: Option<String>,
    hard: bool,
    line_bytes: Bytes,
    kubelet_bytes: i128,
    honest_bytes: Option<i128>,
}

/// A process that the OOM killer would take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct OomVictim {
    pid: i32,
    name: String,
    cgroup: Option<String>,
    /// The kernel's own figure, or what it comes to where that cannot be read.
    score: i64,
    is_computed: bool,
    resident_bytes: Bytes,
}

/// A cgroup with much page cache in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Cache {
    cgroup: String,
    active_file_bytes: Bytes,
    working_set_bytes: Bytes,
    peak_bytes: Option<Bytes>,
    max_bytes: Option<Bytes>,
    reservation_bytes: Bytes,
}

/// A cgroup next to what is reserved for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Kept {
    cgroup: String,
    /// By what: `memory.low and memory.min`, `systemReserved`, `kubeReserved`.
    by: &'static str,
    reserved_bytes: Bytes,
    working_set_bytes: Bytes,
}

/// What the machine has and what of it is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Capacity {
    #[serde(rename = "capacity_bytes")]
    whole: Bytes,
    /// The capacity less what is reserved and the hard line.
    #[serde(rename = "allocatable_bytes")]
    allocatable: Bytes,
    /// The sum of what workloads were promised by `memory.low` and `memory.min`.
    #[serde(rename = "promised_bytes")]
    promised: Bytes,
}

/// The whole answer.
struct Answer<'a> {
    policy: &'a Config,
    look: Look,
    plan: Plan,
    distances: Vec<Distance>,
    oom: Vec<OomVictim>,
    cache: Vec<Cache>,
    reserved: Vec<Kept>,
    capacity: Capacity,
}

/// Explains, prints, and gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    let configuration = crate::supervisor::configuration(&arguments.options)?;
    let mode = CgroupMode::detect();
    if let Some(sentence) = mode.refusal() {
        eprintln!("plimsoll: no workload can be seen: {sentence}");
    }
    let mut observer = Observer::new(&configuration, mode.unified());
    let Some(reading) = observer.memory() else { anyhow::bail!("cannot read /proc/meminfo") };
    let answer = answer(&configuration, &mut observer, &reading, oom(&reading));
    let printed = match arguments.output {
        Output::Text => answer.text(),
        Output::Json => format!("{}\n", answer.json()),
    };
    crate::log::print(&printed);
    Ok(0)
}

fn answer<'a>(
    configuration: &'a Configuration,
    observer: &mut Observer,
    reading: &MemReading,
    oom: Vec<OomVictim>,
) -> Answer<'a> {
    let policy = &configuration.policy;
    let look = observer.look();
    let candidates = machine_candidates(&look, configuration);
    let observation = plimsoll_policy::Observation {
        taken: look.at_ns,
        memory: look.memory.map(Into::into),
        candidates: &candidates,
        ..plimsoll_policy::Observation::default()
    };
    let mut plan = Plan::with_capacity(policy, candidates.len());
    let mut state = State::with_capacity(policy, candidates.len());
    decide(policy, &mut state, &observation, look.at_ns, &mut plan);
    if plan.ranked.is_empty() {
        let mut shadow = Plan::with_capacity(policy, candidates.len());
        ranking(&observation, &mut shadow);
        plan.ranked = shadow.ranked;
    }
    Answer {
        policy,
        distances: distances(configuration, &look),
        cache: cache(observer, &look),
        reserved: reserved(configuration, observer),
        capacity: capacity(configuration, &look, reading),
        oom,
        look,
        plan,
    }
}

fn distances(configuration: &Configuration, look: &Look) -> Vec<Distance> {
    let of = |slice: Option<&str>, thresholds: &[Threshold], memory: MemoryReading| -> Vec<Distance> {
        let distance = |threshold: &Threshold| {
            let line = threshold.line.of(memory.capacity);
            let from = |available: Bytes| i128::from(available.0) - i128::from(line.0);
            Distance {
                slice: slice.map(str::to_owned),
                hard: threshold.is_hard(),
                line_bytes: line,
                kubelet_bytes: from(memory.kubelet_available),
                honest_bytes: memory.honest_available.map(from),
            }
        };
        thresholds.iter().map(distance).collect()
    };
    let node = look.memory.map(|memory| of(None, &configuration.policy.thresholds, memory.into()));
    let slices = configuration.slices.iter().zip(&configuration.policy.slices).filter_map(|(slice, lines)| {
        let seen = look.slices.iter().find(|seen| seen.path == slice.path.as_str())?;
        let reading = MemoryReading {
            capacity: seen.capacity_bytes,
            kubelet_available: seen.available_bytes,
            honest_available: None,
        };
        Some(of(Some(slice.path.as_str()), &lines.thresholds, reading))
    });
    node.into_iter().chain(slices).flatten().collect()
}

fn cache(observer: &Observer, look: &Look) -> Vec<Cache> {
    let of_workload = |workload: &plimsoll_replay::trace::Workload| {
        let figures = Figures::read(&observer.folder(workload.cgroup.as_bytes())?);
        Some(Cache {
            cgroup: workload.cgroup.clone(),
            active_file_bytes: figures.active_file.filter(|active| *active >= CACHE)?,
            working_set_bytes: figures.working_set()?,
            peak_bytes: figures.peak,
            max_bytes: figures.max,
            reservation_bytes: workload.reservation_bytes,
        })
    };
    let mut cache: Vec<Cache> = look.workloads.iter().filter_map(of_workload).collect();
    cache.sort_by_key(|cache| std::cmp::Reverse(cache.active_file_bytes));
    cache
}

/// Slices at the top of the tree that have something reserved, and what a kubelet's configuration reserves.
fn reserved(configuration: &Configuration, observer: &Observer) -> Vec<Kept> {
    let mut reserved = Vec::new();
    let Some(root) = observer.folder(b"") else { return reserved };
    let mut names: Vec<String> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut add = |cgroup: &str, by: &'static str, bytes: Option<Bytes>| {
        let Some(folder) = observer.folder(cgroup.trim_matches('/').as_bytes()) else { return };
        let figures = Figures::read(&folder);
        let promised = bytes.or(figures.reservation).filter(|bytes| *bytes > Bytes::ZERO);
        if let (Some(reserved_bytes), Some(working_set_bytes)) = (promised, figures.working_set()) {
            reserved.push(Kept { cgroup: cgroup.to_owned(), by, reserved_bytes, working_set_bytes });
        }
    };
    for name in &names {
        add(name, "memory.low and memory.min", None);
    }
    let kubelet = &configuration.kubelet;
    for (by, key, usual, amounts) in [
        ("systemReserved", "systemReservedCgroup", "system.slice", &kubelet.system_reserved),
        ("kubeReserved", "kubeReservedCgroup", "", &kubelet.kube_reserved),
    ] {
        let cgroup = kubelet.settings.scalar(key).map_or(usual, |(path, _)| path);
        let bytes = amounts.get("memory").and_then(plimsoll_config::Quantity::bytes);
        if let (Some(bytes), false) = (bytes, cgroup.is_empty()) {
            add(cgroup, by, Some(bytes));
        }
    }
    reserved
}

fn capacity(configuration: &Configuration, look: &Look, reading: &MemReading) -> Capacity {
    let kubelet = &configuration.kubelet;
    let kept = [&kubelet.kube_reserved, &kubelet.system_reserved].into_iter();
    let kept = kept.filter_map(|amounts| amounts.get("memory")?.bytes()).fold(Bytes::ZERO, Bytes::saturating_add);
    let capacity = look.memory.map_or(reading.total, |memory| memory.capacity_bytes);
    let hard = configuration.policy.thresholds.iter().filter(|threshold| threshold.is_hard());
    let hard = hard.map(|threshold| threshold.line.of(capacity)).max().unwrap_or(Bytes::ZERO);
    let hard = if kubelet.ignore_eviction_for_allocatable { Bytes::ZERO } else { hard };
    // `max` promises all there is.
    let promised = look.workloads.iter().map(|workload| workload.reservation_bytes.min(capacity));
    Capacity {
        whole: capacity,
        allocatable: capacity.saturating_sub(kept).saturating_sub(hard),
        promised: promised.fold(Bytes::ZERO, Bytes::saturating_add),
    }
}

/// Whom the OOM killer would take, by what the kernel says of each process.
fn oom(reading: &MemReading) -> Vec<OomVictim> {
    let total = reading.total.saturating_add(reading.swap_total);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut all: Vec<OomVictim> = pids
        .filter_map(|pid| {
            let folder = Path::new("/proc").join(pid.to_string());
            let cgroup = plimsoll_node::process::Pid::from_raw(pid).and_then(|pid| cgroup_path(Some(pid)));
            oom_of(&folder, pid, cgroup, total)
        })
        .collect();
    all.sort_by_key(|victim| (std::cmp::Reverse((victim.score, victim.resident_bytes)), victim.pid));
    all.truncate(MOST_OOM);
    all
}

/// A process as the OOM killer sees it; `None` for a thread of the kernel, what is gone, and what it never takes.
fn oom_of(folder: &Path, pid: i32, cgroup: Option<Vec<u8>>, total: Bytes) -> Option<OomVictim> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<i64>().ok();
    let pages: u64 = read("statm")?.split(' ').nth(1)?.parse().ok()?;
    let resident_bytes = Pages(pages).to_bytes(page_bytes());
    let adjustment = number("oom_score_adj");
    // Init is never taken, nor is what is set to -1000.
    if pages == 0 || pid == 1 || adjustment == Some(-1000) {
        return None;
    }
    let cgroup = cgroup.map(|path| String::from_utf8_lossy(&path).into_owned());
    let told = number("oom_score");
    let score = told.unwrap_or_else(|| {
        let adjustment = adjustment.unwrap_or_else(|| i64::from(of_class(cgroup.as_deref().unwrap_or(""), total)));
        let thousandths = (u128::from(resident_bytes.0) * 1000).checked_div(u128::from(total.0)).unwrap_or(0);
        // As the kernel scales it, so that nothing is below zero.
        (1000 + i64::try_from(thousandths).unwrap_or(1000) + adjustment) * 2 / 3
    });
    let name = read("comm").map_or_else(|| "?".to_owned(), |name| printable(name.trim_end_matches('\n')));
    Some(OomVictim { pid, name, cgroup, score, is_computed: told.is_none(), resident_bytes })
}

/// The adjustment that a kubelet gives to who is in this cgroup; of requests nothing is known. Zero for who is no pod's.
fn of_class(cgroup: &str, total: Bytes) -> i32 {
    let class = if !cgroup.contains("kubepods") {
        return 0;
    } else if cgroup.contains("besteffort") {
        QosClass::BestEffort
    } else if cgroup.contains("burstable") {
        QosClass::Burstable
    } else {
        QosClass::Guaranteed
    };
    oom_score_adj(class, false, Requests::default(), total)
}

impl Answer<'_> {
    fn name(&self, candidate: u32) -> String {
        self.look.workloads.get(candidate as usize).map_or_else(|| "?".to_owned(), |it| printable(&it.cgroup))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, f: &mut String) -> std::fmt::Result {
        writeln!(f, "now: {}", text::line(self.policy, &self.plan, |candidate| self.name(candidate)))?;
        if self.distances.is_empty() {
            writeln!(f, "there is no line")?;
        }
        for Distance { slice, hard, line_bytes, kubelet_bytes, honest_bytes } in &self.distances {
            let kind = if *hard { "hard" } else { "soft" };
            let of = slice.as_deref().map_or("the machine", |slice| slice);
            write!(
                f,
                "{kind} line of {}, {line_bytes}: {} by the kubelet's reading",
                printable(of),
                far(*kubelet_bytes)
            )?;
            match honest_bytes {
                Some(honest) => writeln!(f, ", {} by the kernel's", far(*honest))?,
                None => writeln!(f)?,
            }
        }
        let Capacity { whole, allocatable, promised } = self.capacity;
        writeln!(
            f,
            "capacity {whole}, allocatable {allocatable} (less reservations and the hard line), promised to \
             workloads {promised}"
        )?;
        writeln!(f, "\nwho would go first:")?;
        if self.plan.ranked.is_empty() {
            writeln!(f, "    nobody: there are no workloads (machine.workloads)")?;
        }
        for ranked in self.plan.ranked.iter().take(MOST) {
            let fate = match ranked.fate {
                Fate::NotNeeded if self.plan.actions.is_empty() => "may be evicted".to_owned(),
                fate => fate.to_string(),
            };
            writeln!(f, "    {}: {fate}; {}", self.name(ranked.candidate), text::Keys(ranked))?;
        }
        if self.plan.ranked.len() > MOST {
            writeln!(f, "    and {} more; --output json has them all", self.plan.ranked.len() - MOST)?;
        }
        writeln!(f, "\nwhom the OOM killer would take instead:")?;
        for OomVictim { pid, name, cgroup, score, is_computed, resident_bytes } in &self.oom {
            let how = if *is_computed { "score, computed," } else { "score" };
            let place = cgroup.as_deref().map_or_else(String::new, |path| format!(" in /{}", printable(path)));
            writeln!(f, "    {name} (process {pid}){place}: {how} {score}, {resident_bytes} resident")?;
        }
        if !self.cache.is_empty() {
            writeln!(f, "\nwhose page cache in use counts as used in the kubelet's figure:")?;
        }
        for Cache { cgroup, active_file_bytes, working_set_bytes, peak_bytes, max_bytes, reservation_bytes } in
            self.cache.iter().take(MOST)
        {
            write!(f, "    {}: {active_file_bytes} of {working_set_bytes}", printable(cgroup))?;
            if max_bytes.is_some_and(|max| max == *reservation_bytes) {
                writeln!(f, "; what it was promised is its limit, as it should be")?;
                continue;
            }
            let measured = peak_bytes.unwrap_or(*working_set_bytes);
            writeln!(f, "; give it a request equal to its limit; the most that was measured is {measured}")?;
        }
        let above = self.reserved.iter().filter(|it| it.working_set_bytes > it.reserved_bytes);
        let mut lines = String::new();
        for Kept { cgroup, by, reserved_bytes, working_set_bytes } in above {
            writeln!(lines, "    {}: uses {working_set_bytes} of {reserved_bytes} ({by})", printable(cgroup))?;
        }
        if !lines.is_empty() {
            write!(f, "\nwho is above its reservation:\n{lines}")?;
        }
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let plan = machine_plan(self.policy, &self.plan, None, |candidate| self.name(candidate));
        json!({
            "plan": plan,
            "line": text::line(self.policy, &self.plan, |candidate| self.name(candidate)).to_string(),
            "lines": self.distances,
            "capacity": self.capacity,
            "oom": self.oom,
            "cache": self.cache,
            "reserved": self.reserved,
        })
    }
}

/// A distance in words.
fn far(bytes: i128) -> String {
    let amount = Bytes(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
    if bytes < 0 { format!("crossed by {amount}") } else { format!("{amount} away") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::tree;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_answer_names_who_would_go_why_and_what_pushes_the_figure() {
        let dir = tree(&[
            ("system.slice", 700 * MIB, 0, 0, 0, 0),
            ("system.slice/db.service", 400 * MIB, 100 * MIB, 0, 500 * MIB, 600 * MIB),
            ("system.slice/hog.service", 300 * MIB, 20 * MIB, 10 * MIB, 0, 0),
            ("system.slice/never.service", 350 * MIB, 0, 0, 0, 0),
            ("user.slice", 90 * MIB, 0, 0, 64 * MIB, 0),
        ]);
        let text = "evictionHard: {memory.available: 1Mi}\nsystemReserved: {memory: 500Mi}\n\
                    machine: {workloads: [{match: 'system.slice/*'}], never: [system.slice/never.service]}";
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let mut observer = Observer::new(&configuration, Some(dir.path()));
        let reading = observer.memory().expect("this machine's memory");
        let victim = OomVictim {
            pid: 7,
            name: "hog".into(),
            cgroup: Some("system.slice/hog.service".into()),
            score: 700,
            is_computed: false,
            resident_bytes: Bytes(300 * MIB),
        };
        let answer = answer(&configuration, &mut observer, &reading, vec![victim]);
        let printed = answer.text();
        for line in [
            "    system.slice/never.service: never chosen: listed by the owner; uses 350.0 MiB, 350.0 MiB over its \
             reservation, priority 0",
            "    system.slice/hog.service: may be evicted; uses 290.0 MiB, 290.0 MiB over its reservation, priority 0",
            "    system.slice/db.service: may be evicted; uses 400.0 MiB, within its reservation, priority 0",
            "    hog (process 7) in /system.slice/hog.service: score 700, 300.0 MiB resident",
            "    system.slice/db.service: 100.0 MiB of 400.0 MiB; give it a request equal to its limit; the most that was \
             measured is 400.0 MiB",
            "    system.slice/hog.service: 20.0 MiB of 290.0 MiB; give it a request equal to its limit; the most that was \
             measured is 290.0 MiB",
            "    system.slice: uses 700.0 MiB of 500.0 MiB (systemReserved)",
            "    user.slice: uses 90.0 MiB of 64.0 MiB (memory.low and memory.min)",
        ] {
            assert!(printed.lines().any(|printed| printed == line), "{line}\n{printed}");
        }
        let json = answer.json();
        assert_eq!(json["plan"]["candidates"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["capacity"]["promised_bytes"], 500 * MIB);
        assert_eq!(json["lines"][0]["line_bytes"], MIB);
    }

    #[test]
    fn the_kernels_own_score_goes_before_what_is_computed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("writable");
        let score = |cgroup: &str| {
            let total = Bytes(page_bytes() * 1000);
            oom_of(dir.path(), 5, Some(cgroup.into()), total).map(|it| (it.score, it.is_computed))
        };
        assert_eq!(score(""), None);
        write("statm", "900 100 0 0 0 0 0\n");
        for (cgroup, expected) in [
            ("kubepods.slice/kubepods-besteffort.slice/x", 1400),
            ("kubepods.slice/kubepods-burstable.slice/x", 1399),
            ("kubepods.slice/x", 68),
            ("system.slice/a.service", 733),
        ] {
            assert_eq!(score(cgroup), Some((expected, true)), "{cgroup}");
        }
        write("oom_score_adj", "100\n");
        assert_eq!(score("kubepods.slice/x"), Some((800, true)));
        write("oom_score", "321\n");
        assert_eq!(score("kubepods.slice/x"), Some((321, false)));
        write("oom_score_adj", "-1000\n");
        assert_eq!(score("kubepods.slice/x"), None);
    }

    #[test]
    fn this_machine_has_somebody_for_the_oom_killer() {
        let reading = plimsoll_node::meminfo::MemInfo::open().map(|file| file.read().expect("readable"));
        let oom = oom(&reading.expect("there is a /proc"));
        assert!(!oom.is_empty() && oom.len() <= MOST_OOM);
        assert!(oom.is_sorted_by_key(|victim| std::cmp::Reverse(victim.score)));
    }

    #[test]
    fn distances_read_as_words() {
        assert_eq!((far(5 << 20), far(-(1 << 20))), ("5.0 MiB away".to_owned(), "crossed by 1.0 MiB".to_owned()));
    }
}
