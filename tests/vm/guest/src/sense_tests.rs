//! Tests of what the kernel reports: every hook attached and seen to fire, with the right names and numbers in it.

use crate::cgroup::{Cgroup, ROOT};
use crate::hog_tests::{Hog, guest};
use crate::machine::KernelSetting;
use crate::map::Mapping;
use crate::{machine, suite};
use anyhow::{Context as _, Result, bail, ensure};
use plimsoll_node::process;
use plimsoll_node::zoneinfo::Zones;
use plimsoll_sense::hooks::THRESHOLD;
use plimsoll_sense::probe::KernelFacts;
use plimsoll_sense::{
    ArmedThresholds, BrakeMark, CgroupChange, Config, CrossedThreshold, EbpfSource, Hook, HookState, Kind,
    NodeThreshold, OomScope, SliceThreshold, Source, TaskThreshold, Wake, WakeList, ladder, rules, stopped,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Pages};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::MapFlags;
use rustix::param::page_size;
use std::fmt::Display;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_mins(1);
/// Together they buffer several MiB that are not read.
const CONNECTIONS: usize = 64;
/// MiB for which one of a machine's two nodes is too small, and both together are not.
pub(crate) const MORE_THAN_A_NODE: usize = 600;
/// What a process with a companion wants, in MiB.
const COMPANION_MIB: usize = 192;

/// A source under test and what it has reported so far.
struct Watched {
    source: EbpfSource,
    said: Vec<Wake>,
}

impl Watched {
    fn new(config: &Config) -> Result<Self> {
        Ok(Self { source: EbpfSource::new(config)?, said: Vec::new() })
    }

    /// Waits until it reports something of which `wanted` makes an answer.
    fn wait<T>(&mut self, what: &str, mut wanted: impl FnMut(&Wake) -> Option<T>) -> Result<T> {
        let started = Instant::now();
        loop {
            if let Some(answer) = self.said.iter().find_map(&mut wanted) {
                return Ok(answer);
            }
            ensure!(started.elapsed() < LIMIT, "{what}: never reported; instead {:?}", self.said);
            self.listen(Duration::from_millis(200))?;
        }
    }

    /// Takes what is reported within `time`.
    fn listen(&mut self, time: Duration) -> Result<()> {
        let descriptors = self.source.descriptors();
        let mut polled: Vec<PollFd<'_>> =
            descriptors.iter().map(|it| PollFd::from_borrowed_fd(it.fd, PollFlags::IN)).collect();
        poll(&mut polled, Some(&Timespec::try_from(time)?))?;
        let tokens: Vec<u32> = descriptors.iter().map(|it| it.token).collect();
        drop(polled);
        drop(descriptors);
        for token in tokens {
            let mut wakes = WakeList::new();
            self.source.drain(token, &mut wakes)?;
            self.said.extend(wakes);
        }
        Ok(())
    }
}

fn pages(bytes: u64) -> Pages {
    Pages(bytes / page_size() as u64)
}

/// Available memory as the kubelet reckons it, from /proc/meminfo.
fn kubelet_available() -> Result<u64> {
    let field = machine::meminfo;
    let file = field("Cached")? + field("SwapCached")? + field("Buffers")?;
    Ok(field("MemTotal")? - (field("AnonPages")? + file - field("Inactive(file)")?))
}

/// The node's threshold `room` bytes below what is available now by the kubelet's reading.
fn node_threshold(room: u64) -> Result<NodeThreshold> {
    let (reserve, low_watermark) = machine::reserves(&std::fs::read_to_string("/proc/zoneinfo")?);
    Ok(NodeThreshold {
        kubelet: Bytes(kubelet_available()? - room),
        mem_available: Bytes::ZERO,
        total: pages(machine::meminfo("MemTotal")?),
        reserve: Pages(reserve),
        low_watermark: Pages(low_watermark),
        kubelet_drift: Pages(125 * 2),
        mem_available_drift: Pages(125 * 2),
    })
}

/// Whether the kernel's figure is one of those that /proc had before and after, or as close to them as drift explains.
fn near(name: &str, kernel: Pages, [before, after]: [u64; 2], within: u64) -> Result<()> {
    let kernel = kernel.to_bytes(page_size() as u64).0;
    suite::figure(name, &[("kernel_bytes", &kernel), ("before_bytes", &before), ("after_bytes", &after)]);
    let (least, most) = (before.min(after).saturating_sub(within), before.max(after) + within);
    ensure!((least..most).contains(&kernel), "{name}: {kernel} bytes in the kernel, {before} to {after} in /proc");
    Ok(())
}

pub(crate) fn attached() -> Result<()> {
    let _counting = KernelSetting::program_statistics()?;
    let started = machine::now_ns();
    let (source, attempts) = ladder(&Config { kernel_brake: true, ..Config::default() })?;
    let started_us = (machine::now_ns() - started) / 1000;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = |key| machine::named(&status, key).unwrap_or(0);
    suite::figure("start", &[("us", &started_us), ("peak_kib", &resident("VmHWM:")), ("now_kib", &resident("VmRSS:"))]);
    ensure!(source.kind() == Kind::Ebpf, "fell down the ladder: {attempts:?}");
    let health = source.health();
    for hook in &health.hooks {
        let HookState::Attached(how) = &hook.state else { bail!("{hook:?}") };
        suite::figure("hook", &[("family", &hook.name), ("how", how)]);
    }
    for program in &health.programs {
        ensure!(program.runs.is_some() && program.run_time_ns.is_some(), "{program:?}");
    }
    Ok(())
}

/// The yardstick of the wake's latency submits one event for each arming, as a threshold does.
pub(crate) fn bare_wake_arrives() -> Result<()> {
    let leaf = Cgroup::create("work.slice/bare")?;
    let mut bare = plimsoll_sense::bare::Bare::new()?;
    for _ in 0..3 {
        bare.arm();
        let armed = machine::now_ns();
        let mut hog = Hog::start("anon", leaf.path(), 8, &[])?;
        hog.wait_taken(8, LIMIT)?;
        let fd = bare.descriptor().try_clone_to_owned()?;
        ensure!(
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::try_from(LIMIT)?))? == 1,
            "there was no event"
        );
        let trigger = bare.take().context("readable without a record")?;
        ensure!(trigger.0 > armed, "the event at {} is older than the arming at {armed}", trigger.0);
        ensure!(bare.take().is_none(), "there were two events for one arming");
    }
    Ok(())
}

/// Where there are no trampolines, a kprobe with the same body watches the threshold, and only what has neither a
/// kprobe nor a tracepoint is left out.
pub(crate) fn kprobe_carries_the_threshold() -> Result<()> {
    let leaf = Cgroup::create("work.slice/probed")?;
    leaf.write("memory.max", "32M")?;
    let mut watched = Watched::new(&Config { no_trampolines: true, ..Config::default() })?;
    let health = watched.source.health();
    for hook in &health.hooks {
        suite::figure("hook", &[("family", &hook.name), ("state", &format!("{:?}", hook.state))]);
        let attach_type = match hook.name {
            "threshold" | "oom" => "kprobe ",
            "stall" => "",
            "slices" => "with ",
            "packet rings" => "iterator ",
            _ => "tp_btf ",
        };
        let expected = match &hook.state {
            HookState::Attached(how) => !attach_type.is_empty() && how.starts_with(attach_type),
            HookState::Missing(_) => attach_type.is_empty(),
        };
        ensure!(expected, "{hook:?}");
    }
    let generation =
        watched.source.arm(&ArmedThresholds { node: Some(node_threshold(16 * MIB)?), ..ArmedThresholds::default() })?;
    let hog = Hog::start("anon", leaf.path(), 64, &[])?;
    let (answered, charged, tgid) = watched.wait("the node's threshold", |wake| match wake {
        Wake::ThresholdCrossed { generation, lineage, tgid, .. } => Some((*generation, lineage[0], *tgid)),
        _ => None,
    })?;
    ensure!(answered == generation && charged == Some(CgroupId(leaf.id()?)), "{answered:?} {charged:?}");
    ensure!(tgid == hog.child.id(), "tgid {tgid}, not {}", hog.child.id());
    let victim = watched.wait("the OOM killer", |wake| match wake {
        Wake::Oom { victim, .. } => Some(*victim),
        _ => None,
    })?;
    ensure!(victim == hog.child.id(), "victim {victim}, not {}", hog.child.id());
    Ok(())
}

/// Records that are not taken are lost and counted; thresholds have a ring buffer of their own and still submit events.
pub(crate) fn full_ring_is_counted() -> Result<()> {
    let leaf = Cgroup::create("work.slice/busy")?;
    let mut watched = Watched::new(&Config::default())?;
    let brief = leaf.path().join("brief");
    let lost = |health: &plimsoll_sense::Health, ring: &str| {
        health.lost.iter().find(|(name, _)| *name == ring).map_or(0, |(_, lost)| *lost)
    };
    let started = Instant::now();
    while lost(&watched.source.health(), "events") == 0 {
        ensure!(started.elapsed() < 3 * LIMIT, "the ring buffer never filled");
        for _ in 0..256 {
            std::fs::create_dir(&brief)?;
            std::fs::remove_dir(&brief)?;
        }
    }
    watched.source.arm(&ArmedThresholds { node: Some(node_threshold(16 * MIB)?), ..ArmedThresholds::default() })?;
    let _hog = Hog::start("anon", leaf.path(), 48, &[])?;
    let mut wakes = WakeList::new();
    let token = watched.source.descriptors()[0].token;
    machine::wait_for("the threshold submits an event beside a full ring buffer", LIMIT, || {
        watched.source.drain(token, &mut wakes)?;
        Ok(wakes.iter().any(|wake| matches!(wake, Wake::ThresholdCrossed { .. })))
    })?;
    let health = watched.source.health();
    ensure!(lost(&health, "thresholds") == 0 && health.malformed == 0, "{:?}", health.lost);
    watched.listen(Duration::from_millis(100))?;
    ensure!(watched.said.len() == plimsoll_sense::WAKES_A_DRAIN, "one drain handed over {}", watched.said.len());
    // Taken up again: what comes next is not lost.
    machine::wait_for("the ring buffer is taken empty", LIMIT, || {
        let before = watched.said.len();
        watched.listen(Duration::ZERO)?;
        Ok(watched.said.len() == before)
    })?;
    watched.said.clear();
    std::fs::create_dir(&brief)?;
    watched.wait("a cgroup made afterwards", |wake| {
        matches!(wake, Wake::Cgroup { change: CgroupChange::Created, .. }).then_some(())
    })
}

pub(crate) fn node_threshold_submits_one_event() -> Result<()> {
    let _counting = KernelSetting::program_statistics()?;
    let leaf = Cgroup::create("work.slice/a/b")?;
    let slice = Cgroup::create("work.slice")?.id()?;
    let mut watched = Watched::new(&Config::default())?;
    let thresholds = ArmedThresholds { node: Some(node_threshold(64 * MIB)?), ..ArmedThresholds::default() };
    let generation = watched.source.arm(&thresholds)?;
    let mut hog = Hog::start("anon", leaf.path(), 128, &[])?;
    let crossed = |wake: &Wake| matches!(wake, Wake::ThresholdCrossed { .. }).then_some(*wake);
    let wake = watched.wait("the node's threshold", crossed)?;
    let Wake::ThresholdCrossed { threshold, generation: answered, lineage, tgid, kubelet_available: at, .. } = wake
    else {
        bail!("{wake:?}")
    };
    ensure!(threshold == CrossedThreshold::Node && answered == generation, "{wake:?}");
    let parent = Cgroup::existing("work.slice/a")?.id()?;
    let expected = [leaf.id()?, slice, parent, leaf.id()?].map(|id| Some(CgroupId(id)));
    ensure!(lineage[..4] == expected && lineage[4..].iter().all(Option::is_none), "{lineage:?}, not {expected:?}");
    ensure!(tgid == hog.child.id(), "tgid {tgid}, not {}", hog.child.id());
    let level = pages(thresholds.node.context("a threshold")?.kubelet.0).0 + 250;
    ensure!(
        at.0 <= level && at.0 + pages(16 * MIB).0 > level,
        "the event came at {at:?} for a threshold at {level} pages"
    );

    hog.wait_taken(128, LIMIT)?;
    watched.said.clear();
    watched.listen(Duration::from_millis(300))?;
    ensure!(
        watched.said.iter().find_map(crossed).is_none(),
        "there were two events for one arming: {:?}",
        watched.said
    );
    let again = watched.source.arm(&thresholds)?;
    ensure!(again > generation, "{again:?} after {generation:?}");
    let mut second = Hog::start("anon", leaf.path(), 8, &[])?;
    let wake = watched.wait("the threshold armed again", crossed)?;
    ensure!(matches!(wake, Wake::ThresholdCrossed { generation, .. } if generation == again), "{wake:?}");
    second.wait_taken(8, LIMIT)?;

    watched.said.clear();
    watched.source.disarm()?;
    let mut third = Hog::start("anon", leaf.path(), 8, &[])?;
    third.wait_taken(8, LIMIT)?;
    watched.listen(Duration::from_millis(100))?;
    ensure!(watched.said.iter().find_map(crossed).is_none(), "there was an event while disarmed: {:?}", watched.said);
    let health = watched.source.health();
    let ran =
        health.programs.iter().find(|program| program.name.starts_with("charge_")).context("no charge program")?;
    suite::figure("charge", &[("runs", &format!("{:?}", ran.runs)), ("ns", &format!("{:?}", ran.run_time_ns))]);
    ensure!(ran.runs.is_some_and(|runs| runs > 100), "{ran:?}");
    ensure!(health.lost.iter().all(|(_, lost)| *lost == 0) && health.malformed == 0, "{health:?}");
    Ok(())
}

/// A threshold that was far away when it was armed is met as soon as a near one, however fast all processors charge: but
/// for a batch and what each keeps back of the counters.
pub(crate) fn far_thresholds_are_met_in_time() -> Result<()> {
    /// What the kernel charges at once (`MEMCG_CHARGE_BATCH`).
    const BATCH: u64 = 64;
    let leaf = Cgroup::create("work.slice/far")?;
    let mut watched = Watched::new(&Config::default())?;
    let cpus = std::thread::available_parallelism()?.get();
    let within = Zones::read()?.drift().kubelet.0 + BATCH * cpus as u64;
    for mib in [48, 96, 144, 192, 240] {
        machine::wait_for("the memory of those before is back", LIMIT, || Ok(leaf.current()? < 8 * MIB))?;
        watched.said.clear();
        let threshold = node_threshold(mib * MIB)?;
        let level = pages(threshold.kubelet.0).0 + threshold.kubelet_drift.0;
        let generation =
            watched.source.arm(&ArmedThresholds { node: Some(threshold), ..ArmedThresholds::default() })?;
        let start = |_| Hog::start("anon", leaf.path(), usize::try_from(mib)?, &[]);
        let _hogs: Vec<Hog> = (0..cpus).map(start).collect::<Result<_>>()?;
        let at = watched.wait("the node's threshold", |wake| match wake {
            Wake::ThresholdCrossed { generation: answered, kubelet_available, .. } if *answered == generation => {
                Some(kubelet_available.0)
            }
            _ => None,
        })?;
        let late = level.saturating_sub(at);
        suite::figure("far-threshold", &[("mib", &mib), ("late_pages", &late), ("within", &within)]);
        ensure!(at < level && late <= within, "the event came at {at} pages for a threshold at {level}");
    }
    Ok(())
}

pub(crate) fn readings_agree() -> Result<()> {
    let leaf = Cgroup::create("work.slice/readings")?;
    let _lists = machine::short_lists()?;
    let here = || Ok::<_, anyhow::Error>((kubelet_available()?, machine::meminfo("MemAvailable")?));
    let mut watched = Watched::new(&Config::default())?;
    // A threshold above all memory is crossed at the next charge.
    let mut node = node_threshold(0)?;
    node.kubelet = Bytes(machine::meminfo("MemTotal")? * 2);
    let before = here()?;
    watched.source.arm(&ArmedThresholds { node: Some(node), ..ArmedThresholds::default() })?;
    let _hog = Hog::start("anon", leaf.path(), 1, &[])?;
    let (kubelet, mem_available) = watched.wait("the readings", |wake| match wake {
        Wake::ThresholdCrossed { kubelet_available, mem_available, .. } => Some((*kubelet_available, *mem_available)),
        _ => None,
    })?;
    let after = here()?;
    near("kubelet-reading", kubelet, [before.0, after.0], 16 * MIB)?;
    near("mem-available", mem_available, [before.1, after.1], 16 * MIB)
}

pub(crate) fn slice_threshold_submits_an_event() -> Result<()> {
    let leaf = Cgroup::create("work.slice/a/b")?;
    let other = Cgroup::create("other.slice")?;
    let slice = Cgroup::create("work.slice")?;
    let mut watched = Watched::new(&Config::default())?;
    let mut thresholds = ArmedThresholds::default();
    thresholds.slices.push(SliceThreshold { cgroup: CgroupId(other.id()?), level: 1, usage: Bytes::mib(16) });
    let usage = Bytes(slice.current()? + 32 * MIB);
    thresholds.slices.push(SliceThreshold { cgroup: CgroupId(slice.id()?), level: 1, usage });
    let level = pages(thresholds.slices[1].usage.0);
    let generation = watched.source.arm(&thresholds)?;
    let mut hog = Hog::start("anon", leaf.path(), 64, &[])?;
    let wake =
        watched.wait("the slice's threshold", |wake| matches!(wake, Wake::ThresholdCrossed { .. }).then_some(*wake))?;
    let Wake::ThresholdCrossed { threshold, generation: answered, usage, lineage, .. } = wake else {
        bail!("{wake:?}")
    };
    ensure!(threshold == CrossedThreshold::Slice(1) && answered == generation, "{wake:?}");
    ensure!(lineage[0] == Some(CgroupId(leaf.id()?)) && lineage[1] == Some(CgroupId(slice.id()?)), "{wake:?}");
    let usage = usage.context("a slice's wake without its usage")?;
    ensure!(usage >= level && usage.0 < level.0 + 1024, "the event came at {usage:?} for a threshold at {level:?}");
    hog.wait_taken(64, LIMIT)?;
    ensure!(
        watched.said.iter().filter(|wake| matches!(wake, Wake::ThresholdCrossed { .. })).count() == 1,
        "{:?}",
        watched.said
    );

    // Other slices in the same slots: what was resolved before must not answer for them.
    thresholds.slices.swap(0, 1);
    thresholds.slices[0].usage = Bytes::mib(4096);
    watched.said.clear();
    watched.source.arm(&thresholds)?;
    let mut hog = Hog::start("anon", other.path(), 32, &[])?;
    let threshold = watched.wait("the other slice's threshold", |wake| match wake {
        Wake::ThresholdCrossed { threshold, .. } => Some(*threshold),
        _ => None,
    })?;
    ensure!(threshold == CrossedThreshold::Slice(1), "{threshold:?}");
    hog.wait_taken(32, LIMIT)
}

/// An attempt to charge a huge page, in a cgroup whose limit has no room for it, takes nothing: where a batch is far from
/// the slice's threshold there is no event, although the huge page is not.
pub(crate) fn refused_huge_page_submits_no_event() -> Result<()> {
    const ATTEMPTS: u64 = 8;
    let (leaf, slice) = (Cgroup::create("work.slice/a")?, Cgroup::create("work.slice")?);
    let huge = machine::meminfo("Hugepagesize")?;
    let mut watched = Watched::new(&Config::default())?;
    leaf.write("memory.max", &(leaf.current()? + huge / 2).to_string())?;
    let usage = Bytes(slice.current()? + huge * 3 / 4);
    let mut thresholds = ArmedThresholds::default();
    thresholds.slices.push(SliceThreshold { cgroup: CgroupId(slice.id()?), level: 1, usage });
    leaf.write("cgroup.procs", &std::process::id().to_string())?;
    watched.source.arm(&thresholds)?;
    let before = machine::vmstat("thp_fault_fallback_charge")?;
    let mapping = Mapping::anonymous(usize::try_from(huge * (ATTEMPTS + 1))?, MapFlags::empty())?;
    mapping.huge(true)?;
    // One page of each.
    mapping.touch(0, usize::try_from(huge * (ATTEMPTS + 1))?, usize::try_from(huge)?);
    let refused = machine::vmstat("thp_fault_fallback_charge")? - before;
    ensure!(refused >= ATTEMPTS, "{refused} huge pages were refused");
    watched.listen(Duration::from_millis(200))?;
    let crossed = watched.said.iter().filter(|wake| matches!(wake, Wake::ThresholdCrossed { .. })).count();
    ensure!(crossed == 0, "{crossed} events for {refused} attempts: {:?}", watched.said);
    // The threshold is armed all the same.
    drop(mapping);
    Cgroup::existing("")?.write("cgroup.procs", &std::process::id().to_string())?;
    leaf.write("memory.max", "max")?;
    let mib = usize::try_from(huge / MIB)?;
    let mut hog = Hog::start("anon", leaf.path(), mib, &[])?;
    watched.wait("the slice's threshold", |wake| matches!(wake, Wake::ThresholdCrossed { .. }).then_some(()))?;
    hog.wait_taken(mib, LIMIT)
}

/// A packet is received in an interrupt, and charged there to the receiver's cgroup: the running task is another one. All
/// connections are made, and all data sent, by this process, from another cgroup than the one it accepted them in.
pub(crate) fn received_data_names_its_receiver() -> Result<()> {
    let (receiver, sender) = (Cgroup::create("work.slice/receiver")?, Cgroup::create("work.slice/bystander")?);
    let enter = |cgroup: &Cgroup| cgroup.write("cgroup.procs", &std::process::id().to_string());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        enter(&sender)?;
        let sending = TcpStream::connect(address)?;
        sending.set_nonblocking(true)?;
        // A socket belongs to the cgroup of the process that accepts it.
        enter(&receiver)?;
        connections.push((sending, listener.accept()?.0));
    }
    enter(&sender)?;
    let mut watched = Watched::new(&Config::default())?;
    let mut armed = ArmedThresholds::default();
    let before = receiver.current()?;
    armed.slices.push(SliceThreshold { cgroup: CgroupId(receiver.id()?), level: 2, usage: Bytes(before + MIB) });
    watched.source.arm(&armed)?;
    for (sending, _) in &mut connections {
        while let Ok(written) = sending.write(&[7; 1 << 14])
            && written > 0
        {}
    }
    let (lineage, tgid) = watched.wait("the receiver's threshold", |wake| match wake {
        Wake::ThresholdCrossed { lineage, tgid, .. } => Some((*lineage, *tgid)),
        _ => None,
    })?;
    suite::figure(
        "received",
        &[("charged_bytes", &receiver.current()?.saturating_sub(before)), ("by_sender", &(tgid == std::process::id()))],
    );
    ensure!(lineage[0] == Some(CgroupId(receiver.id()?)), "{lineage:?} for data of {}", receiver.id()?);
    ensure!(!lineage.contains(&Some(CgroupId(sender.id()?))), "the sender is named: {lineage:?}");
    Ok(())
}

/// Memory of the root cgroup is charged nowhere: reclaim shows it, and then the OOM kill.
pub(crate) fn root_cgroup_is_seen() -> Result<()> {
    machine::set("/proc/self/oom_score_adj", "-1000")?;
    let mut watched = Watched::new(&Config::default())?;
    let mut thresholds = ArmedThresholds { node: Some(node_threshold(0)?), ..ArmedThresholds::default() };
    if let Some(node) = &mut thresholds.node {
        (node.kubelet, node.mem_available) = (Bytes::ZERO, Bytes::mib(48));
    }
    watched.source.arm(&thresholds)?;
    let total = usize::try_from(machine::meminfo("MemTotal")? / MIB)?;
    let mut hog = guest()
        .args(["hog", "anon", "--mib", &total.to_string(), "--cgroup", ROOT])
        .spawn()
        .context("cannot start a hog in the root cgroup")?;
    machine::set(PathBuf::from(format!("/proc/{}/oom_score_adj", hog.id())), "1000")?;
    let by = watched.wait("reclaim began", |wake| match wake {
        Wake::ReclaimStarted { by, node, .. } => Some(format!("{by:?} on node {node:?}")),
        _ => None,
    })?;
    suite::figure("reclaim", &[("began", &by)]);
    let lineage = watched.wait("the node's threshold from reclaim", |wake| match wake {
        Wake::ThresholdCrossed { threshold: CrossedThreshold::Node, lineage, .. } => Some(*lineage),
        _ => None,
    })?;
    suite::figure("root-cgroup", &[("lineage", &format!("{lineage:?}"))]);
    let (victim, scope, resident) = watched.wait("the OOM killer", |wake| match wake {
        Wake::Oom { victim, scope, resident, .. } => Some((*victim, *scope, *resident)),
        _ => None,
    })?;
    ensure!(victim == hog.id() && scope == OomScope::Global, "victim {victim}, {scope:?}");
    let resident = resident.context("the victim's memory is unread")?;
    suite::figure("oom", &[("resident_pages", &resident.0), ("total_mib", &total)]);
    ensure!(resident > pages(64 * MIB) && resident < pages((total as u64) * MIB), "{resident:?}");
    hog.wait()?;
    Ok(())
}

pub(crate) fn oom_in_a_cgroup_is_named() -> Result<()> {
    let leaf = Cgroup::create("work.slice/small")?;
    leaf.write("memory.max", "16M")?;
    let mut watched = Watched::new(&Config::default())?;
    let kills = machine::oom_kills()?;
    let mut hog = Hog::start("anon", leaf.path(), 64, &[])?;
    let wake = watched.wait("the OOM killer", |wake| matches!(wake, Wake::Oom { .. }).then_some(*wake))?;
    let Wake::Oom { victim, name, victim_cgroup, lineage, scope, limit, mapped, resident, .. } = wake else {
        bail!("{wake:?}")
    };
    let id = Some(CgroupId(leaf.id()?));
    ensure!(victim == hog.child.id() && victim_cgroup == id, "{wake:?}");
    ensure!(scope == OomScope::Cgroup && limit == id, "{wake:?}");
    let parent = Some(CgroupId(Cgroup::existing("work.slice")?.id()?));
    ensure!(lineage[..4] == [id, parent, id, None], "{wake:?}");
    // It is not waited for yet.
    let command = std::fs::read(format!("/proc/{victim}/comm"))?;
    ensure!(name.starts_with(command.trim_ascii_end()) && !command.trim_ascii_end().is_empty(), "{wake:?}");
    ensure!(mapped.is_some_and(|it| it > pages(60 * MIB)), "{wake:?}");
    ensure!(resident.is_some_and(|it| it > pages(4 * MIB) && it < pages(24 * MIB)), "{wake:?}");
    hog.child.wait()?;
    watched.listen(Duration::from_millis(200))?;
    let said = watched.said.iter().filter(|wake| matches!(wake, Wake::Oom { .. })).count() as u64;
    let counted = machine::oom_kills()? - kills;
    ensure!(said == counted, "{said} reported, {counted} counted by the kernel");
    Ok(())
}

/// A cgroup whose processes have the memory of the first of a machine's two nodes alone.
pub(crate) fn bound_to_a_node(name: &str) -> Result<Cgroup> {
    let both = (MORE_THAN_A_NODE as u64 + 64) * MIB;
    ensure!(machine::meminfo("MemAvailable")? > both, "both nodes together are too small");
    let leaf = Cgroup::create(name)?;
    let slice = leaf.path().parent().context("it is in a slice")?;
    for parent in [Path::new(ROOT), slice] {
        machine::set(parent.join("cgroup.subtree_control"), "+cpuset")?;
    }
    leaf.write("cpuset.mems", "0")?;
    Ok(leaf)
}

pub(crate) fn oom_in_a_cpuset_is_named() -> Result<()> {
    let leaf = bound_to_a_node("work.slice/bound")?;
    let mut watched = Watched::new(&Config::default())?;
    let mut hog = Hog::start("anon", leaf.path(), MORE_THAN_A_NODE, &[])?;
    let wake = watched.wait("the OOM killer", |wake| matches!(wake, Wake::Oom { .. }).then_some(*wake))?;
    let Wake::Oom { victim, victim_cgroup, scope, .. } = wake else { bail!("{wake:?}") };
    ensure!(victim == hog.child.id() && victim_cgroup == Some(CgroupId(leaf.id()?)), "{wake:?}");
    ensure!(scope == OomScope::Cpuset, "{wake:?}");
    hog.child.wait()?;
    Ok(())
}

pub(crate) fn stall_bursts() -> Result<()> {
    let leaf = Cgroup::create("work.slice/stalls")?;
    leaf.write("memory.high", "8M")?;
    let mut watched = Watched::new(&Config { stall_burst: Duration::from_millis(1), ..Config::default() })?;
    let _hog = Hog::start("anon", leaf.path(), 48, &[])?;
    let id = CgroupId(leaf.id()?);
    let stalled = watched.wait("a stall burst", |wake| match wake {
        Wake::StallBurst { cgroup, stalled_ns, .. } if *cgroup == id => Some(*stalled_ns),
        _ => None,
    })?;
    ensure!(stalled >= 1_000_000, "burst at {stalled} ns");
    let pressure = leaf.read("memory.pressure")?;
    suite::figure("stall", &[("burst_us", &(stalled / 1000)), ("pressure", &pressure.lines().next().unwrap_or(""))]);
    Ok(())
}

pub(crate) fn tasks_threshold_submits_an_event() -> Result<()> {
    let mut watched = Watched::new(&Config::default())?;
    let generation = watched
        .source
        .arm(&ArmedThresholds { tasks: Some(TaskThreshold { count: 1 }), ..ArmedThresholds::default() })?;
    let status = std::process::Command::new("/proc/self/exe").arg("--version").status()?;
    ensure!(status.success(), "{status}");
    let (count, answered) = watched.wait("the task threshold", |wake| match wake {
        Wake::Tasks { count, generation, .. } => Some((*count, *generation)),
        _ => None,
    })?;
    let loadavg = std::fs::read_to_string("/proc/loadavg")?;
    let now: u32 = loadavg.split(['/', ' ']).nth(4).context("loadavg")?.parse()?;
    ensure!(count.abs_diff(now) < 50 && answered == generation, "{count} in the kernel, {now} in /proc, {answered:?}");
    Ok(())
}

pub(crate) fn cgroups_come_and_go() -> Result<()> {
    Cgroup::create("work.slice")?;
    let mut watched = Watched::new(&Config::default())?;
    let leaf = Cgroup::create("work.slice/brief")?;
    let id = CgroupId(leaf.id()?);
    let hog = Hog::start("anon", leaf.path(), 1, &[])?;
    machine::wait_for("it is populated", LIMIT, || leaf.populated())?;
    drop(hog);
    leaf.remove()?;
    let wanted = [CgroupChange::Created, CgroupChange::Populated, CgroupChange::Emptied, CgroupChange::Removed];
    for change in wanted {
        watched.wait(&format!("{change:?}"), |wake| match wake {
            Wake::Cgroup { id: which, change: what, .. } if (*which, *what) == (id, change) => Some(()),
            _ => None,
        })?;
    }
    let order: Vec<CgroupChange> = watched
        .said
        .iter()
        .filter_map(|wake| match wake {
            Wake::Cgroup { id: which, change, .. } if *which == id => Some(*change),
            _ => None,
        })
        .collect();
    ensure!(order == wanted, "{order:?}");
    Ok(())
}

pub(crate) fn kernel_brake_stops_and_is_undone() -> Result<()> {
    let pin = Path::new("/sys/fs/bpf/plimsoll/stopped");
    let leaf = Cgroup::create("work.slice/a/b")?;
    let other = Cgroup::create("other.slice/c")?;
    let slice = Cgroup::create("work.slice")?;
    let mut off = Watched::new(&Config::default())?;
    let threshold = node_threshold(48 * MIB)?;
    let mark =
        BrakeMark { slice: CgroupId(slice.id()?), level: 1, kubelet: threshold.kubelet, mem_available: Bytes::ZERO };
    ensure!(off.source.set_brakes(&[mark]).is_err(), "a brake without being asked for");
    drop(off);

    let mut watched = Watched::new(&Config { kernel_brake: true, ..Config::default() })?;
    watched.source.arm(&ArmedThresholds {
        node: Some(NodeThreshold { kubelet: Bytes::ZERO, ..threshold }),
        ..ArmedThresholds::default()
    })?;
    watched.source.set_brakes(&[mark])?;
    watched.source.lease_brakes(MonotonicNs(u64::MAX));
    // Above the threshold nothing is stopped, and below it nothing outside the marked slice.
    let mut free = Hog::start("anon", other.path(), 96, &[])?;
    free.wait_taken(96, LIMIT)?;
    ensure!(watched.source.first_stopped().is_none(), "a process was stopped above the threshold");
    let mut held = Hog::start("anon", leaf.path(), 96, &[])?;
    let pid = held.child.id();
    machine::wait_for("the brake stops the process", LIMIT, || Ok(machine::process_state(pid) == Some('T')))?;
    ensure!(machine::process_state(free.child.id()) != Some('T'), "a process outside the marked slice was stopped");
    let reported = watched.wait("the stop", |wake| match wake {
        Wake::Stopped { tgid, slice, .. } => Some((*tgid, *slice)),
        _ => None,
    })?;
    ensure!(reported == (pid, mark.slice), "{reported:?}");
    // Without the event, the record shows it.
    ensure!(watched.source.first_stopped().is_some(), "the record does not have it");
    let health = watched.source.health();
    ensure!(health.brakes_applied == 1 && health.brakes_refused == 0, "{health:?}");

    // The agent that stopped it is gone; the record is not.
    drop(watched);
    let listed = stopped::list(pin)?;
    ensure!(listed.len() == 1 && listed[0].pid == pid && listed[0].slice == mark.slice, "{listed:?}");
    ensure!(machine::process_state(pid) == Some('T'), "it went on by itself");
    let undone = stopped::undo(pin, process::resume)?;
    ensure!(undone.continued == 1 && undone.gone == 0 && undone.failed == 0, "{undone:?}");
    held.wait_taken(96, LIMIT)?;
    ensure!(stopped::list(pin)?.is_empty(), "its record stayed");
    Ok(())
}

/// What is marked for an agent that does not say any more that it runs is not stopped.
pub(crate) fn kernel_brake_runs_out() -> Result<()> {
    let leaf = Cgroup::create("work.slice/a/b")?;
    let slice = Cgroup::create("work.slice")?;
    let mut watched = Watched::new(&Config { kernel_brake: true, ..Config::default() })?;
    let threshold = node_threshold(16 * MIB)?;
    let mark =
        BrakeMark { slice: CgroupId(slice.id()?), level: 1, kubelet: threshold.kubelet, mem_available: Bytes::ZERO };
    watched.source.set_brakes(&[mark])?;
    watched.source.lease_brakes(MonotonicNs(machine::now_ns()));
    let mut free = Hog::start("anon", leaf.path(), 48, &[])?;
    free.wait_taken(48, LIMIT).context("it was stopped although the marks had run out")?;
    ensure!(watched.source.first_stopped().is_none(), "the kernel wrote down that it stopped it");
    watched.source.lease_brakes(MonotonicNs(u64::MAX));
    let mut held = Hog::start("anon", leaf.path(), 48, &[])?;
    let pid = held.child.id();
    machine::wait_for("the brake stops the process", LIMIT, || Ok(machine::process_state(pid) == Some('T')))?;
    drop(watched);
    stopped::undo(Path::new("/sys/fs/bpf/plimsoll/stopped"), process::resume)?;
    held.wait_taken(48, LIMIT)
}

/// However deep below a slice memory is charged, the slice's threshold submits its event, and the brake stops the process.
pub(crate) fn deep_cgroups() -> Result<()> {
    let leaf = Cgroup::create(&format!("work.slice/inner.slice{}", "/deep".repeat(16)))?;
    let slice = Cgroup::create("work.slice/inner.slice")?;
    let mut watched = Watched::new(&Config { kernel_brake: true, ..Config::default() })?;
    let mut thresholds = ArmedThresholds::default();
    let usage = Bytes(slice.current()? + 16 * MIB);
    thresholds.slices.push(SliceThreshold { cgroup: CgroupId(slice.id()?), level: 2, usage });
    // From which the programs know the machine's memory; no level is armed.
    let NodeThreshold { kubelet, total, .. } = node_threshold(40 * MIB)?;
    thresholds.node = Some(NodeThreshold { total, ..NodeThreshold::default() });
    watched.source.arm(&thresholds)?;
    let mark = BrakeMark { slice: CgroupId(slice.id()?), level: 2, kubelet, mem_available: Bytes::ZERO };
    watched.source.set_brakes(&[mark])?;
    watched.source.lease_brakes(MonotonicNs(u64::MAX));
    let held = Hog::start("anon", leaf.path(), 96, &[])?;
    let pid = held.child.id();
    let crossed = watched.wait("the slice's threshold", |wake| match wake {
        Wake::ThresholdCrossed { threshold, lineage, .. } => Some((*threshold, lineage[0])),
        _ => None,
    })?;
    ensure!(crossed == (CrossedThreshold::Slice(0), Some(CgroupId(leaf.id()?))), "{crossed:?}");
    let stopped = machine::wait_for("the brake stops the process", LIMIT, || {
        ensure!(held.taken()? < 96 * MIB, "it took all that it wanted");
        Ok(machine::process_state(pid) == Some('T'))
    });
    drop(watched);
    stopped::undo(Path::new("/sys/fs/bpf/plimsoll/stopped"), process::resume)?;
    stopped
}

/// A process that another one continues is stopped again as it goes on charging.
pub(crate) fn kernel_brake_stops_again() -> Result<()> {
    let leaf = Cgroup::create("work.slice/companion")?;
    let slice = Cgroup::create("work.slice")?;
    let mut watched = Watched::new(&Config { kernel_brake: true, ..Config::default() })?;
    let threshold = node_threshold(32 * MIB)?;
    watched.source.arm(&ArmedThresholds {
        node: Some(NodeThreshold { kubelet: Bytes::ZERO, ..threshold }),
        ..ArmedThresholds::default()
    })?;
    let mark =
        BrakeMark { slice: CgroupId(slice.id()?), level: 1, kubelet: threshold.kubelet, mem_available: Bytes::ZERO };
    watched.source.lease_brakes(MonotonicNs(u64::MAX));
    let is_stopped = |hog: &Hog| machine::process_state(hog.child.id()) == Some('T');

    // Each one for as long as the agent needs at most to freeze it: unhindered, once it was continued, as it was while the
    // record of the first stop was enough; and with a companion that continues it all the time, or each millisecond.
    for (companion, pause) in [("alone", None), ("loop", Some(0)), ("1ms", Some(1))] {
        watched.source.set_brakes(&[mark])?;
        let hog = Hog::start("anon", leaf.path(), COMPANION_MIB, &["--chunk", "64"])?;
        machine::wait_for("the brake stops the process", LIMIT, || Ok(is_stopped(&hog)))?;
        std::thread::sleep(Duration::from_millis(20));
        let before = hog.taken()?;
        if pause.is_none() {
            watched.source.set_brakes(&[])?;
        }
        let pid = rustix::process::Pid::from_child(&hog.child);
        let begun = Instant::now();
        let mut signals = 0_u64;
        while begun.elapsed() < Duration::from_millis(200) {
            if pause.is_some() || signals == 0 {
                rustix::process::kill_process(pid, rustix::process::Signal::CONT)?;
                signals += 1;
            }
            if let Some(pause @ 1..) = pause {
                std::thread::sleep(Duration::from_millis(pause));
            }
        }
        let taken_kib = (hog.taken()? - before) >> 10;
        suite::figure("companion", &[("signals", &companion), ("taken_kib", &taken_kib), ("sent", &signals)]);
    }

    // Continued once, it is stopped again before it has taken all that it wants.
    watched.source.set_brakes(&[mark])?;
    let hog = Hog::start("anon", leaf.path(), COMPANION_MIB, &["--chunk", "64"])?;
    machine::wait_for("the brake stops the process", LIMIT, || Ok(is_stopped(&hog)))?;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(20));
        let before = hog.taken()?;
        rustix::process::kill_process(rustix::process::Pid::from_child(&hog.child), rustix::process::Signal::CONT)?;
        machine::wait_for("it is stopped again", LIMIT, || Ok(is_stopped(&hog)))?;
        let taken = hog.taken()?;
        ensure!(taken < COMPANION_MIB as u64 * MIB, "it took all that it wanted");
        ensure!(taken - before <= 2 * MIB, "{} bytes before it was stopped again", taken - before);
    }
    ensure!(watched.source.health().brakes_repeated >= 3, "{:?}", watched.source.health());
    drop(watched);
    stopped::undo(Path::new("/sys/fs/bpf/plimsoll/stopped"), process::resume)?;
    Ok(())
}

pub(crate) fn psi_trigger_fires() -> Result<()> {
    let leaf = Cgroup::create("work.slice/pressed")?;
    leaf.write("memory.high", "8M")?;
    let config = Config {
        only: Some(Kind::PsiTrigger),
        trigger: plimsoll_sense::TriggerSpec { stall_us: 10_000, window_us: 1_000_000 },
        ..Config::default()
    };
    let (mut source, _) = ladder(&config)?;
    let _hog = Hog::start("anon", leaf.path(), 64, &[])?;
    let descriptors = source.descriptors();
    let (token, fd) = (descriptors[0].token, descriptors[0].fd.try_clone_to_owned()?);
    drop(descriptors);
    let mut polled = [PollFd::new(&fd, PollFlags::PRI)];
    let ready = poll(&mut polled, Some(&Timespec::try_from(LIMIT)?))?;
    ensure!(ready == 1, "the trigger did not fire");
    let mut wakes = WakeList::new();
    source.drain(token, &mut wakes)?;
    ensure!(matches!(wakes[..], [Wake::Psi { stall_us: 10_000, window_us: 1_000_000 }]), "{wakes:?}");
    Ok(())
}

/// What this machine's kernel is, for the record.
pub(crate) fn facts() -> Result<()> {
    let facts = KernelFacts::gather();
    let shown: [(&str, &dyn Display); 4] = [
        ("release", &facts.release),
        ("missing", &facts.missing_members.join(",")),
        ("symbols", &facts.symbols_visible),
        ("psi", &facts.psi),
    ];
    suite::figure("facts", &shown);
    ensure!(facts.btf.is_ok() && facts.symbols_visible && facts.threshold_blind.is_none(), "{facts:?}");
    let programs = [&facts.trampolines, &facts.raw_tracepoints, &facts.kprobe_programs];
    ensure!(programs.iter().all(|programs| **programs == Ok(true)), "{facts:?}");
    ensure!(facts.psi && facts.memory_controller && facts.bpffs, "{facts:?}");
    foresees(&facts)
}

/// What follows from the facts is what comes of it: `check` reports the one, `run` does the other.
fn foresees(facts: &KernelFacts) -> Result<()> {
    let plan = rules::plan(facts);
    let can = |name: &str| plan.iter().any(|it| it.family.name == name && !it.choices.is_empty());
    let started = EbpfSource::new(&Config::default());
    ensure!(can(THRESHOLD) == started.is_ok(), "{plan:?}, and yet {started:?}");
    for Hook { name, state } in started.into_iter().flat_map(|source| source.health().hooks) {
        let is_family = plan.iter().any(|it| it.family.name == name);
        let is_attached = matches!(state, HookState::Attached(_));
        ensure!(!is_family || can(name) == is_attached, "{name}: {plan:?}, and yet {state:?}");
    }
    Ok(())
}
