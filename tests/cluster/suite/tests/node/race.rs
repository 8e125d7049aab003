//! The same pod fills the node's memory as fast as it can beside the kubelet alone, and beside the kubelet and the agent,
//! both with the kubelet's own threshold.

use std::fmt;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::Console;

use crate::timeline::Timeline;
use crate::turn::Turn;
use crate::view::{self, IDLE, condition, pod, pod_that_takes};
use crate::{CONDITION, NODE, PATIENCE, overlay};

/// evictionHard of the kubelet for memory.available, as `tests/vm/guest/src/kubelet.rs` has it.
const THRESHOLD: &str = "101Mi";
/// What must not be evicted: they do not grow, and use less than they request.
const BYSTANDERS: [&str; 2] = ["bystander-1", "bystander-2"];
/// How long it is looked on after memory is back: the kubelet was seen to evict up to 18 s after.
const AFTERWARDS: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(200);

#[test]
fn with_the_agent_nothing_is_killed_for_memory_but_the_pod_that_grew() {
    let alone = Turn::without_agent().and_then(|turn| fought(&turn, "the kubelet alone", "MemoryPressure"));
    alone.expect("it fills memory");
    let beside = Turn::with_agent(overlay::AS_THE_KUBELET).and_then(|turn| fought(&turn, "with the agent", CONDITION));
    let beside = beside.expect("it fills memory");
    assert_eq!((beside.freed_by, beside.oom_kills, &beside.bystanders[..]), ("plimsoll", 0, &[][..]), "{beside}");
    assert!(beside.visible.is_some(), "the condition was never true: {beside}");
}

/// What came of it.
struct Outcome {
    freed_by: &'static str,
    /// How often the kernel counts that the OOM killer killed.
    oom_kills: u64,
    /// From less than 200 MiB available until there were again.
    short: Duration,
    /// Those that did not run on.
    bystanders: Vec<&'static str>,
    /// From less than 200 MiB available until the API has the condition.
    visible: Option<Duration>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { freed_by, oom_kills, short, bystanders, visible } = self;
        write!(f, "memory freed by {freed_by} after {:.2} s, {oom_kills} OOM kills, ", short.as_secs_f64())?;
        write!(f, "{} of {} bystanders lost", bystanders.len(), BYSTANDERS.len())?;
        match visible {
            Some(after) => write!(f, ", the condition visible after {:.1} s", after.as_secs_f64()),
            None => write!(f, ", the condition never visible"),
        }
    }
}

/// Has a pod fill memory, and looks on.
fn fought(turn: &Turn, name: &str, kind: &str) -> Result<Outcome> {
    for name in BYSTANDERS {
        turn.create(&pod(name, &IDLE))?;
    }
    for name in BYSTANDERS {
        turn.runs(name)?;
    }
    let mut console = turn.console(NODE)?;
    let mut grower = pod_that_takes("grower", 4096, 0);
    grower["spec"]["restartPolicy"] = "Never".into();
    turn.create(&grower)?;
    console.wait(&["NODE low "], PATIENCE)?;
    let (low, mut timeline) = (Instant::now(), Timeline::begin());
    timeline.note("memory", "short".into());
    let (mut back, mut visible) = (None, None);
    while back.is_none_or(|at: Instant| at.elapsed() < AFTERWARDS) && low.elapsed() < PATIENCE {
        if visible.is_none() && condition(turn, kind)?.is_some_and(|it| it["status"] == "True") {
            visible = Some(low.elapsed());
        }
        if back.is_none() && console.read()?.iter().any(|line| line.contains("NODE back ")) {
            back = Some(Instant::now());
            timeline.note("memory", "available".into());
        }
        if let Some(kills) = figures(&console, "oom-kills", "count").last() {
            timeline.note("OOM killer", format!("{kills} kills"));
        }
        timeline.look(turn, kind, ["grower"].into_iter().chain(BYSTANDERS))?;
        thread::sleep(POLL);
    }
    back.context("memory never came back")?;
    let figures = |what: &str, key: &str| figures(&console, what, key);
    let oom_kills = figures("oom-kills", "count");
    let (from, to) = (figures("low", "at"), figures("back", "at"));
    let short = from.first().zip(to.last()).map(|(from, to)| Duration::from_millis(to.saturating_sub(*from)));
    let freed_by = freed_by(turn, !oom_kills.is_empty())?;
    if freed_by == "plimsoll" {
        let message = &view::stored(turn, "grower")?["status"]["message"];
        let has = message.as_str().is_some_and(|it| it.contains(&format!("Threshold quantity: {THRESHOLD},")));
        ensure!(has, "the threshold is not the kubelet's, {THRESHOLD}: {message}");
    }
    let outcome = Outcome {
        freed_by,
        oom_kills: oom_kills.last().copied().unwrap_or_default(),
        short: short.context("both are on the console")?,
        bystanders: BYSTANDERS.into_iter().filter(|name| !turn.runs_on(name)).collect(),
        visible,
    };
    print(name, &outcome);
    timeline.keep(turn, name, &outcome.to_string(), "grower")?;
    Ok(outcome)
}

/// The OOM killer where it killed at all: what was evicted afterwards freed nothing.
fn freed_by(turn: &Turn, has_killed: bool) -> Result<&'static str> {
    if has_killed {
        return Ok("the OOM killer");
    }
    let events = view::events(turn, &view::stored(turn, "grower")?, "Evicted")?;
    let by = |component| events.iter().any(|event| event["source"]["component"] == component);
    Ok(if by("plimsoll") {
        "plimsoll"
    } else if by("kubelet") {
        "the kubelet"
    } else {
        "nothing"
    })
}

/// The numbers that the node's console has with this key in lines of this kind.
pub(crate) fn figures(console: &Console, what: &str, key: &str) -> Vec<u64> {
    let lines = console.lines.iter().filter_map(|line| line.split_once(&format!("NODE {what} ")));
    let words = lines.filter_map(|(_, rest)| rest.split(' ').find_map(|word| word.strip_prefix(&format!("{key}="))));
    words.filter_map(|number| number.parse().ok()).collect()
}

/// Past the test harness, which keeps to itself what a test prints that passes.
fn print(what: &str, outcome: &Outcome) {
    let _ = writeln!(std::io::stdout(), "FIGURE {what}: {outcome}");
}
