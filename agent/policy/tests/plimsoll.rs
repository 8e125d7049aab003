//! Where the policy `plimsoll` differs from the kubelet, and where `openshift3` differs from `plimsoll`: a test for
//! each paragraph of `agent/docs/eviction-policies.md`.

use plimsoll_policy::kubelet::{
    self, Amount, Condition, ContainerStats, Critical, DiskLayout, FsStats, MemoryStats, NodeStats, Origin, PidStats,
    QosClass, Readings, Signal, StatsTime, Threshold, ThresholdAmount, Usage,
};
use plimsoll_policy::{
    Action, Case, ConditionCase, Config, EvictionPolicy, Image, NoVictim, Observation, Outcome, OwnerUid, Plan,
    Protected, Reclaimed, Stage, Stall, State, Swap, SwapThreshold, Terminating, Uid, Verdict, Why, Workload, decide,
    text,
};
use plimsoll_units::{Bytes, MonotonicNs};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 1000;
/// So many pods at most.
const PODS: usize = 100;

const fn secs(n: u64) -> MonotonicNs {
    MonotonicNs(n * 1_000_000_000)
}

fn mib(n: i64) -> Amount {
    Amount::whole(n << 20)
}

fn threshold(signal: Signal, at: i64, grace: u64, min_reclaim: i64) -> Threshold {
    // Bytes in MiB, everything else as it is.
    let amount = |n: i64| ThresholdAmount::At(if signal.is_bytes() { mib(n) } else { Amount::whole(n) });
    Threshold {
        signal,
        amount: Some(amount(at)),
        grace: Duration::from_secs(grace),
        min_reclaim: (min_reclaim > 0).then(|| amount(min_reclaim)),
        origin: Origin::Configured,
    }
}

fn hard(signal: Signal, at: i64) -> Threshold {
    threshold(signal, at, 0, 0)
}

fn memory(available: u64, second: u64) -> MemoryStats {
    MemoryStats {
        available: Some(available * MIB),
        working_set: Some((CAPACITY - available) * MIB),
        time: Some(time(second)),
    }
}

fn time(second: u64) -> StatsTime {
    StatsTime(i64::try_from(second).expect("small"))
}

fn disk(available: u64, second: u64) -> FsStats {
    FsStats {
        available: Some(available * MIB),
        capacity: Some(CAPACITY * MIB),
        inodes_free: Some(available),
        inodes: Some(CAPACITY),
        time: Some(time(second)),
    }
}

/// A pod that uses and was promised so many MiB of memory.
fn pod(uid: u128, used: u64, request: i64) -> Workload<'static> {
    Workload {
        uid: Uid(uid),
        facts: kubelet::Pod {
            memory_request: mib(request),
            stats: Some(kubelet::PodStats { working_set: Some(used * MIB), ..kubelet::PodStats::default() }),
            ..kubelet::Pod::default()
        },
        qos: QosClass::Burstable,
        ..Workload::default()
    }
}

fn terminating(pod: &Workload<'static>, is_stuck: bool, is_graceful: bool) -> Workload<'static> {
    Workload { terminating: Some(Terminating { is_stuck, is_graceful, ..Terminating::default() }), ..*pod }
}

/// An eviction policy with its state and plan, driven second by second.
struct Rig {
    config: Config,
    state: State,
    plan: Plan,
}

impl Rig {
    /// Whatever grew: that is the subject of `decisions`.
    fn new(config: Config) -> Self {
        let config = Config { evict_for_unattributed: true, ..config };
        let state = State::with_capacity(&config, PODS);
        let plan = Plan::with_capacity(&config, PODS, 32);
        Self { config, state, plan }
    }

    fn with(thresholds: &[Threshold]) -> Self {
        Self::new(Config { thresholds: thresholds.to_vec(), ..Config::default() })
    }

    fn observe(&mut self, second: u64, observation: &Observation<'_>) -> &Plan {
        let layout = observation.layout.or(Some(DiskLayout::Single));
        let observation = Observation { layout, ..*observation };
        decide(&self.config, &mut self.state, &observation, secs(second), &mut self.plan);
        &self.plan
    }

    /// Looks at so many MiB of memory.
    fn memory(&mut self, second: u64, available: u64, pods: &[Workload<'_>]) -> &Plan {
        let node = NodeStats { memory: Some(memory(available, second)), ..NodeStats::default() };
        self.observe(
            second,
            &Observation { readings: Some(Readings::of(&node)), workloads: pods, ..Observation::default() },
        )
    }

    fn verdict(&self, pod: u32) -> Verdict {
        self.plan.ranked.iter().find(|ranked| ranked.workload == pod).expect("ranked").verdict
    }
}

fn evicted(plan: &Plan) -> Vec<u32> {
    plan.evicted().collect()
}

fn stage(plan: &Plan) -> Option<Stage> {
    plan.reclaim().map(|order| order.stage)
}

#[test]
fn a_soft_threshold_in_its_grace_never_delays_a_hard_one() {
    let thresholds = [
        threshold(Signal::MemoryAvailable, 500, 60, 0),
        hard(Signal::MemoryAvailable, 100),
        hard(Signal::PidAvailable, 10),
    ];
    let mut rig = Rig::new(Config { thresholds: thresholds.to_vec(), max_pod_grace_seconds: 30, ..Config::default() });
    let own_grace = |uid, used| {
        let mut pod = pod(uid, used, 0);
        pod.facts.grace_seconds = Some(300);
        pod
    };
    assert_eq!(rig.memory(1, 400, &[own_grace(1, 200), own_grace(2, 300)]).outcome, Outcome::InGrace);
    let plan = rig.memory(61, 400, &[own_grace(1, 200), own_grace(2, 300)]);
    assert_eq!(plan.actions, [Action::Evict { workload: 1, why: Why::Threshold(0), grace_seconds: 30 }]);
    // While it uses its grace it counts as coming back for the soft threshold, and not for the hard one.
    let pods = [own_grace(1, 200), terminating(&own_grace(2, 300), false, true)];
    assert_eq!(rig.memory(62, 400, &pods).outcome, Outcome::ComingBack);
    let plan = rig.memory(63, 50, &pods);
    assert_eq!(plan.actions, [Action::EscalateToKill { workload: 1, why: Why::Threshold(1) }]);

    // Without any statistics, those that are terminating in their grace are killed at once, one after the other.
    let mut rig = Rig::new(Config { thresholds: thresholds.to_vec(), ..Config::default() });
    let unread = |uid| Workload { uid: Uid(uid), ..Workload::default() };
    let graceful = [unread(1), terminating(&unread(2), false, true), terminating(&unread(3), false, true)];
    assert_eq!(rig.memory(1, 50, &graceful).actions, [Action::EscalateToKill { workload: 1, why: Why::Threshold(1) }]);
    assert_eq!(rig.verdict(1), Verdict::EscalatedToKill);
    let pods = [graceful[0], terminating(&graceful[1], false, false), graceful[2]];
    assert_eq!(rig.memory(2, 50, &pods).actions, []);
    let pods = [graceful[0], terminating(&graceful[1], true, false), graceful[2]];
    assert_eq!(rig.memory(3, 50, &pods).actions, [Action::EscalateToKill { workload: 2, why: Why::Threshold(1) }]);
    // None is escalated blindly where another one with statistics can be evicted, nor for a soft threshold.
    let pods = [pod(1, 100, 0), graceful[1], graceful[2]];
    let plan = rig.memory(4, 50, &pods);
    assert_eq!((evicted(plan), plan.actions.len()), (vec![0], 1));
    rig.memory(5, 400, &graceful);
    assert_eq!(rig.memory(65, 400, &graceful).actions, []);

    // A hard threshold on something else goes before a soft one on memory, which the kubelet prefers.
    let mut rig = Rig::with(&[threshold(Signal::MemoryAvailable, 500, 1, 0), hard(Signal::PidAvailable, 10)]);
    let mut forks = pod(1, 1, 0);
    forks.facts.stats.as_mut().expect("some").processes = Some(100);
    for second in 1..3 {
        let node = NodeStats {
            memory: Some(memory(400, second)),
            pids: Some(PidStats { max: Some(1000), running: Some(995), time: Some(time(second)) }),
            ..NodeStats::default()
        };
        let plan = rig.observe(
            second,
            &Observation { readings: Some(Readings::of(&node)), workloads: &[forks], ..Observation::default() },
        );
        assert_eq!(plan.acting().map(|status| status.why), Some(Why::Threshold(1)));
    }
}

#[test]
fn a_clean_up_for_a_soft_threshold_delays_no_hard_one() {
    let (soft, hard) = (threshold(Signal::MemoryAvailable, 500, 1, 0), hard(Signal::MemoryAvailable, 100));
    let pods = [pod(1, 100, 0)];
    // When a hard threshold evicts: cache grows past the soft threshold, past the hard one from the eleventh second on,
    // and all tasks stall from the thirteenth on. A clean-up takes three seconds.
    let evicts_at = |thresholds: &[Threshold]| {
        let mut rig = Rig::with(thresholds);
        let mut asked: Vec<Reclaimed> = Vec::new();
        (1..30).find(|&second| {
            let available = if second < 11 { 400 } else { 50 };
            let stalled = if second < 13 { 0 } else { 900 };
            let observation = Observation {
                readings: Some(Readings::of(&NodeStats {
                    memory: Some(memory(available, second)),
                    ..NodeStats::default()
                })),
                mem_available: Some(Bytes::mib(800)),
                stall: Some(Stall { full: Duration::from_millis(stalled), window: Duration::from_secs(1) }),
                reclaimed: asked.iter().rfind(|reclaimed| reclaimed.at <= time(second)).copied(),
                workloads: &pods,
                ..Observation::default()
            };
            let plan = rig.observe(second, &observation);
            asked.extend(plan.reclaim().map(|order| Reclaimed { order: order.order, at: time(second + 3) }));
            plan.outcome == Outcome::Evict
        })
    };
    assert_eq!(evicts_at(&[hard]), Some(15));
    assert_eq!(evicts_at(&[soft, hard]), Some(15));
    assert_eq!(evicts_at(&[hard, soft]), Some(15));
}

#[test]
fn soft_victims_do_not_use_up_what_hard_ones_need() {
    let thresholds = vec![threshold(Signal::MemoryAvailable, 500, 1, 0), hard(Signal::MemoryAvailable, 100)];
    let mut rig =
        Rig::new(Config { thresholds, hard_victims_per_minute: 1, soft_victims_per_minute: 1, ..Config::default() });
    let pods = [pod(1, 20, 0), pod(2, 10, 0)];
    rig.memory(1, 400, &pods);
    assert_eq!(evicted(rig.memory(2, 400, &pods)), [0]);
    assert_eq!(rig.memory(3, 400, &pods[1..]).outcome, Outcome::RateLimited);
    assert_eq!(rig.plan.recheck_at, Some(secs(62)));
    assert_eq!(evicted(rig.memory(4, 50, &pods[1..])), [0]);
    assert_eq!(rig.memory(5, 50, &[pod(3, 10, 0)]).outcome, Outcome::RateLimited);
    assert_eq!(rig.verdict(0), Verdict::RateLimited);
}

#[test]
fn what_terminating_pods_hold_comes_back_unless_they_are_stuck() {
    // (whether it is critical, stuck, and has time left; the outcome, which are evicted and which are escalated to a kill)
    for (critical, is_stuck, is_graceful, outcome, victims, escalated) in [
        (None, false, false, Outcome::ComingBack, &[][..], &[][..]),
        (None, true, false, Outcome::Evict, &[1], &[]),
        (None, false, true, Outcome::Evict, &[], &[0]),
        // One that is never evicted was deleted.
        (Some(Critical::Priority), false, false, Outcome::ComingBack, &[], &[]),
        (Some(Critical::Static), false, false, Outcome::ComingBack, &[], &[]),
        (Some(Critical::Mirror), true, false, Outcome::Evict, &[1], &[]),
        // Its grace is not cut short, and a hard threshold does not wait for its end.
        (Some(Critical::Priority), false, true, Outcome::Evict, &[1], &[]),
    ] {
        let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
        let mut pods = [terminating(&pod(1, 60, 0), is_stuck, is_graceful), pod(2, 60, 0)];
        pods[0].facts.critical = critical;
        assert_eq!(rig.memory(1, 50, &pods).outcome, outcome, "{critical:?} {is_stuck} {is_graceful}");
        assert_eq!((&evicted(&rig.plan)[..], &rig.plan.escalated().collect::<Vec<_>>()[..]), (victims, escalated));
        let coming = if is_stuck || is_graceful { 0 } else { 60 };
        assert_eq!(rig.plan.deficit.map(|deficit| deficit.coming), Some(mib(coming)), "{critical:?}");
        assert_eq!(critical.is_some(), matches!(rig.verdict(0), Verdict::Protected(_)));
    }
    // Without any statistics the next one waits for it too.
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    let mut unread = terminating(&Workload { uid: Uid(1), ..Workload::default() }, false, false);
    unread.facts.critical = Some(Critical::Priority);
    assert_eq!(evicted(rig.memory(1, 50, &[unread, Workload { uid: Uid(2), ..Workload::default() }])), [] as [u32; 0]);
}

#[test]
fn a_long_grace_of_another_does_not_keep_a_soft_threshold_from_evicting() {
    let soft = threshold(Signal::MemoryAvailable, 500, 1, 0);
    let until = |second| Some(Terminating { is_graceful: true, until: Some(secs(second)), ..Terminating::default() });
    // It may take as long as a victim of the soft threshold would get, 30 seconds, and no longer.
    for (second, victims) in [(32, &[][..]), (33, &[1][..]), (86_400, &[1][..])] {
        let mut rig = Rig::new(Config { thresholds: vec![soft], max_pod_grace_seconds: 30, ..Config::default() });
        let pods = [Workload { terminating: until(second), ..pod(1, 200, 0) }, pod(2, 200, 0)];
        rig.memory(1, 400, &pods);
        assert_eq!(evicted(rig.memory(2, 400, &pods)), victims, "{second}");
    }
}

#[test]
fn as_many_are_evicted_as_the_deficit_and_minimum_reclaim_need() {
    for (available, victims) in [(100, &[][..]), (99, &[0][..]), (90, &[0]), (75, &[0, 1]), (40, &[0, 1, 2])] {
        let mut rig = Rig::with(&[threshold(Signal::MemoryAvailable, 100, 0, 20)]);
        let pods = [pod(1, 40, 0), pod(2, 30, 0), pod(3, 20, 0)];
        assert_eq!(evicted(rig.memory(1, available, &pods)), victims, "{available}");
    }
}

/// A DaemonSet's pod over its request, another one for each start.
fn daemon(started: u64) -> Workload<'static> {
    Workload { daemon_set: Some(OwnerUid(9)), started: secs(started), ..pod(u128::from(started), 300, 10) }
}

#[test]
fn a_daemon_sets_pod_that_returns_at_once_is_named_and_left_alone_for_a_while() {
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    let within = pod(77, 100, 200);
    assert_eq!(evicted(rig.memory(10, 50, &[daemon(1), within])), [0]);
    // Back at once, and over again: no other pod within its request pays for it.
    assert_eq!(rig.memory(13, 50, &[daemon(11), within]).outcome, Outcome::NoVictim(NoVictim::OnlyLoops));
    assert_eq!((rig.verdict(0), rig.verdict(1)), (Verdict::Looping(secs(20)), Verdict::SparedByLoop));
    assert_eq!((rig.plan.ranked[0].returns, rig.plan.recheck_at), (1, Some(secs(20))));
    // Another that is over its own request does.
    assert_eq!(evicted(rig.memory(14, 50, &[daemon(11), pod(5, 60, 10)])), [1]);
    // Not one that is more important, however much it uses.
    let mut important = pod(6, 900, 10);
    important.facts.priority = 1;
    assert_eq!(rig.memory(15, 50, &[daemon(11), important]).outcome, Outcome::NoVictim(NoVictim::OnlyLoops));
    assert_eq!((rig.verdict(0), rig.verdict(1)), (Verdict::Looping(secs(20)), Verdict::SparedByLoop));
    // The pause doubles each time.
    assert_eq!(evicted(rig.memory(20, 50, &[daemon(11), within])), [0]);
    assert_eq!(rig.memory(39, 50, &[daemon(21), within]).outcome, Outcome::NoVictim(NoVictim::OnlyLoops));
    assert_eq!(rig.plan.ranked[0].returns, 2);
    assert_eq!(evicted(rig.memory(40, 50, &[daemon(21), within])), [0]);
    // The API's start time is in whole seconds: it may seem to be from before the eviction. The very pod that was to go
    // and is still there has not returned.
    for (uid, started, returns) in [(1, 9, 1), (0, 9, 0), (1, 8, 0)] {
        let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
        let daemon = |uid, started| Workload { uid: Uid(uid), ..daemon(started) };
        assert_eq!(evicted(rig.memory(10, 50, &[daemon(0, 1)])), [0]);
        assert_eq!(rig.memory(11, 50, &[daemon(uid, started)]).ranked[0].returns, returns, "{uid} {started}");
    }
    // One that was to go again, and is still there, has returned as often as before, and its pause doubles as before.
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    assert_eq!(evicted(rig.memory(10, 50, &[daemon(1), within])), [0]);
    for second in [20, 21] {
        assert_eq!(evicted(rig.memory(second, 50, &[daemon(11), within])), [0], "second {second}");
        assert_eq!(rig.plan.ranked[0].returns, 1, "second {second}");
    }
    assert_eq!(rig.memory(40, 50, &[daemon(22), within]).outcome, Outcome::NoVictim(NoVictim::OnlyLoops));
    assert_eq!((rig.verdict(0), rig.plan.ranked[0].returns), (Verdict::Looping(secs(41)), 2));
    // One that came back later is like any other.
    assert_eq!(evicted(rig.memory(142, 50, &[daemon(141), within])), [0]);
}

#[test]
fn a_pod_that_returns_at_once_is_not_left_alone_where_memory_runs_out() {
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    let mut important = pod(77, 900, 10);
    important.facts.priority = 1;
    assert_eq!(evicted(rig.memory(10, 50, &[daemon(1), important])), [0]);
    assert_eq!(rig.memory(13, 50, &[daemon(11), important]).outcome, Outcome::NoVictim(NoVictim::OnlyLoops));
    assert_eq!(evicted(rig.memory(14, 49, &[daemon(11), important])), [0], "less than half of the threshold");
}

#[test]
fn memory_is_judged_by_two_readings_in_four_cases() {
    for (kubelet, mem_available, case, outcome) in [
        (200, Some(200), Case::Neither, Outcome::NoPressure),
        (50, Some(50), Case::Both, Outcome::Evict),
        (50, None, Case::Both, Outcome::Evict),
        (50, Some(200), Case::KubeletOnly, Outcome::Reclaiming),
        (200, Some(50), Case::MemAvailableOnly, Outcome::Evict),
    ] {
        let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
        let node = NodeStats { memory: Some(memory(kubelet, 1)), ..NodeStats::default() };
        let observation = Observation {
            readings: Some(Readings::of(&node)),
            mem_available: mem_available.map(Bytes::mib),
            workloads: &[pod(1, 100, 0)],
            ..Observation::default()
        };
        let plan = rig.observe(1, &observation);
        assert_eq!((plan.thresholds[0].case, plan.outcome), (case, outcome), "{kubelet} {mem_available:?}");
        assert_eq!(plan.conditions.has(Condition::MemoryPressure), case != Case::Neither);
    }
}

#[test]
fn the_kernels_reading_does_not_wait_for_the_kubelets_statistics() {
    // (what the kubelet and the kernel say in the second turn, the times of both, the outcome of it)
    for (kubelet, mem_available, kubelet_time, mem_available_time, outcome) in [
        (200, 50, 1, Some(2), Outcome::Evict),
        (50, 50, 1, Some(2), Outcome::Evict),
        // Nothing new, or its time is not known.
        (200, 50, 1, Some(1), Outcome::Stale),
        (200, 50, 1, None, Outcome::Stale),
        // The kubelet's alone says so, and that is old.
        (50, 500, 1, Some(2), Outcome::Stale),
        // The kubelet's is new.
        (200, 50, 2, Some(1), Outcome::Evict),
        (50, 500, 2, Some(1), Outcome::Reclaiming),
    ] {
        let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
        let pods = [pod(1, 100, 0)];
        let mut sample = |second, available, read_at, mem_available, mem_available_time: Option<u64>| {
            let observation = Observation {
                readings: Some(Readings::of(&NodeStats {
                    memory: Some(memory(available, read_at)),
                    ..NodeStats::default()
                })),
                mem_available: Some(Bytes::mib(mem_available)),
                mem_available_at: mem_available_time.map(time),
                workloads: &pods,
                ..Observation::default()
            };
            rig.observe(second, &observation).outcome
        };
        assert_eq!(sample(1, 500, 1, 500, Some(1)), Outcome::NoPressure);
        assert_eq!(
            sample(2, kubelet, kubelet_time, mem_available, mem_available_time),
            outcome,
            "{kubelet} {mem_available} {mem_available_time:?}"
        );
    }
}

#[test]
fn memory_of_pods_is_judged_by_two_readings_too() {
    use Case::{Both, KubeletOnly, MemAvailableOnly, Neither};
    // (what pods have by the kubelet's figure and by the kernel's, the same of the machine, the case, the outcome)
    for (pods, own, machine, mem_available, case, outcome) in [
        // Page cache of the pods, and the machine has enough.
        (50, Some(200), 500, Some(500), KubeletOnly, Outcome::Reclaiming),
        (50, Some(50), 500, Some(500), Both, Outcome::Evict),
        (200, Some(50), 500, Some(500), MemAvailableOnly, Outcome::Evict),
        // Of the pods it was not read: how much of the machine's cache is theirs is not known, and the kubelet's
        // reading counts alone.
        (50, None, 400, Some(500), Both, Outcome::Evict),
        // The machine is below as well.
        (50, None, 20, Some(90), Both, Outcome::Evict),
        // That the machine is below says nothing of the pods.
        (200, None, 200, Some(50), Neither, Outcome::Evict),
        (50, None, 500, None, Both, Outcome::Evict),
    ] {
        let mut rig = Rig::with(&[hard(Signal::AllocatableMemoryAvailable, 100), hard(Signal::MemoryAvailable, 100)]);
        let node = NodeStats { memory: Some(memory(machine, 1)), pods: Some(memory(pods, 1)), ..NodeStats::default() };
        let observation = Observation {
            readings: Some(Readings::of(&node)),
            mem_available: mem_available.map(Bytes::mib),
            pods_mem_available: own.map(Bytes::mib),
            workloads: &[pod(1, 100, 0)],
            ..Observation::default()
        };
        let plan = rig.observe(1, &observation);
        assert_eq!(
            (plan.thresholds[0].case, plan.outcome),
            (case, outcome),
            "{pods} {own:?} {machine} {mem_available:?}"
        );
    }
}

#[test]
fn a_condition_names_its_case() {
    let mut rig = Rig::with(&[hard(Signal::AllocatableMemoryAvailable, 100), hard(Signal::MemoryAvailable, 100)]);
    for (second, (pods, own), (machine, mem_available), case, text) in [
        (1, (500, 500), (50, 500), Some(ConditionCase::KubeletOnly), "MemoryPressure (by the kubelet's reading only)"),
        (
            2,
            (500, 500),
            (500, 50),
            Some(ConditionCase::MemAvailableOnly),
            "MemoryPressure (by the kernel's reading only)",
        ),
        (3, (50, 500), (50, 500), Some(ConditionCase::KubeletOnly), "MemoryPressure (by the kubelet's reading only)"),
        // Nothing is below by both.
        (
            4,
            (50, 500),
            (500, 50),
            Some(ConditionCase::Mixed),
            "MemoryPressure (one threshold by the kubelet's reading only, another by the kernel's only)",
        ),
        (5, (50, 500), (50, 50), Some(ConditionCase::Both), "MemoryPressure"),
        // It stays for its transition period.
        (6, (500, 500), (500, 500), None, "MemoryPressure"),
    ] {
        let (memory, pods) = (Some(memory(machine, second)), Some(memory(pods, second)));
        let observation = Observation {
            readings: Some(Readings::of(&NodeStats { memory, pods, ..NodeStats::default() })),
            mem_available: Some(Bytes::mib(mem_available)),
            pods_mem_available: Some(Bytes::mib(own)),
            ..Observation::default()
        };
        assert!(rig.observe(second, &observation).conditions.has(Condition::MemoryPressure));
        assert_eq!(rig.plan.condition_case(&rig.config, Condition::MemoryPressure), case, "{second}");
        assert_eq!(text::condition(&rig.config, &rig.plan, Condition::MemoryPressure), text, "{second}");
        assert_eq!(rig.plan.condition_case(&rig.config, Condition::DiskPressure), None);
    }
}

#[test]
fn cache_in_the_way_is_reclaimed_and_only_a_stall_evicts() {
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    let pods = [pod(1, 100, 0)];
    let sample = |second, stalled, reclaimed| Observation {
        readings: Some(Readings::of(&NodeStats { memory: Some(memory(50, second)), ..NodeStats::default() })),
        mem_available: Some(Bytes::mib(500)),
        stall: Some(Stall { full: Duration::from_millis(stalled), window: Duration::from_secs(1) }),
        reclaimed,
        workloads: &pods,
        ..Observation::default()
    };
    let ended = Some(Reclaimed { order: 1, at: time(2) });
    assert_eq!(stage(rig.observe(1, &sample(1, 0, None))), Some(Stage::Memory(mib(50))));
    assert_eq!(rig.observe(2, &sample(2, 900, None)).outcome, Outcome::Reclaiming);
    assert_eq!(rig.observe(3, &sample(3, 0, ended)).outcome, Outcome::CacheInUse);
    assert_eq!(evicted(rig.observe(4, &sample(4, 900, ended))), [0]);
}

#[test]
fn huge_pages_that_were_set_aside_are_not_available() {
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    let node = NodeStats { memory: Some(memory(150, 1)), ..NodeStats::default() };
    let pods = [pod(1, 100, 0)];
    let observation = Observation {
        readings: Some(Readings::of(&node)),
        huge_page_pool: Bytes::mib(100),
        workloads: &pods,
        ..Observation::default()
    };
    assert_eq!(evicted(rig.observe(1, &observation)), [0]);
    assert_eq!(rig.plan.thresholds[0].missing(), mib(50));
}

#[test]
fn swap_is_pressure_only_if_it_is_short_and_comes_back_and_tasks_stall() {
    for (free, refaults, stalled, is_pressure) in
        [(10, 200, 500, true), (100, 200, 500, false), (10, 100, 500, false), (10, 200, 100, false)]
    {
        let mut rig = Rig::new(Config {
            swap: Some(SwapThreshold { free: ThresholdAmount::At(mib(50)), grace: Duration::ZERO }),
            thresholds: Vec::new(),
            ..Config::default()
        });
        let pods = [pod(1, 10, 0), Workload { swapped: Some(Bytes::mib(60)), ..pod(2, 1, 0) }];
        for (second, refaults) in [(1, 100), (2, refaults)] {
            rig.observe(
                second,
                &Observation {
                    readings: Some(Readings::of(&NodeStats {
                        memory: Some(memory(900, second)),
                        ..NodeStats::default()
                    })),
                    swap: Some(Swap { total: Bytes::mib(1000), free: Bytes::mib(free), refaults }),
                    stall: Some(Stall { full: Duration::from_millis(stalled), window: Duration::from_secs(1) }),
                    workloads: &pods,
                    ..Observation::default()
                },
            );
        }
        assert_eq!(rig.plan.conditions.has(Condition::MemoryPressure), is_pressure);
        let victims: &[u32] = if is_pressure { &[1] } else { &[] };
        assert_eq!(evicted(&rig.plan), victims, "{free} {refaults} {stalled}");
    }
}

#[test]
fn swapped_memory_counts_in_ranking_and_frees_none() {
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    let pods = [pod(1, 40, 0), Workload { swapped: Some(Bytes::mib(60)), ..pod(2, 10, 0) }];
    assert_eq!(evicted(rig.memory(1, 70, &pods)), [1, 0]);
    assert_eq!(rig.plan.deficit.map(|deficit| deficit.taken), Some(mib(50)));
}

#[test]
fn none_is_evicted_blindly_while_others_can_be_read() {
    let unread = |uid| Workload { uid: Uid(uid), ..Workload::default() };
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    assert_eq!(evicted(rig.memory(1, 95, &[unread(1), pod(2, 10, 0)])), [1]);
    let mut critical = pod(2, 10, 0);
    critical.facts.critical = Some(Critical::Priority);
    assert_eq!(rig.memory(2, 95, &[unread(1), critical]).outcome, Outcome::NoVictim(NoVictim::NoStatistics));
    assert_eq!((rig.verdict(0), rig.verdict(1)), (Verdict::NoStatistics, Verdict::Protected(Protected::Critical)));
    // Without any statistics one is evicted, and the next not before it is gone.
    assert_eq!(evicted(rig.memory(3, 5, &[unread(1), unread(2)])), [0]);
    assert_eq!(evicted(rig.memory(4, 5, &[terminating(&unread(1), false, false), unread(2)])), [] as [u32; 0]);
}

#[test]
fn equals_are_ordered_the_same_way_every_time() {
    let started = |uid, second| Workload { started: secs(second), ..pod(uid, 100, 0) };
    let (old, young, twin) = (started(1, 5), started(3, 9), started(2, 9));
    for pods in [[old, young, twin], [twin, old, young], [young, twin, old]] {
        let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
        let order: Vec<u128> = rig.memory(1, 50, &pods).ranked.iter().map(|ranked| ranked.uid.0).collect();
        assert_eq!(order, [2, 3, 1]);
    }
}

const STORAGE: [Signal; 2] = [Signal::NodeFsAvailable, Signal::ImageFsAvailable];

/// A node whose disks have so many MiB left.
fn disks(node: u64, images: u64, second: u64) -> NodeStats {
    NodeStats {
        memory: Some(memory(900, second)),
        node_fs: Some(disk(node, second)),
        image_fs: Some(disk(images, second)),
        ..NodeStats::default()
    }
}

fn on_disk(uid: u128, containers: &'static [ContainerStats]) -> Workload<'static> {
    let stats = Some(kubelet::PodStats { containers, ..kubelet::PodStats::default() });
    Workload { uid: Uid(uid), facts: kubelet::Pod { stats, ..kubelet::Pod::default() }, ..Workload::default() }
}

const fn container(rootfs: u64, logs: u64, inodes: u64) -> ContainerStats {
    ContainerStats {
        number: kubelet::Number(0),
        rootfs: Usage { bytes: Some(rootfs * MIB), inodes: Some(inodes) },
        logs: Usage { bytes: Some(logs * MIB), inodes: Some(0) },
    }
}

#[test]
fn a_failed_reading_after_a_clean_up_evicts_none() {
    let mut rig = Rig::with(&[hard(Signal::NodeFsAvailable, 100)]);
    let pods = [on_disk(1, const { &[container(100, 100, 1)] })];
    let sample = |node: Option<NodeStats>, reclaimed| Observation {
        readings: node.as_ref().map(Readings::of),
        reclaimed,
        workloads: &pods,
        ..Observation::default()
    };
    let ended = |order, second| Some(Reclaimed { order, at: time(second) });
    assert_eq!(stage(rig.observe(1, &sample(Some(disks(50, 900, 1)), None))), Some(Stage::Containers));
    assert_eq!(rig.observe(4, &sample(None, ended(1, 4))).outcome, Outcome::NoStatistics);
    assert!(rig.plan.conditions.has(Condition::DiskPressure));
    // Figures from before it ended, though newer than the last, do not count either.
    assert_eq!(rig.observe(5, &sample(Some(disks(50, 900, 4)), ended(1, 4))).outcome, Outcome::Reclaiming);
    assert_eq!(evicted(rig.observe(6, &sample(Some(disks(50, 900, 6)), ended(1, 4)))), [0]);
    // What the victim left behind is cleaned up before others have to go.
    assert_eq!(stage(rig.observe(7, &sample(Some(disks(50, 900, 7)), ended(1, 4)))), Some(Stage::Containers));
    // A clean-up that is never reported again is not waited for for ever.
    assert_eq!(rig.observe(30, &sample(Some(disks(50, 900, 30)), ended(1, 4))).outcome, Outcome::Reclaiming);
    assert_eq!(evicted(rig.observe(37, &sample(Some(disks(50, 900, 37)), ended(1, 4)))), [0]);
    // One that is known to have ended is: file systems are sampled seldom.
    assert_eq!(stage(rig.observe(38, &sample(Some(disks(50, 900, 38)), ended(1, 4)))), Some(Stage::Containers));
    let ended = ended(3, 57);
    assert_eq!(rig.observe(68, &sample(Some(disks(50, 900, 56)), ended)).outcome, Outcome::Reclaiming);
    assert_eq!(evicted(rig.observe(78, &sample(Some(disks(50, 900, 58)), ended))), [0]);
}

#[test]
fn another_signals_minimum_reclaim_evicts_none() {
    let mut rig = Rig::with(&[threshold(Signal::MemoryAvailable, 100, 0, 900), hard(Signal::NodeFsAvailable, 100)]);
    let pods = [on_disk(1, const { &[container(100, 100, 1)] })];
    let sample = |node, reclaimed| Observation {
        readings: Some(Readings::of(&node)),
        reclaimed,
        workloads: &pods,
        ..Observation::default()
    };
    assert_eq!(stage(rig.observe(1, &sample(disks(50, 900, 1), None))), Some(Stage::Containers));
    let ended = Some(Reclaimed { order: 1, at: time(2) });
    // Memory is at 900 of 1000, below its threshold plus minimum reclaim; the threshold itself was never crossed.
    let plan = rig.observe(3, &sample(disks(150, 900, 3), ended));
    assert_eq!((plan.outcome, plan.actions.len()), (Outcome::NoPressure, 0));
}

#[test]
fn where_evicting_does_not_help_a_disk_it_is_done_at_the_kubelets_pace_and_not_for_next_to_nothing() {
    // 50 MiB are missing. Pods of one MiB each, and of half of that, together hold less.
    let of = |uid, kib| Workload {
        uid: Uid(uid),
        facts: kubelet::Pod {
            stats: Some(kubelet::PodStats { containers: kib, ..kubelet::PodStats::default() }),
            ..kubelet::Pod::default()
        },
        ..Workload::default()
    };
    let whole: &'static [ContainerStats] = const { &[container(1, 0, 1)] };
    let half: &'static [ContainerStats] = const {
        let usage = Usage { bytes: Some(12 << 10), inodes: Some(1) };
        &[ContainerStats { number: kubelet::Number(0), rootfs: usage, logs: Usage { bytes: Some(0), inodes: Some(0) } }]
    };
    let pods = [of(1, half), of(2, whole), of(3, whole), of(4, half)];
    let mut rig = Rig::with(&[hard(Signal::NodeFsAvailable, 100)]);
    let mut sample = |second, pods: &[Workload<'_>]| {
        let readings = Some(Readings::of(&disks(50, 900, second)));
        let observation = Observation { readings, dead_containers: Some(0), workloads: pods, ..Observation::default() };
        rig.observe(second, &observation);
        let text = text::line(&rig.config, &rig.plan, None, |pod| pod);
        assert!(rig.plan.is_futile && text.contains("evicting does not help"), "{text}");
        let verdicts = (rig.plan.outcome, rig.verdict(0));
        (evicted(&rig.plan), verdicts, rig.plan.recheck_at)
    };
    let too_little = |outcome| (outcome, Verdict::TooLittle);
    assert_eq!(sample(1, &pods), (vec![1], too_little(Outcome::Evict), None));
    // The first one is gone, and nothing has changed.
    let rest = [pods[0], pods[2], pods[3]];
    assert_eq!(sample(2, &rest), (vec![], too_little(Outcome::RateLimited), Some(secs(11))));
    assert_eq!(sample(11, &rest), (vec![1], too_little(Outcome::Evict), None));
    let last = [pods[0], pods[3]];
    let nothing = Outcome::NoVictim(NoVictim::TooLittle);
    assert_eq!(sample(30, &last).1, too_little(nothing));
}

/// A pod of so many processes.
fn of_processes(uid: u128, processes: u64) -> Workload<'static> {
    let mut pod = pod(uid, 1, 0);
    pod.facts.stats.as_mut().expect("some").processes = Some(processes);
    pod
}

/// So many processes of the 2000 that there can be, with a hard threshold at 100.
fn with_processes<'a>(rig: &'a mut Rig, second: u64, running: i64, pods: &[Workload<'_>]) -> &'a Plan {
    let tasks = PidStats { max: Some(2000), running: Some(running), time: Some(time(second)) };
    let readings = Some(Readings::of(&NodeStats { pids: Some(tasks), ..NodeStats::default() }));
    rig.observe(second, &Observation { readings, workloads: pods, ..Observation::default() })
}

#[test]
fn for_processes_the_lowest_priority_goes_first_and_then_the_most_processes() {
    let ranked = |rig: &mut Rig, pods: &[Workload<'_>]| {
        with_processes(rig, 1, 1950, pods).ranked.iter().map(|ranked| ranked.workload).collect::<Vec<_>>()
    };
    let mut low = of_processes(1, 60);
    low.facts.priority = -1;
    for policy in EvictionPolicy::ALL {
        let config =
            Config { thresholds: vec![hard(Signal::PidAvailable, 100)], eviction_policy: policy, ..Config::default() };
        let mut rig = Rig::new(config);
        assert_eq!(ranked(&mut rig, &[of_processes(2, 70), of_processes(3, 900), low]), [2, 1, 0], "{policy}");
        assert_eq!(evicted(&rig.plan), [2], "{policy}");
        assert!(rig.plan.attribution.is_none() && rig.plan.conditions.has(Condition::PidPressure), "{policy}");
    }
}

#[test]
fn where_evicting_does_not_help_processes_it_is_done_at_the_kubelets_pace_and_not_for_next_to_nothing() {
    // 90 are missing: they are in no pod.
    let mut rig = Rig::with(&[hard(Signal::PidAvailable, 100)]);
    let pods = [of_processes(1, 5), of_processes(2, 9), of_processes(3, 0)];
    assert_eq!(evicted(with_processes(&mut rig, 1, 1990, &pods)), [1]);
    assert!(rig.plan.is_futile);
    let rest = [pods[0], pods[2]];
    assert_eq!(with_processes(&mut rig, 2, 1990, &rest).outcome, Outcome::RateLimited);
    assert_eq!(rig.plan.recheck_at, Some(secs(11)));
    assert_eq!(evicted(with_processes(&mut rig, 11, 1990, &rest)), [0]);
}

#[test]
fn what_victims_leave_to_be_waited_for_comes_back_by_evicting_no_other() {
    let mut rig = Rig::with(&[hard(Signal::PidAvailable, 100)]);
    // 300 are in no pod.
    let pods = [of_processes(1, 1200), of_processes(2, 450)];
    assert_eq!(evicted(with_processes(&mut rig, 1, 1950, &pods)), [0]);
    // Its cgroup is gone, and none of its processes was waited for.
    assert_eq!(with_processes(&mut rig, 2, 1950, &pods[1..]).outcome, Outcome::ComingBack);
    // A hundred are left, and another has taken the others' place.
    assert_eq!(with_processes(&mut rig, 3, 1940, &[of_processes(2, 1540)]).outcome, Outcome::ComingBack);
    assert_eq!(rig.plan.deficit.map(|deficit| deficit.coming), Some(Amount::whole(100)));
    assert_eq!(evicted(with_processes(&mut rig, 4, 1940, &[of_processes(2, 1640)])), [0]);
    // They are not waited for without end, and no longer than ten seconds after the last one ran.
    for (ran_until, evicted_at) in [(1, 11), (8, 18)] {
        let mut rig = Rig::with(&[hard(Signal::PidAvailable, 100)]);
        let evicts = |second: &u64| {
            let dying = [terminating(&of_processes(1, 0), false, false), pods[1]];
            let seen = match *second {
                1 => &pods[..],
                second if second <= ran_until => &dying,
                _ => &pods[1..],
            };
            with_processes(&mut rig, *second, 1950, seen).outcome == Outcome::Evict
        };
        assert_eq!((1..30).filter(evicts).take(2).collect::<Vec<_>>(), [1, evicted_at]);
    }
}

#[test]
fn a_disk_signal_without_a_usable_ranking_evicts_none() {
    let mut rig = Rig::with(&STORAGE.map(|signal| hard(signal, 100)));
    let with_images = |uid, own| Workload {
        own_images: Usage { bytes: own, inodes: None },
        ..on_disk(uid, const { &[container(500, 500, 1)] })
    };
    let sample = |pods| Observation {
        layout: Some(DiskLayout::SplitImageFs),
        readings: Some(Readings::of(&disks(900, 50, 1))),
        workloads: pods,
        ..Observation::default()
    };
    // Writable layers and logs are on the other disk, and which pod uses these images is not known.
    let unknown = [with_images(1, None), with_images(2, None)];
    assert_eq!(rig.observe(1, &sample(&unknown)).outcome, Outcome::NoVictim(NoVictim::NoUsableRanking));
    let shared = [with_images(1, Some(0)), with_images(2, Some(0))];
    let mut rig = Rig::with(&STORAGE.map(|signal| hard(signal, 100)));
    assert_eq!(rig.observe(1, &sample(&shared)).outcome, Outcome::NoVictim(NoVictim::NothingToFree));
    assert_eq!(rig.verdict(1), Verdict::NothingToFree);
    // By bytes of images that only this pod uses.
    let known = [with_images(1, Some(10 * MIB)), with_images(2, Some(70 * MIB)), with_images(3, Some(20 * MIB))];
    let mut rig = Rig::with(&STORAGE.map(|signal| hard(signal, 100)));
    assert_eq!(evicted(rig.observe(1, &sample(&known))), [1]);
}

#[test]
fn a_condition_is_reported_even_with_a_transition_period_of_zero() {
    let mut rig = Rig::new(Config {
        thresholds: vec![hard(Signal::MemoryAvailable, 100)],
        pressure_transition: Duration::ZERO,
        ..Config::default()
    });
    assert!(rig.memory(1, 50, &[]).conditions.has(Condition::MemoryPressure));
    assert!(!rig.memory(2, 150, &[]).conditions.has(Condition::MemoryPressure));
}

#[test]
fn bytes_are_not_subtracted_from_inodes() {
    let mut promised = on_disk(1, const { &[container(0, 0, 90)] });
    promised.facts.ephemeral_storage_request = mib(100);
    let mut rig = Rig::with(&[hard(Signal::NodeFsInodesFree, 100)]);
    let observation = Observation {
        readings: Some(Readings::of(&disks(50, 900, 1))),
        dead_containers: Some(0),
        workloads: &[on_disk(2, const { &[container(0, 0, 10)] }), promised],
        ..Observation::default()
    };
    assert_eq!(evicted(rig.observe(1, &observation)), [1]);
}

#[test]
fn what_is_cleaned_up_by_layout() {
    use DiskLayout::{DedicatedImageFs, Single, SplitImageFs};
    let image = Image { is_unused: true, ..Image::default() };
    for (signal, layout, first, second) in [
        (Signal::NodeFsAvailable, Single, Some(Stage::Containers), Some(Stage::Images)),
        (Signal::ImageFsAvailable, Single, Some(Stage::Containers), Some(Stage::Images)),
        // The documentation says so, and the kubelet's code does nothing.
        (Signal::NodeFsAvailable, DedicatedImageFs, Some(Stage::Containers), None),
        (Signal::NodeFsInodesFree, DedicatedImageFs, Some(Stage::Containers), None),
        (Signal::ImageFsAvailable, DedicatedImageFs, Some(Stage::Containers), Some(Stage::Images)),
        (Signal::NodeFsAvailable, SplitImageFs, Some(Stage::Containers), None),
        (Signal::ImageFsAvailable, SplitImageFs, Some(Stage::Images), None),
    ] {
        let mut rig = Rig::with(&[hard(signal, 100)]);
        let mut sample = |second, reclaimed, images: &[Image]| {
            let observation = Observation {
                layout: Some(layout),
                readings: Some(Readings::of(&disks(50, 50, second))),
                reclaimed,
                images,
                ..Observation::default()
            };
            stage(rig.observe(second, &observation))
        };
        assert_eq!(sample(1, None, &[image]), first, "{signal} {layout:?}");
        // Where it did not help, images that could not be removed are not tried a second time.
        let after = Some(Reclaimed { order: 1, at: time(2) });
        assert_eq!(sample(3, after, &[image]), second, "{signal} {layout:?}");
    }
}

#[test]
fn unused_images_go_oldest_first_until_it_is_enough() {
    let image =
        |used, size, is_unused| Image { is_unused, last_used: secs(used), usage: Usage { bytes: size, inodes: None } };
    let images = [
        image(30, Some(40 * MIB), true),
        image(10, Some(40 * MIB), true),
        image(5, Some(900 * MIB), false),
        image(20, Some(40 * MIB), true),
    ];
    for (available, min_reclaim, chosen) in [(80, 0, &[1][..]), (50, 0, &[1, 3]), (50, 70, &[1, 3, 0])] {
        let mut rig = Rig::with(&[threshold(Signal::ImageFsAvailable, 100, 0, min_reclaim)]);
        let observation = Observation {
            layout: Some(DiskLayout::SplitImageFs),
            readings: Some(Readings::of(&disks(900, available, 1))),
            images: &images,
            ..Observation::default()
        };
        assert_eq!(rig.observe(1, &observation).images, chosen);
    }
    // One of unknown size: another sample is due after it.
    let mut rig = Rig::with(&[hard(Signal::ImageFsInodesFree, 100)]);
    let observation = Observation {
        readings: Some(Readings::of(&disks(900, 50, 1))),
        dead_containers: Some(0),
        images: &images,
        ..Observation::default()
    };
    assert_eq!(rig.observe(1, &observation).images, [1]);
}

#[test]
fn what_dies_while_none_can_be_evicted_is_cleaned_up_too() {
    let image = Image { is_unused: true, ..Image::default() };
    let mut critical = on_disk(1, const { &[container(100, 0, 1)] });
    critical.facts.critical = Some(Critical::Priority);
    let evictable = on_disk(2, const { &[container(100, 0, 1)] });
    let [one, both] = [&[critical][..], &[critical, evictable]];
    let mut rig = Rig::with(&[hard(Signal::NodeFsAvailable, 100)]);
    let mut sample = |second, dead, images: usize, ended: Option<u64>, pods| {
        let observation = Observation {
            readings: Some(Readings::of(&disks(50, 900, second))),
            dead_containers: Some(dead),
            images: &[image; 9][..images],
            // Each ended in the second before.
            reclaimed: ended.map(|order| Reclaimed { order, at: time(second - 1) }),
            workloads: pods,
            ..Observation::default()
        };
        let plan = rig.observe(second, &observation);
        (plan.outcome, stage(plan), evicted(plan), plan.recheck_at)
    };
    let no_victim = |again: Option<u64>| (Outcome::NoVictim(NoVictim::AllProtected), None, vec![], again.map(secs));
    let cleans = |second: u64, stage| (Outcome::Reclaiming, Some(stage), vec![], Some(secs(second + 10)));
    let evicts = |pod| (Outcome::Evict, None, vec![pod], None);
    assert_eq!(sample(1, 2, 3, None, one), cleans(1, Stage::Containers));
    assert_eq!(sample(3, 0, 3, Some(1), one), cleans(3, Stage::Images));
    assert_eq!(sample(5, 0, 0, Some(2), one), no_victim(Some(15)));
    assert_eq!(sample(6, 0, 0, Some(2), one), no_victim(Some(15)));
    // More images than before are left without a user: they are removed before a pod is evicted.
    assert_eq!(sample(7, 0, 5, Some(2), both), cleans(7, Stage::Images));
    // They could not be removed, and a pod can be evicted.
    assert_eq!(sample(9, 0, 5, Some(3), both), evicts(1));
    // Dead containers likewise.
    assert_eq!(sample(10, 1, 0, Some(3), one), cleans(10, Stage::Containers));
    assert_eq!(sample(12, 1, 0, Some(4), one), no_victim(Some(22)));
    assert_eq!(sample(13, 2, 0, Some(4), both), cleans(13, Stage::Containers));
    // As many as before are tried again after a while, and not sooner.
    assert_eq!(sample(15, 2, 1, Some(5), one), cleans(15, Stage::Images));
    assert_eq!(sample(17, 2, 1, Some(6), one), no_victim(Some(27)));
    assert_eq!(sample(26, 2, 1, Some(6), one), no_victim(Some(27)));
    assert_eq!(sample(27, 2, 1, Some(6), one), cleans(27, Stage::Containers));
    // What could not be removed before spares no pod.
    assert_eq!(sample(29, 2, 0, Some(7), both), evicts(1));
}

#[test]
fn derived_thresholds_hold_from_the_first_turn() {
    for (origin, outcome) in [
        (Origin::Derived, Outcome::Reclaiming),
        (Origin::DerivedInPlace, Outcome::Reclaiming),
        (Origin::ReplacedInCopy, Outcome::NotObserved),
    ] {
        let mut rig = Rig::with(&[Threshold { origin, ..hard(Signal::ContainerFsAvailable, 100) }]);
        let node = NodeStats { container_fs: Some(disk(50, 1)), ..disks(900, 900, 1) };
        assert_eq!(
            rig.observe(1, &Observation { readings: Some(Readings::of(&node)), ..Observation::default() }).outcome,
            outcome
        );
    }
}

#[test]
fn nothing_is_cleaned_up_for_what_comes_back_by_itself() {
    let mut rig = Rig::with(&[hard(Signal::NodeFsAvailable, 100)]);
    let pods = [terminating(&on_disk(1, const { &[container(40, 40, 1)] }), false, false)];
    let observation =
        Observation { readings: Some(Readings::of(&disks(50, 900, 1))), workloads: &pods, ..Observation::default() };
    assert_eq!(rig.observe(1, &observation).outcome, Outcome::ComingBack);
}

#[test]
fn pods_over_limits_of_their_own_go_but_not_twice() {
    let mut over = pod(1, 10, 0);
    over.facts.ephemeral_storage_limit = Some(mib(1));
    over.facts.stats.as_mut().expect("some").ephemeral_storage = Some(2 * MIB);
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    assert_eq!(rig.memory(1, 95, &[pod(2, 10, 0), over]).outcome, Outcome::OverLimits);
    assert_eq!(evicted(&rig.plan), [1]);
    assert_eq!(evicted(rig.memory(2, 80, &[pod(2, 10, 0), terminating(&over, false, false)])), [0]);
}

#[test]
fn limits_of_pods_delay_no_hard_threshold() {
    let mut over = pod(1, 60, 0);
    over.facts.ephemeral_storage_limit = Some(mib(1));
    over.facts.stats.as_mut().expect("some").ephemeral_storage = Some(2 * MIB);
    let pods = [pod(2, 40, 0), over];
    let mut rig = Rig::with(&[threshold(Signal::MemoryAvailable, 500, 1, 0), hard(Signal::MemoryAvailable, 100)]);
    // What it holds is enough for the hard threshold, and the soft one waits.
    assert_eq!(rig.memory(1, 50, &pods).outcome, Outcome::OverLimits);
    assert_eq!((evicted(&rig.plan), rig.plan.acting), (vec![1], None));
    // Its kill failed: it is not counted on a second time.
    let plan = rig.memory(2, 50, &pods);
    assert_eq!((plan.outcome, evicted(plan)), (Outcome::Evict, vec![1, 0]));
    assert_eq!(plan.acting().map(|status| status.why), Some(Why::Threshold(1)));
    assert_eq!((rig.verdict(1), rig.verdict(0)), (Verdict::OverLimit, Verdict::Evicted));
    // Soft thresholds do not wait for it for ever either.
    let plan = rig.memory(3, 150, &pods);
    assert_eq!((plan.outcome, evicted(plan)), (Outcome::Evict, vec![1, 0]));
    assert_eq!(plan.acting().map(|status| status.why), Some(Why::Threshold(0)));
    // However many they are.
    let many: Vec<Workload<'_>> =
        (10..109).map(|uid| Workload { uid: Uid(uid), ..over }).chain([pod(2, 40, 0)]).collect();
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    assert_eq!(rig.memory(1, 50, &many).outcome, Outcome::OverLimits);
    let plan = rig.memory(2, 50, &many);
    assert_eq!((plan.outcome, evicted(plan).last()), (Outcome::Evict, Some(&99)));
    assert_eq!(plan.deficit.map(|deficit| deficit.coming), Some(Amount::ZERO));
    // Not enough for the hard threshold: others go in the same turn.
    let mut rig = Rig::with(&[hard(Signal::MemoryAvailable, 100)]);
    let plan = rig.memory(1, 20, &pods);
    assert_eq!((plan.outcome, evicted(plan)), (Outcome::Evict, vec![1, 0]));
    assert_eq!(plan.deficit.map(|deficit| (deficit.coming, deficit.taken)), Some((mib(60), mib(40))));
}

#[test]
fn openshift3_evicts_by_class() {
    let of = |uid, qos, used, request, priority| {
        let mut pod = Workload { qos, ..pod(uid, used, request) };
        pod.facts.priority = priority;
        pod
    };
    let young = |pod| Workload { started: secs(9), ..pod };
    let pods = [
        of(1, QosClass::Guaranteed, 50, 50, -10),
        young(of(2, QosClass::Guaranteed, 50, 50, 10)),
        of(3, QosClass::Burstable, 90, 100, -10),
        of(4, QosClass::Burstable, 60, 20, 0),
        of(5, QosClass::Burstable, 55, 5, 1000),
        of(6, QosClass::BestEffort, 10, 0, -10),
        of(7, QosClass::BestEffort, 20, 0, 1000),
        of(8, QosClass::Burstable, 95, 100, 0),
        of(9, QosClass::Guaranteed, 80, 90, 1000),
    ];
    let config = Config {
        thresholds: vec![hard(Signal::MemoryAvailable, 900)],
        eviction_policy: EvictionPolicy::OpenShift3,
        ..Config::default()
    };
    let mut rig = Rig::new(config.clone());
    let order: Vec<u128> = rig.memory(1, 1, &pods).ranked.iter().map(|ranked| ranked.uid.0).collect();
    assert_eq!(order, [7, 6, 5, 4, 8, 3, 9, 2, 1]);

    // One that holds nothing is passed over, whatever its class.
    let mut rig = Rig::new(config.clone());
    rig.memory(1, 1, &[of(1, QosClass::Guaranteed, 50, 50, 0), of(2, QosClass::BestEffort, 0, 0, 0)]);
    assert_eq!((rig.verdict(0), rig.verdict(1)), (Verdict::Evicted, Verdict::NothingToFree));

    // Guaranteed ones wait for one that could not be read.
    let unread = Workload { uid: Uid(10), qos: QosClass::Burstable, ..Workload::default() };
    let mut rig = Rig::new(config.clone());
    rig.memory(1, 1, &[of(1, QosClass::Guaranteed, 50, 50, 0), unread]);
    assert_eq!((rig.verdict(0), rig.verdict(1)), (Verdict::ClassRemains, Verdict::NoStatistics));

    // Disks as plimsoll does it: over the request, then priority.
    let mut rig = Rig::new(Config { thresholds: vec![hard(Signal::NodeFsAvailable, 100)], ..config });
    let mut guaranteed = on_disk(1, const { &[container(60, 0, 1)] });
    (guaranteed.qos, guaranteed.facts.priority) = (QosClass::Guaranteed, -1);
    let observation = Observation {
        readings: Some(Readings::of(&disks(50, 900, 1))),
        dead_containers: Some(0),
        workloads: &[on_disk(2, const { &[container(90, 0, 1)] }), guaranteed],
        ..Observation::default()
    };
    assert_eq!(evicted(rig.observe(1, &observation)), [1]);
}

#[test]
fn plans_read_as_words() {
    let mut rig = Rig::with(&[threshold(Signal::MemoryAvailable, 100, 0, 20), hard(Signal::NodeFsAvailable, 100)]);
    let name = |pod| ["web", "db", "agent", "job"][pod as usize];
    let mut critical = pod(3, 500, 0);
    critical.facts.critical = Some(Critical::Static);
    let pods = [pod(1, 60, 40), pod(2, 90, 100), critical, Workload { uid: Uid(4), ..Workload::default() }];
    rig.memory(1, 70, &pods);
    assert_eq!(
        text::line(&rig.config, &rig.plan, None, name),
        "evicting: 70.0 MiB memory.available by the kubelet's formula of 1000.0 MiB; memory.available 70.0 MiB, below its \
         hard threshold 100.0 MiB, with minimum reclaim 120.0 MiB; missing 50.0 MiB; coming back 0 B, taken 60.0 MiB; \
         since memory was plentiful it fell by 930.0 MiB, workloads that may be evicted grew by 150.0 MiB and protected \
         ones by 500.0 MiB; evict web within 1 s (uses 60.0 MiB, 20.0 MiB over its request, priority 0, Burstable, grew \
         60.0 MiB)"
    );
    assert_eq!(
        text::ranking(&rig.config, &rig.plan, name),
        "agent: never evicted: a static pod; uses 500.0 MiB, 500.0 MiB over its request, priority 0, Burstable, grew 500.0 \
         MiB\n\
         web: evicted; uses 60.0 MiB, 20.0 MiB over its request, priority 0, Burstable, grew 60.0 MiB\n\
         db: not needed, those before it are enough; uses 90.0 MiB, within its request, priority 0, Burstable, grew 90.0 \
         MiB\n\
         job: could not be read, and nothing is evicted blindly; usage unknown, priority 0, BestEffort\n"
    );
    rig.observe(2, &Observation { readings: Some(Readings::of(&disks(50, 900, 2))), ..Observation::default() });
    assert_eq!(
        text::line(&rig.config, &rig.plan, None, name),
        "reclaiming before anything is evicted: 900.0 MiB memory.available by the kubelet's formula of 1000.0 MiB; \
         nodefs.available 50.0 MiB, below its hard threshold 100.0 MiB; missing 50.0 MiB; remove dead containers"
    );
}

#[test]
fn promises_are_reported_only_where_there_can_be_some() {
    let mut pod = on_disk(1, const { &[container(50, 0, 100)] });
    pod.facts.ephemeral_storage_request = mib(100);
    pod.facts.stats.as_mut().expect("some").processes = Some(7);
    pod.own_images = Usage { bytes: Some(3 * MIB), inodes: Some(5) };
    let node = NodeStats {
        pids: Some(PidStats { max: Some(1000), running: Some(995), time: Some(time(1)) }),
        ..disks(50, 50, 1)
    };
    let name = |_| "web";
    for (signal, layout, keys, kubelet_keys) in [
        (
            Signal::NodeFsAvailable,
            DiskLayout::Single,
            "uses 50.0 MiB, within its request, priority 0",
            "uses 50.0 MiB, within its request, priority 0",
        ),
        (
            Signal::NodeFsInodesFree,
            DiskLayout::Single,
            "uses 100, priority 0",
            "uses 100, -104857500 inodes less the bytes of storage that it requests, priority 0",
        ),
        (Signal::PidAvailable, DiskLayout::Single, "uses 7, priority 0", "uses 7, priority 0"),
        (
            Signal::ImageFsAvailable,
            DiskLayout::SplitImageFs,
            "uses 3.0 MiB, priority 0",
            "uses 0 B, within its request, priority 0",
        ),
        (
            Signal::ImageFsInodesFree,
            DiskLayout::SplitImageFs,
            "uses 5, priority 0",
            "uses 0, -104857600 inodes less the bytes of storage that it requests, priority 0",
        ),
    ] {
        let mut rig = Rig::with(&[hard(signal, 100)]);
        let (layout, node) = (Some(layout), Some(node));
        let observation = Observation {
            layout,
            readings: node.as_ref().map(Readings::of),
            dead_containers: Some(0),
            workloads: &[pod],
            ..Observation::default()
        };
        rig.observe(1, &observation);
        let words = text::ranking(&rig.config, &rig.plan, name);
        assert_eq!(words, format!("web: evicted; {keys}, BestEffort\n"), "{signal}");

        let config = Config {
            eviction_policy: EvictionPolicy::Kubelet,
            thresholds: rig.config.thresholds.clone(),
            ..Config::default()
        };
        let mut rig = Rig::new(config);
        let observation = Observation {
            layout,
            readings: node.as_ref().map(Readings::of),
            workloads: &[pod],
            ..Observation::default()
        };
        let reclaim = rig.observe(1, &observation).reclaim();
        if let Some(order) = reclaim {
            let reclaimed = Some(Reclaimed { order: order.order, at: time(1) });
            rig.observe(2, &Observation { reclaimed, ..observation });
        }
        let words = text::ranking(&rig.config, &rig.plan, name);
        assert_eq!(words, format!("web: evicted; {kubelet_keys}, BestEffort\n"), "{signal}");
    }
}

#[test]
fn each_difference_in_the_document_has_the_tests_that_it_names() {
    let document = include_str!("../../docs/eviction-policies.md");
    let here = [
        include_str!("plimsoll.rs"),
        include_str!("decisions/growth.rs"),
        include_str!("decisions/owners.rs"),
        include_str!("decisions/thresholds.rs"),
    ];
    let laws = [include_str!("eviction_policy_laws.rs"), include_str!("laws.rs")];
    let others = [include_str!("../../replay/tests/replay.rs"), include_str!("../../inventory/src/termination.rs")];
    let tests = [&here[..], &laws[..], &others[..]].concat();
    // Names of tests are words with two underscores or more; nothing else that the document quotes is but metrics.
    let is_name = |quoted: &&str| {
        quoted.matches('_').count() > 1
            && !quoted.starts_with("plimsoll_")
            && quoted.chars().all(|each| each == '_' || each.is_ascii_lowercase() || each.is_ascii_digit())
    };
    let names = |part: &'static str| part.split('`').skip(1).step_by(2).filter(is_name);
    let missing: Vec<&str> =
        names(document).filter(|name| !tests.iter().any(|file| file.contains(&format!("fn {name}(")))).collect();
    assert_eq!(missing, [] as [&str; 0]);
    let paragraphs: Vec<&str> = document.split("\n### ").skip(1).collect();
    assert!(paragraphs.len() > 15);
    for paragraph in paragraphs {
        let paragraph = paragraph.split("\n## ").next().expect("a part");
        let has = |name: &str| here.iter().any(|file| file.contains(&format!("fn {name}()")));
        assert!(names(paragraph).any(has), "{paragraph}");
    }
}
