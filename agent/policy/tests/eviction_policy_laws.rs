//! Laws of the eviction policies over pods, for every node and every workload. The kubelet's own is held to those that
//! it keeps.

use plimsoll_policy::kubelet::{
    self, Amount, Condition, Conditions, ContainerStats, Critical, DiskLayout, FsStats, MemoryStats, NodeStats, Origin,
    PidStats, QosClass, Readings, Signal, StatsTime, Threshold, ThresholdAmount, Usage,
};
use plimsoll_policy::{
    Action, Config, EvictionPolicy, Image, Key, Observation, OwnerUid, Plan, Reclaimed, Stall, State, Swap,
    SwapThreshold, Terminating, Uid, Verdict, Why, Workload, decide,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Percentage};
use proptest::prelude::*;
use std::cell::Cell;
use std::time::Duration;

const CAPACITY: u64 = 1000;
const LAYOUTS: [DiskLayout; 3] = [DiskLayout::Single, DiskLayout::DedicatedImageFs, DiskLayout::SplitImageFs];

/// So many runs of a law, of a hundred, have to see an eviction.
const BITES: u32 = 20;

/// How many runs there were, and how many of them saw an eviction.
#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    all: u32,
    with_evictions: u32,
}

impl Runs {
    fn add(counter: &'static std::thread::LocalKey<Cell<Self>>, has_evictions: bool) {
        let Self { all, with_evictions } = counter.get();
        counter.set(Self { all: all + 1, with_evictions: with_evictions + u32::from(has_evictions) });
    }
}

thread_local! {
    /// Of our own eviction policies.
    static OURS: Cell<Runs> = Cell::default();
    /// Of the kubelet's.
    static KUBELETS: Cell<Runs> = Cell::default();
}

/// Configurations with as many thresholds, slices and victims, and one with another number of victims.
fn other_configs(config: &Config) -> Vec<Config> {
    let with_first = |change: &dyn Fn(&mut Threshold)| {
        let mut other = config.clone();
        other.thresholds.iter_mut().take(1).for_each(change);
        other
    };
    let mut reversed = config.clone();
    reversed.thresholds.reverse();
    let amount = Some(ThresholdAmount::bytes(Bytes(7)));
    let others = [
        with_first(&|threshold| threshold.signal = Signal::PidAvailable),
        with_first(&|threshold| threshold.amount = amount),
        with_first(&|threshold| threshold.grace += Duration::from_nanos(1)),
        with_first(&|threshold| threshold.min_reclaim = amount),
        reversed,
        Config { hard_victims_per_minute: config.hard_victims_per_minute + 1, ..config.clone() },
    ];
    // By their text: a share that is no number is equal to nothing.
    others.into_iter().filter(|other| format!("{other:?}") != format!("{config:?}")).collect()
}

/// Laws for generated cases, each a test that fails as well if hardly a case sees an eviction: it would hold whatever
/// the code does.
macro_rules! laws {
    ($(#[test] fn $name:ident($($case:tt)*) $law:block)*) => {
        $(
            #[test]
            fn $name() {
                proptest!(|($($case)*)| $law);
                assert!(OURS.get().all > 0);
                for runs in [OURS.get(), KUBELETS.get()] {
                    assert!(runs.with_evictions * 100 >= runs.all * BITES, "{runs:?} see an eviction");
                }
            }
        )*
    };
}

/// A pod that owns what [`Workload`] borrows.
#[derive(Clone, Debug)]
struct Owned {
    pod: Workload<'static>,
    containers: Vec<ContainerStats>,
}

impl Owned {
    fn pod(&self) -> Workload<'_> {
        let mut pod: Workload<'_> = self.pod;
        if let Some(stats) = &mut pod.facts.stats {
            stats.containers = &self.containers;
        }
        pod
    }
}

fn stats() -> impl Strategy<Value = (kubelet::PodStats<'static>, ContainerStats)> {
    (0_u64..400, 0_u64..50, 0_u64..200, 0_u64..200, 0_u64..100).prop_map(
        |(working_set, processes, rootfs, logs, inodes)| {
            let stats = kubelet::PodStats {
                working_set: Some(working_set),
                processes: Some(processes),
                ephemeral_storage: Some(rootfs + logs),
                ..kubelet::PodStats::default()
            };
            let container = ContainerStats {
                number: kubelet::Number(0),
                rootfs: Usage { bytes: Some(rootfs), inodes: Some(inodes) },
                logs: Usage { bytes: Some(logs), inodes: Some(0) },
            };
            (stats, container)
        },
    )
}

fn workload() -> impl Strategy<Value = Owned> {
    let qos = prop::sample::select(vec![QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed]);
    let critical = prop::option::weighted(
        0.15,
        prop::sample::select(vec![Critical::Static, Critical::Mirror, Critical::Priority]),
    );
    let facts = (prop::option::weighted(0.9, stats()), 0_i64..200, 0_i64..200, -2_i32..3, critical);
    let going = prop::option::weighted(0.15, (any::<bool>(), any::<bool>(), prop::option::of(0_u64..300)));
    let owner = prop::option::weighted(0.4, 0_u128..3);
    let limit = prop::option::weighted(0.02, 0_i64..300);
    let rest = (qos, 0_u64..120, owner, 0_u64..50, prop::option::of(0_u64..100), going, limit);
    (facts, rest).prop_map(|((stats, memory, storage, priority, critical), rest)| {
        let (qos, started, owner, swapped, own_images, going, limit) = rest;
        let pod = Workload {
            facts: kubelet::Pod {
                priority,
                critical,
                memory_request: Amount::whole(memory),
                ephemeral_storage_request: Amount::whole(storage),
                ephemeral_storage_limit: limit.map(Amount::whole),
                grace_seconds: Some(30),
                stats: stats.map(|(stats, _)| stats),
                ..kubelet::Pod::default()
            },
            qos,
            started: MonotonicNs(started * 1_000_000_000),
            daemon_set: owner.map(OwnerUid),
            swapped: Some(Bytes(swapped)),
            own_images: Usage { bytes: own_images, inodes: own_images },
            terminating: going.map(|(is_stuck, is_graceful, until)| Terminating {
                is_stuck,
                is_graceful,
                until: until.map(|until| MonotonicNs(until * 1_000_000_000)),
                ..Terminating::default()
            }),
            ..Workload::default()
        };
        Owned { pod, containers: stats.into_iter().map(|(_, container)| container).collect() }
    })
}

#[derive(Clone, Debug)]
struct Step {
    after: u64,
    /// What is left of 1000 each, by signal.
    left: [Option<u64>; Signal::ALL.len()],
    has_statistics: bool,
    /// The statistics are those of the step before.
    is_old: bool,
    mem_available: Option<u64>,
    /// The kernel's reading has a time of its own.
    has_mem_available_time: bool,
    pods_mem_available: Option<u64>,
    huge_pages: u64,
    stalled: u64,
    swap_free: u64,
    images: Vec<Image>,
    workloads: Vec<Owned>,
}

fn step() -> impl Strategy<Value = Step> {
    let image = (any::<bool>(), 0_u64..9, prop::option::of(0_u64..100)).prop_map(|(is_unused, used, bytes)| Image {
        is_unused,
        last_used: MonotonicNs(used),
        usage: Usage { bytes, inodes: bytes },
    });
    let left = prop::array::uniform9(prop::option::weighted(0.95, 0..CAPACITY));
    let workloads = prop::collection::vec(workload(), 0..10).prop_map(|mut workloads| {
        for (uid, workload) in (1_u128..).zip(&mut workloads) {
            workload.pod.uid = Uid(uid);
            let id = u64::try_from(uid).expect("few");
            workload.pod.key = Key { slot: u32::try_from(uid - 1).expect("few"), id: CgroupId(id) };
        }
        workloads
    });
    (
        (1_u64..40, left, prop::bool::weighted(0.95), prop::bool::weighted(0.1)),
        (prop::option::of(0..CAPACITY), any::<bool>(), prop::option::of(0..CAPACITY), prop_oneof![Just(0), 0_u64..300]),
        (0_u64..1000, 0_u64..200, prop::collection::vec(image, 0..5), workloads),
    )
        .prop_map(|((after, left, has_statistics, is_old), memory, (stalled, swap_free, images, workloads))| {
            let (mem_available, has_mem_available_time, pods_mem_available, huge_pages) = memory;
            Step {
                after,
                left,
                has_statistics,
                is_old,
                mem_available,
                has_mem_available_time,
                pods_mem_available,
                huge_pages,
                stalled,
                swap_free,
                images,
                workloads,
            }
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..10)
}

/// So many hundredths of what there is, said in one way or the other; or a share that is no number, which a kubelet
/// takes.
fn amount(hundredths: core::ops::Range<u16>) -> impl Strategy<Value = ThresholdAmount> {
    let in_range = (hundredths, any::<bool>()).prop_map(|(hundredths, is_share)| {
        if is_share {
            ThresholdAmount::Share(Percentage::of_one(f32::from(hundredths) / 100.0))
        } else {
            ThresholdAmount::At(Amount::whole(i64::from(hundredths) * 10))
        }
    });
    prop_oneof![19 => in_range, 1 => Just(ThresholdAmount::Share(Percentage::of_one(f32::NAN)))]
}

fn threshold(graces: impl Strategy<Value = u64>) -> impl Strategy<Value = Threshold> {
    let origins = [Origin::Configured, Origin::Derived, Origin::DerivedInPlace, Origin::ReplacedInCopy];
    let kind = (prop::sample::select(Signal::ALL.to_vec()), prop::sample::select(origins.to_vec()));
    (kind, amount(5..70), graces, prop::option::of(amount(0..30))).prop_map(
        |((signal, origin), amount, grace, min_reclaim)| Threshold {
            signal,
            amount: Some(amount),
            grace: Duration::from_secs(grace),
            min_reclaim,
            // Only those on the disk of writable layers are ever derived.
            origin: match signal {
                Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => origin,
                _ => Origin::Configured,
            },
        },
    )
}

fn config(eviction_policy: EvictionPolicy) -> impl Strategy<Value = Config> {
    let thresholds = prop::collection::vec(threshold(prop_oneof![Just(0_u64), 0_u64..60]), 1..5);
    let period = prop::sample::select(vec![0_u64, 10, 30, 300]);
    let anyway = prop::bool::weighted(0.7);
    (thresholds, 0_u32..12, 0_u32..12, any::<bool>(), period, anyway).prop_map(
        move |(thresholds, hard, soft, swap, period, anyway)| Config {
            evict_for_unattributed: anyway,
            thresholds,
            swap: swap
                .then_some(SwapThreshold { free: ThresholdAmount::At(Amount::whole(100)), grace: Duration::ZERO }),
            eviction_policy,
            pressure_transition: Duration::from_secs(period),
            max_pod_grace_seconds: 30,
            hard_victims_per_minute: hard,
            soft_victims_per_minute: soft,
            ..Config::default()
        },
    )
}

/// Both of our own eviction policies.
fn ours() -> impl Strategy<Value = Config> {
    prop_oneof![config(EvictionPolicy::Plimsoll), config(EvictionPolicy::OpenShift3)]
}

fn node(step: &Step, second: u64) -> NodeStats {
    let time = Some(stats_time(second));
    let left = |signal: Signal| step.left[signal as usize];
    let memory =
        |left: Option<u64>| MemoryStats { available: left, working_set: left.map(|left| CAPACITY - left), time };
    let disk = |bytes, inodes| {
        Some(FsStats {
            available: left(bytes),
            capacity: Some(CAPACITY),
            inodes_free: left(inodes),
            inodes: Some(CAPACITY),
            time,
        })
    };
    NodeStats {
        memory: Some(memory(left(Signal::MemoryAvailable))),
        pods: Some(memory(left(Signal::AllocatableMemoryAvailable))),
        node_fs: disk(Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        image_fs: disk(Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
        container_fs: disk(Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree),
        pids: left(Signal::PidAvailable).map(|left| PidStats {
            max: Some(1000),
            running: Some(1000 - i64::try_from(left).expect("small")),
            time,
        }),
    }
}

/// What is seen in each turn.
struct Seen<'a> {
    pods: &'a [Workload<'a>],
    now: MonotonicNs,
    /// Absent if there were no statistics.
    node: Option<NodeStats>,
}

/// What is the same throughout.
#[derive(Clone, Copy, Debug)]
struct World {
    layout: DiskLayout,
    /// A clean-up takes so many seconds and a half. Absent: its end is never reported.
    cleans_for: Option<u64>,
    /// What a plan evicts is terminating in the next step; otherwise it goes on as if it had not been.
    kills: bool,
}

fn world() -> impl Strategy<Value = World> {
    let cleans_for = prop_oneof![Just(Some(0_u64)), (0_u64..60).prop_map(Some), Just(None)];
    (prop::sample::select(LAYOUTS.to_vec()), cleans_for).prop_map(|(layout, cleans_for)| World {
        layout,
        cleans_for,
        kills: false,
    })
}

/// A time in seconds, on the clock of statistics: there it is in halves of one.
fn stats_time(second: u64) -> StatsTime {
    StatsTime(i64::try_from(second * 2).expect("small"))
}

/// Plays the steps, in a world that does not answer, and gives each plan away with what was seen.
fn play(config: &Config, world: World, steps: &[Step], each: impl FnMut(&Seen<'_>, &Plan)) {
    play_with(config, world, steps, |state, _| state, each);
}

/// The same, where `between` is done to the state before each step, at the time of the step before.
fn play_with(
    config: &Config,
    world: World,
    steps: &[Step],
    between: impl Fn(State, MonotonicNs) -> State,
    mut each: impl FnMut(&Seen<'_>, &Plan),
) {
    let mut cleaned: Vec<Reclaimed> = Vec::new();
    let mut killed: Vec<Uid> = Vec::new();
    let mut has_evictions = false;
    let mut state = State::with_capacity(config, 10);
    let mut plan = Plan::with_capacity(config, 10, 5);
    let mut second = 0;
    for (refaults, step) in (0_u64..).zip(steps) {
        state = between(state, MonotonicNs(second * 1_000_000_000));
        let before = second;
        second += step.after;
        let mut pods: Vec<_> = step.workloads.iter().map(Owned::pod).collect();
        for pod in pods.iter_mut().filter(|pod| world.kills && killed.contains(&pod.uid)) {
            pod.terminating = pod.terminating.or(Some(Terminating::default()));
        }
        let now = MonotonicNs(second * 1_000_000_000);
        let node = step.has_statistics.then(|| node(step, if step.is_old { before } else { second }));
        let observation = Observation {
            layout: Some(world.layout),
            readings: node.as_ref().map(Readings::of),
            mem_available: step.mem_available.map(Bytes),
            mem_available_at: step.has_mem_available_time.then(|| stats_time(second)),
            pods_mem_available: step.pods_mem_available.map(Bytes),
            huge_page_pool: Bytes(step.huge_pages),
            stall: Some(Stall { full: Duration::from_millis(step.stalled), window: Duration::from_secs(1) }),
            swap: Some(Swap { total: Bytes(CAPACITY), free: Bytes(step.swap_free), refaults: refaults / 2 }),
            images: &step.images,
            reclaimed: cleaned.iter().rfind(|reclaimed| reclaimed.at <= stats_time(second)).copied(),
            workloads: &pods,
            ..Observation::default()
        };
        decide(config, &mut state, &observation, now, &mut plan);
        if let (Some(order), Some(cleans_for)) = (plan.reclaim(), world.cleans_for) {
            let StatsTime(at) = stats_time(second + cleans_for);
            cleaned.push(Reclaimed { order: order.order, at: StatsTime(at + 1) });
        }
        has_evictions |= victims(&plan).next().is_some();
        killed = plan.evicted().map(|pod| pods[pod as usize].uid).collect();
        each(&Seen { pods: &pods, now, node }, &plan);
    }
    Runs::add(&OURS, has_evictions);
}

/// Plays the kubelet's turns, where no clean-up helps.
fn play_kubelet(
    config: &Config,
    world: World,
    steps: &[Step],
    mut each: impl FnMut(&[kubelet::Pod<'_>], &kubelet::State, &kubelet::Plan, MonotonicNs),
) {
    let config = kubelet::Config {
        thresholds: config.thresholds.clone(),
        pressure_transition: config.pressure_transition,
        max_pod_grace_seconds: config.max_pod_grace_seconds,
        local_storage_isolation: config.local_storage_isolation,
    };
    let mut has_evictions = false;
    let mut state = kubelet::State::new(&config);
    let mut plan = kubelet::Plan::with_capacity(10);
    let mut second = 0;
    for step in steps {
        second += step.after;
        let owned: Vec<_> = step.workloads.iter().map(Owned::pod).collect();
        let pods: Vec<_> = owned.iter().map(|pod| pod.facts).collect();
        let node = step.has_statistics.then(|| node(step, second));
        let readings = node.as_ref().map(Readings::of);
        let observation = kubelet::Observation { layout: Some(world.layout), readings, pods: &pods };
        let now = MonotonicNs(second * 1_000_000_000);
        kubelet::decide(&config, &mut state, &observation, now, &mut plan);
        kubelet::after_reclaim(&config, &state, &observation, None, &mut plan);
        has_evictions |= plan.outcome == kubelet::Outcome::Evict;
        each(&pods, &state, &plan, now);
    }
    Runs::add(&KUBELETS, has_evictions);
}

/// The workloads that a plan evicts because something is short.
fn victims(plan: &Plan) -> impl Iterator<Item = u32> + '_ {
    plan.actions.iter().filter_map(|action| match *action {
        Action::Evict { workload, why: Why::Threshold(_) | Why::Swap, .. } => Some(workload),
        Action::Evict { .. } | Action::EscalateToKill { .. } | Action::Reclaim(_) => None,
    })
}

/// Checks that a condition is true exactly within the period after a threshold behind it was last crossed.
struct Steady {
    period: Duration,
    /// A threshold that is crossed right now counts even if the period is zero.
    counts_now: bool,
    last: [Option<MonotonicNs>; 3],
}

impl Steady {
    fn sample(&mut self, crossed: impl Fn(Condition) -> bool, conditions: Conditions, now: MonotonicNs) {
        for condition in Condition::ALL {
            let last = &mut self.last[condition as usize];
            if crossed(condition) {
                *last = Some(now);
            }
            let holds = |last: MonotonicNs| (self.counts_now && last == now) || now.since(last) < self.period;
            assert_eq!(conditions.has(condition), last.is_some_and(holds));
        }
    }
}

laws! {
    #[test]
    fn a_critical_pod_is_never_chosen(config in ours(), world in world(), steps in steps()) {
        play(&config, world, &steps, |seen, plan| {
            for pod in plan.evicted().chain(plan.escalated()) {
                assert_eq!(seen.pods[pod as usize].facts.critical, None);
            }
        });
        play_kubelet(&config, world, &steps, |pods, _, plan, _| {
            for eviction in &plan.evictions {
                assert_eq!(pods[eviction.pod as usize].critical, None);
            }
        });
    }

    #[test]
    fn a_plan_never_evicts_a_pod_that_is_terminating(config in ours(), world in world(), steps in steps()) {
        play(&config, world, &steps, |seen, plan| {
            for pod in plan.evicted() {
                assert_eq!(seen.pods[pod as usize].terminating, None);
            }
            // But to take the rest of its time from it.
            for pod in plan.escalated() {
                let terminating = seen.pods[pod as usize].terminating;
                assert!(terminating.is_some_and(|it| it.is_graceful && !it.is_stuck));
            }
            let mut named: Vec<u32> = plan.evicted().chain(plan.escalated()).collect();
            let all = named.len();
            named.sort_unstable();
            named.dedup();
            assert_eq!(named.len(), all);
        });
    }

    #[test]
    fn no_more_is_taken_than_the_deficit_needs_but_for_the_last(
        config in ours(), world in world(), steps in steps()
    ) {
        play(&config, world, &steps, |_, plan| {
            let Some(deficit) = plan.deficit else { return };
            let Some(last) = victims(plan).last().or(plan.escalated().last()) else { return };
            let frees = plan.ranked.iter().find(|ranked| ranked.workload == last).expect("ranked").frees;
            assert!(deficit.coming + deficit.taken - frees < deficit.missing + deficit.expected, "{deficit:?}");
        });
        play_kubelet(&config, world, &steps, |_, _, plan, _| {
            assert!(plan.outcome == kubelet::Outcome::OverLimits || plan.evictions.len() <= 1);
        });
    }

    #[test]
    fn what_comes_back_is_what_terminating_pods_hold(config in ours(), world in world(), steps in steps()) {
        play(&config, world, &steps, |seen, plan| {
            let (Some(deficit), Some(acting)) = (plan.deficit, plan.acting()) else { return };
            // What pods hold that are evicted for limits of their own counts but once.
            if plan.ranked.iter().any(|ranked| ranked.verdict == Verdict::OverLimit) {
                return;
            }
            let is_soft = match acting.why {
                Why::Threshold(index) => !config.thresholds[index as usize].is_hard(),
                Why::Swap | Why::Limit(_) => false,
            };
            // A soft one waits as long as for its own victims.
            let in_time = |terminating: Terminating| terminating.until.is_none_or(|until| until <= seen.now.after(Duration::from_secs(30)));
            let is_coming =
                |terminating: Terminating| !terminating.is_stuck && if is_soft { in_time(terminating) } else { !terminating.is_graceful };
            let held: Amount = plan
                .ranked
                .iter()
                .filter(|ranked| seen.pods[ranked.workload as usize].terminating.is_some_and(is_coming))
                .map(|ranked| ranked.frees)
                .sum();
            // Beside them, what victims leave to be waited for belongs to no pod any more.
            let is_of_tasks = config.signal_of(plan.scope, acting.why) == Some(Signal::PidAvailable);
            assert!(deficit.coming == held || is_of_tasks && deficit.coming > held, "{deficit:?} {held:?}");
        });
    }

    #[test]
    fn hard_is_never_later_with_a_soft_threshold_than_without(
        config in ours(), soft in prop::collection::vec((threshold(1_u64..30), 0_usize..3), 1..4), world in world(),
        steps in steps()
    ) {
        let mut alone = config;
        alone.thresholds.retain(Threshold::is_hard);
        let mut beside = alone.clone();
        // Most are on what a hard one is on as well.
        beside.thresholds.extend(soft.into_iter().map(|(soft, of)| match alone.thresholds.get(of) {
            Some(hard) => Threshold { signal: hard.signal, ..soft },
            None => soft,
        }));
        // What hard thresholds do, sample by sample, is what they would do alone.
        let done = |config: &Config| {
            let mut all = Vec::new();
            play(config, world, &steps, |_, plan| {
                let is_hard = |why| match why {
                    Why::Threshold(index) => config.thresholds[index as usize].is_hard(),
                    Why::Swap => true,
                    Why::Limit(_) => false,
                };
                let of_hard = plan.actions.iter().filter_map(|action| match *action {
                    Action::Evict { why, workload, .. } | Action::EscalateToKill { why, workload } if is_hard(why) => Some((why, Ok(workload))),
                    Action::Reclaim(order) if is_hard(order.why) => Some((order.why, Err(order.stage))),
                    Action::Evict { .. } | Action::EscalateToKill { .. } | Action::Reclaim(_) => None,
                });
                all.push(of_hard.collect::<Vec<_>>());
            });
            all
        };
        assert_eq!(done(&alone), done(&beside));
    }

    #[test]
    fn none_within_its_request_is_evicted_while_one_above_remains(
        config in config(EvictionPolicy::Plimsoll), world in world(), mut steps in steps()
    ) {
        // With statistics for all.
        for step in &mut steps {
            step.workloads.retain(|workload| workload.pod.facts.stats.is_some());
        }
        play(&config, world, &steps, |_, plan| {
            let is_evictable = |verdict| matches!(verdict, Verdict::NotNeeded | Verdict::RateLimited | Verdict::Looping(_));
            let above_remains = plan.ranked.iter().any(|ranked| ranked.exceeds && is_evictable(ranked.verdict));
            let within_is_evicted = plan.ranked.iter().any(|ranked| !ranked.exceeds && ranked.verdict == Verdict::Evicted);
            assert!(!(above_remains && within_is_evicted));
        });
        play_kubelet(&config, world, &steps, |_, _, plan, _| {
            // Of processes nothing is promised.
            let above_remains =
                plan.ranked.iter().any(|ranked| ranked.exceeds && ranked.verdict == kubelet::Verdict::NotNeeded);
            let within_is_evicted =
                plan.ranked.iter().any(|ranked| !ranked.exceeds && ranked.verdict == kubelet::Verdict::Evicted);
            assert!(!(above_remains && within_is_evicted));
        });
    }

    #[test]
    fn in_openshift3_no_guaranteed_pod_is_evicted_while_another_class_remains(
        config in config(EvictionPolicy::OpenShift3), world in world(), steps in steps()
    ) {
        play(&config, world, &steps, |_, plan| {
            let is_memory = plan.acting().is_some_and(|status| match status.why {
                Why::Threshold(index) => {
                    config.thresholds[index as usize].signal.condition() == Condition::MemoryPressure
                }
                Why::Swap | Why::Limit(_) => true,
            });
            let guaranteed_is_evicted =
                plan.ranked.iter().any(|r| r.qos == QosClass::Guaranteed && r.verdict == Verdict::Evicted);
            // One that holds nothing of what is short does not count: evicting it would free nothing.
            let other_remains = plan.ranked.iter().any(|r| {
                r.qos != QosClass::Guaranteed
                    && matches!(
                        r.verdict,
                        Verdict::NotNeeded | Verdict::NoStatistics | Verdict::Looping(_) | Verdict::SparedByLoop | Verdict::RateLimited
                    )
            });
            assert!(!(is_memory && guaranteed_is_evicted && other_remains));
        });
    }

    #[test]
    fn the_same_input_gives_the_same_plan(config in ours(), world in world(), steps in steps()) {
        let plans = || {
            let mut all = Vec::new();
            play(&config, world, &steps, |_, plan| all.push(format!("{plan:?}")));
            play_kubelet(&config, world, &steps, |_, _, plan, _| all.push(format!("{plan:?}")));
            all
        };
        assert_eq!(plans(), plans());
    }

    #[test]
    fn thresholds_graces_and_conditions_go_on_in_another_process(
        config in ours(), world in world(), mut steps in steps()
    ) {
        // What was crossed when a process ended counts as crossed until the next one begins, also without statistics.
        for step in &mut steps {
            step.has_statistics = true;
        }
        // Whether pages came back from swap since the last turn is not known in the first one of a process.
        let config = Config { swap: None, ..config };
        let in_another = |has_taken: bool| {
            let config = &config;
            move |state: State, now: MonotonicNs| {
                let mut room = [0; 4096];
                let kept = postcard::to_slice(&state.keep(config, has_taken), &mut room).expect("there is room");
                let read = || postcard::from_bytes(kept).expect("it can be read");
                for other in other_configs(config) {
                    assert!(State::resume(read(), &other, 10, now).is_none(), "it was kept for another: {other:?}");
                }
                assert!(State::resume(read(), config, 11, now).is_none(), "it was kept for other slots");
                let resumed = State::resume(read(), config, 10, now).expect("it was kept for this configuration");
                assert_eq!(resumed.conditions(config), state.conditions(config));
                resumed
            }
        };
        let seen = |between: &dyn Fn(State, MonotonicNs) -> State| {
            let mut all = Vec::new();
            play_with(&config, world, &steps, between, |_, plan| {
                let thresholds: Vec<_> = plan.thresholds.iter().map(|it| (it.why, it.since, it.is_met)).collect();
                all.push((plan.conditions, thresholds));
            });
            all
        };
        let alone = seen(&|state, _| state);
        assert_eq!(alone, seen(&in_another(true)));
        assert_eq!(alone, seen(&in_another(false)));
    }

    #[test]
    fn the_order_of_the_list_does_not_matter(config in ours(), world in world(), steps in steps()) {
        let mut turned = steps.clone();
        for step in &mut turned {
            step.workloads.reverse();
        }
        let all_victims = |steps: &[Step]| {
            let mut all = Vec::new();
            play(&config, world, steps, |seen, plan| {
                all.push(victims(plan).map(|pod| seen.pods[pod as usize].uid).collect::<Vec<_>>());
            });
            all
        };
        assert_eq!(all_victims(&steps), all_victims(&turned));
    }

    #[test]
    fn no_condition_flaps_inside_the_transition_period(config in ours(), world in world(), steps in steps()) {
        let mut steady = Steady { period: config.pressure_transition, counts_now: true, last: [None; 3] };
        play(&config, world, &steps, |seen, plan| {
            // Without statistics everything stays as it was.
            if seen.node.is_some() {
                let crossed = |condition| plan.thresholds.iter().any(|status| status.since.is_some() && match status.why {
                    Why::Threshold(index) => config.thresholds[index as usize].signal.condition() == condition,
                    Why::Swap | Why::Limit(_) => condition == Condition::MemoryPressure,
                });
                steady.sample(crossed, plan.conditions, seen.now);
            }
        });
        // The kubelet reports none with a period of zero.
        let mut steady = Steady { period: config.pressure_transition, counts_now: false, last: [None; 3] };
        play_kubelet(&config, world, &steps, |_, state, plan, now| {
            if plan.outcome != kubelet::Outcome::NoStatistics {
                let crossed = |condition| (0_u32..).zip(&config.thresholds).any(|(index, threshold)| {
                    threshold.signal.condition() == condition && state.observed_since(index).is_some()
                });
                steady.sample(crossed, state.conditions(), now);
            }
        });
    }

    #[test]
    fn victims_a_minute_are_bounded(config in ours(), world in world(), steps in steps()) {
        // For hard thresholds, and for soft ones: neither takes of what the other may.
        let mut times: [Vec<MonotonicNs>; 2] = Default::default();
        let world = World { kills: true, ..world };
        play(&config, world, &steps, |seen, plan| {
            for action in &plan.actions {
                let is_soft = match *action {
                    Action::Evict { why: Why::Threshold(index), .. } => !config.thresholds[index as usize].is_hard(),
                    Action::Evict { why: Why::Swap, .. } => false,
                    Action::Evict { .. } | Action::EscalateToKill { .. } | Action::Reclaim(_) => continue,
                };
                times[usize::from(is_soft)].push(seen.now);
            }
            for (times, most) in times.iter().zip([config.hard_victims_per_minute, config.soft_victims_per_minute]) {
                let recent = times.iter().filter(|time| seen.now.since(**time) < Duration::from_mins(1)).count();
                assert!(recent <= most as usize, "{recent} of {most}");
            }
        });
    }

    #[test]
    fn as_many_are_evicted_in_all_as_bring_memory_back_to_its_target(
        eviction_policy in prop::sample::select(vec![EvictionPolicy::Plimsoll, EvictionPolicy::OpenShift3]),
        usages in prop::collection::vec(1_u64..300, 0..10), threshold in 100_i64..300, min_reclaim in 0_i64..200,
        before in 0_u64..400
    ) {
        let mut config = Config { eviction_policy, evict_for_unattributed: true, thresholds: Vec::new(), ..Config::default() };
        config.thresholds.push(Threshold {
            signal: Signal::MemoryAvailable,
            amount: Some(ThresholdAmount::At(Amount::whole(threshold))),
            grace: Duration::ZERO,
            min_reclaim: Some(ThresholdAmount::At(Amount::whole(min_reclaim))),
            origin: Origin::Configured,
        });
        let (available, victims) = relieve(&config, &usages, before);
        let target = (threshold + min_reclaim).cast_unsigned();
        if before >= threshold.cast_unsigned() {
            assert!(victims.is_empty());
        } else if available < target {
            assert_eq!(victims.len(), usages.len());
        } else {
            assert!(victims.last().is_some_and(|last| available - last < target));
        }
    }
}

/// Plays in a world that answers: a pod that is evicted terminates for one turn, then its memory is back. Gives what is
/// available in the end, and what the victims used, in order.
fn relieve(config: &Config, usages: &[u64], mut available: u64) -> (u64, Vec<u64>) {
    let of = |uid: Uid| usages[usize::try_from(uid.0).expect("few")];
    let mut pods: Vec<Workload<'_>> = (0..)
        .zip(usages)
        .map(|(uid, usage)| {
            let stats = kubelet::PodStats { working_set: Some(*usage), ..kubelet::PodStats::default() };
            let facts = kubelet::Pod { stats: Some(stats), ..kubelet::Pod::default() };
            Workload { uid: Uid(uid), facts, ..Workload::default() }
        })
        .collect();
    let mut state = State::with_capacity(config, usages.len());
    let mut plan = Plan::with_capacity(config, usages.len(), 0);
    let mut victims = Vec::new();
    for second in 1_u32..8 {
        let memory = MemoryStats {
            available: Some(available),
            working_set: Some(10_000),
            time: Some(StatsTime(i64::from(second))),
        };
        let observation = Observation {
            layout: Some(DiskLayout::Single),
            readings: Some(Readings::of(&NodeStats { memory: Some(memory), ..NodeStats::default() })),
            workloads: &pods,
            ..Observation::default()
        };
        decide(config, &mut state, &observation, MonotonicNs(second.into()), &mut plan);
        let chosen: Vec<Uid> = plan.evicted().map(|pod| pods[pod as usize].uid).collect();
        victims.extend(chosen.iter().copied().map(of));
        available += pods.iter().filter(|pod| pod.terminating.is_some()).map(|pod| of(pod.uid)).sum::<u64>();
        pods.retain(|pod| pod.terminating.is_none());
        for pod in pods.iter_mut().filter(|pod| chosen.contains(&pod.uid)) {
            pod.terminating = Some(Terminating::default());
        }
    }
    Runs::add(&OURS, !victims.is_empty());
    (available, victims)
}
