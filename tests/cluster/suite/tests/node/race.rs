//! The same pod fills the node's memory beside the kubelet alone, and beside the kubelet and the agent, both with the kubelet's
//! own threshold; and beside the kubelet and the least that can be done: a kill of that pod and a patch of the node, each without
//! a decision.

use std::fmt;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use plimsoll_cluster_suite::{Answer, Console, Format, wait_for};
use serde_json::{Value, json};

use crate::timeline::Timeline;
use crate::turn::Turn;
use crate::view::{self, IDLE, condition, ends, pod, pod_that_takes};
use crate::{CONDITION, NODE, PATIENCE, overlay, service_manager};

/// The variables with how fast the pod grows, in MiB a second, and how often it is run: as fast as it can and once without.
const RATE: &str = "PLIMSOLL_TEST_RATE";
pub(crate) const ROUNDS: &str = "PLIMSOLL_TEST_ROUNDS";
/// evictionHard of the kubelet for memory.available, as `tests/vm/guest/src/kubelet.rs` has it.
const THRESHOLD: &str = "101Mi";
/// What must not be evicted: they do not grow, and use less than they request.
const BYSTANDERS: [&str; 2] = ["bystander-1", "bystander-2"];
/// The kubelet's condition.
const OF_KUBELET: &str = "MemoryPressure";
/// How long it is looked on after memory is back: the kubelet was seen to evict up to 18 s after.
const AFTERWARDS: Duration = Duration::from_mins(1);
/// How often it is looked until something is seen, and afterwards.
const AT_FIRST: Duration = Duration::from_millis(10);
const POLL: Duration = Duration::from_millis(200);
/// With this file the node kills its largest pod at the threshold and sends what is in it to that port of its loopback
/// (`tests/vm/guest/src/node_watch.rs`).
const KILL: &str = "/run/kill-the-largest-pod-at-the-threshold";
const PROXY: u16 = 8001;
/// What the console has when that is ready.
const ARMED: &str = "NODE ready for a bare kill and PATCH";
/// The condition that is patched without a decision.
const PATCHED: &str = "PlimsollTestPatched";
/// How many times as long as after a bare kill of the same pod it may be until memory is back, and as after a bare patch until
/// the condition is visible. One round is too few to compare them: emulated processors run when the host has time.
const AT_MOST: u32 = 3;
const COMPARED: usize = 5;

#[test]
fn with_the_agent_nothing_is_killed_for_memory_but_the_pod_that_grew() {
    let (mut bare, mut beside, mut oom_kills) = (Vec::new(), Vec::new(), 0);
    for round in 0..variable(ROUNDS, 1) {
        let mut sides = [Side::Kubelet, Side::Bare, Side::Agent];
        // So the agent is installed or removed once in each round.
        sides.rotate_right(usize::from(round % 2 == 1));
        for side in sides {
            let turn = match side {
                Side::Agent => Turn::with_agent(overlay::AS_THE_KUBELET),
                _ => Turn::without_agent(),
            };
            let outcome = turn.and_then(|turn| fought(&turn, side, &mut oom_kills)).expect("it fills memory");
            match side {
                Side::Bare => bare.push(outcome.times().expect("it was killed")),
                Side::Agent => {
                    let lost = (outcome.freed_by, outcome.oom_kills, &outcome.bystanders[..]);
                    assert_eq!(lost, ("plimsoll", 0, &[][..]), "{outcome}");
                    beside.push(outcome.times().expect("the condition is seen, and what it was evicted for"));
                }
                _ => {}
            }
        }
    }
    if bare.len() >= COMPARED {
        let found = [("memory is back", 0), ("the condition is visible", 1)].map(|(what, of)| {
            let [bare, beside] = [&bare, &beside].map(|all| p90(all.iter().map(|times| times[of])));
            print(&format!(
                "{what} {} ms after the crossing (p90), and {} ms without a decision",
                beside.as_millis(),
                bare.as_millis()
            ));
            beside <= bare * AT_MOST
        });
        assert_eq!(found, [true; 2], "one takes more than {AT_MOST} times as long");
    }
}

/// A number in the environment.
pub(crate) fn variable(name: &str, otherwise: u32) -> u32 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} has {text:?}")))
}

/// The smallest that at least nine of ten do not exceed.
fn p90(all: impl Iterator<Item = Duration>) -> Duration {
    let mut all: Vec<Duration> = all.collect();
    all.sort_unstable();
    all[(all.len() * 9).div_ceil(10) - 1]
}

/// What is there beside the pod that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Kubelet,
    /// The kernel notifies the kubelet.
    Notified,
    /// Pods may take less together than the machine has, so that it need not be short of memory before one ends.
    Reserving,
    /// A kill and a patch at the threshold, without a decision. The patch goes the agent's way: from a process of the node
    /// that has a connection to the API server already.
    Bare,
    Agent,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "the kubelet alone",
            Self::Notified => "the kubelet alone, with kernelMemcgNotification",
            Self::Reserving => "the kubelet alone, with reservations",
            Self::Bare => "a bare cgroup.kill and PATCH",
            Self::Agent => "with the agent",
        }
    }

    /// The condition that reports it.
    const fn condition(self) -> &'static str {
        match self {
            Self::Kubelet | Self::Notified | Self::Reserving => OF_KUBELET,
            Self::Bare => PATCHED,
            Self::Agent => CONDITION,
        }
    }
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) freed_by: &'static str,
    /// How often the OOM killer killed, by the kernel's count.
    oom_kills: u64,
    /// From less than 200 MiB available until there were again. Absent where there always were.
    short: Option<Duration>,
    /// The same from the crossing for which the agent acted, by the kernel's event where it has one, or from the bare kill.
    freed: Option<Duration>,
    /// Those that did not run on.
    bystanders: Vec<&'static str>,
    /// Until the API has the condition: from the same, or from less than 200 MiB available beside the kubelet alone.
    visible: Option<Duration>,
}

impl Outcome {
    /// How long after something was done memory was back, and the condition was visible.
    fn times(&self) -> Option<[Duration; 2]> {
        Some([self.freed?, self.visible?])
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { freed_by, oom_kills, short, freed, bystanders, visible } = self;
        match short {
            Some(short) => write!(f, "memory freed by {freed_by} after {:.2} s, ", short.as_secs_f64())?,
            None => write!(f, "the pod ended by {freed_by} while the node had memory, ")?,
        }
        if let Some(freed) = freed {
            write!(f, "{} ms of which after the crossing, ", freed.as_millis())?;
        }
        write!(f, "{oom_kills} OOM kills, {} of {} bystanders lost", bystanders.len(), BYSTANDERS.len())?;
        match visible {
            Some(after) => write!(f, ", the condition visible after {:.2} s", after.as_secs_f64()),
            None => write!(f, ", the condition never visible"),
        }
    }
}

/// Has a pod fill memory, and looks on. `oom_kills`: how many the node has counted until then, and after it.
pub(crate) fn fought(turn: &Turn, side: Side, oom_kills: &mut u64) -> Result<Outcome> {
    let kind = side.condition();
    if kind == OF_KUBELET {
        // One of a round before lasts for the kubelet's transition period, five minutes by default.
        wait_for("the kubelet reports memory as not short", Duration::from_mins(6), || {
            Ok(condition(turn, kind)?.is_some_and(|it| it["status"] == "False").then_some(()))
        })?;
    }
    for name in BYSTANDERS {
        turn.create(&pod(name, &IDLE))?;
    }
    for name in BYSTANDERS {
        turn.runs(name)?;
    }
    let mut console = turn.console(NODE)?;
    if side == Side::Bare {
        service_manager::start(turn, "bare", &["/usr/bin/sh", "-c", &bare()])?;
        console.wait(&[ARMED], PATIENCE)?;
    }
    let mut grower = pod_that_takes("grower", 4096, variable(RATE, 0));
    grower["spec"]["restartPolicy"] = "Never".into();
    turn.create(&grower)?;
    let created = Instant::now();
    let is_short = loop {
        if !figures(console.read()?, "low", "at").is_empty() {
            break true;
        }
        if side == Side::Reserving && ends(&view::stored(turn, "grower")?) {
            break false;
        }
        ensure!(created.elapsed() < PATIENCE, "it does not fill memory");
        thread::sleep(AT_FIRST);
    };
    let (low, mut timeline) = (Instant::now(), Timeline::begin());
    if is_short {
        timeline.note("memory", "short".into());
    }
    let (mut back, mut visible): (Option<Instant>, _) = ((!is_short).then_some(low), None);
    let is_over = |back: Option<Instant>, is_visible: bool| match side {
        Side::Bare => back.is_some() && is_visible,
        _ => back.is_some_and(|at| at.elapsed() >= AFTERWARDS),
    };
    while !is_over(back, visible.is_some()) && low.elapsed() < PATIENCE {
        if visible.is_none() && condition(turn, kind)?.is_some_and(|it| it["status"] == "True") {
            visible = Some(low.elapsed());
        }
        if back.is_none() && !figures(console.read()?, "back", "at").is_empty() {
            back = Some(Instant::now());
            timeline.note("memory", "available".into());
        }
        if let Some(kills) = figures(console.read()?, "oom-kills", "count").last() {
            timeline.note("OOM killer", format!("{kills} kills"));
        }
        timeline.look(turn, kind, ["grower"].into_iter().chain(BYSTANDERS))?;
        thread::sleep(if visible.is_none() { AT_FIRST } else { POLL });
    }
    back.context("memory never came back")?;
    if side == Side::Bare {
        let change = patch(&json!({"type": kind, "$patch": "delete"}));
        let removed = turn.api.request("PATCH", &status(), Format::Strategic, &change);
        removed.and_then(Answer::object)?;
    }
    let figures = |what: &str, key: &str| figures(&console.lines, what, key);
    let before = *oom_kills;
    *oom_kills = figures("oom-kills", "count").last().copied().unwrap_or(before);
    let oom_kills = *oom_kills - before;
    let (from, to) = (figures("low", "at"), figures("back", "at"));
    let short = match (is_short, from.first(), to.last()) {
        (true, from, to) => Some(from.copied().zip(to.copied()).context("both are on the console")?),
        (false, ..) => None,
    };
    let acted = match side {
        Side::Bare => figures("killed", "at").first().copied(),
        Side::Agent => crossing(&console),
        _ => None,
    };
    let between = |from: u64, to: u64| Duration::from_millis(to.saturating_sub(from));
    if let Some(((after, at), (from, _))) = visible.zip(acted).zip(short) {
        // By the host's clock since the console's line was read, which is later than what it says by a few milliseconds.
        visible = Some(after.checked_sub(between(from, at)).context("the condition was seen before it was written")?);
    }
    let freed_by = freed_by(turn, side, oom_kills > 0)?;
    if freed_by == "plimsoll" {
        let message = &view::stored(turn, "grower")?["status"]["message"];
        let has = message.as_str().is_some_and(|it| it.contains(&format!("Threshold quantity: {THRESHOLD},")));
        ensure!(has, "the threshold is not the kubelet's, {THRESHOLD}: {message}");
    }
    let outcome = Outcome {
        freed_by,
        oom_kills,
        short: short.map(|(from, to)| between(from, to)),
        freed: acted.zip(short).map(|(at, (_, to))| between(at, to)),
        bystanders: BYSTANDERS.into_iter().filter(|name| !turn.runs_on(name)).collect(),
        visible,
    };
    print(&format!("{}: {outcome}", side.name()));
    if side != Side::Bare {
        timeline.keep(turn, side.name(), &outcome.to_string(), "grower")?;
    }
    Ok(outcome)
}

/// The path of the node's status.
fn status() -> String {
    format!("/api/v1/nodes/{NODE}/status")
}

/// The patch of a condition of the node.
fn patch(condition: &Value) -> Value {
    json!({"status": {"conditions": [condition]}})
}

/// A script that gives the node what it kills and patches by: kubectl's proxy, which has the kubelet's rights and a connection
/// to the API server, and the request. It ends the proxy some seconds after the request was sent.
fn bare() -> String {
    let change = patch(&json!({"type": PATCHED, "status": "True"})).to_string();
    let request = format!(
        "PATCH {} HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\nContent-Type: application/strategic-merge-patch+json\\r\\n\
         Content-Length: {}\\r\\n\\r\\n{change}",
        status(),
        change.len()
    );
    format!(
        "PATH=/usr/bin
/opt/kubernetes/kube kubectl proxy --kubeconfig=/etc/kubernetes/kubelet.conf --port={PROXY} &
until busybox wget -q -O /dev/null http://127.0.0.1:{PROXY}/api/v1/nodes/{NODE}; do sleep 1; done
printf '{request}' > {KILL}.new && mv {KILL}.new {KILL}
echo {ARMED} > /dev/console
while [ -e {KILL} ]; do sleep 1; done
sleep 10
kill $!"
    )
}

/// When the first threshold was crossed for which the agent acted, in milliseconds since the machine's boot: by the event of the
/// kernel, before the agent was awake, or when it was, where what it read was the first to show that.
fn crossing(console: &Console) -> Option<u64> {
    let is_acting = |it: &Value| it["actions"].as_array().is_some_and(|actions| !actions.is_empty());
    let mut acting = view::records(&console.lines).filter(is_acting);
    acting.find_map(|it| Some(it["crossed_ns"].as_u64().or_else(|| it["awake_ns"].as_u64())? / 1_000_000))
}

/// The OOM killer where it killed at all: what was evicted afterwards freed nothing.
fn freed_by(turn: &Turn, side: Side, has_killed: bool) -> Result<&'static str> {
    if has_killed {
        return Ok("the OOM killer");
    }
    if side == Side::Bare {
        return Ok("cgroup.kill");
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

/// The numbers that these lines of the node's console have with this key, of those of this kind.
pub(crate) fn figures(lines: &[String], what: &str, key: &str) -> Vec<u64> {
    let lines = lines.iter().filter_map(|line| line.split_once(&format!("NODE {what} ")));
    let words = lines.filter_map(|(_, rest)| rest.split(' ').find_map(|word| word.strip_prefix(&format!("{key}="))));
    words.filter_map(|number| number.parse().ok()).collect()
}

/// Past the test harness, which keeps to itself what a test prints that passes.
fn print(figure: &str) {
    let _ = writeln!(std::io::stdout(), "FIGURE {figure}");
}
