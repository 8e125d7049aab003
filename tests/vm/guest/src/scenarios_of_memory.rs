//! Memory that no kill brings back, or not a kill alone: swap, page cache, slab, files on tmpfs, huge pages, and what
//! is charged to no cgroup. And a machine on which the OOM killer is next.

use crate::agent::tail;
use crate::block::{Slow, Swap};
use crate::cgroup::{self, Cgroup};
use crate::hog_tests::{Hog, guest, remove_leftovers};
use crate::machine::{self, KernelSetting, short_lists, wait_for};
use crate::record;
use crate::scene::{MIB, PATIENCE, Scene, threshold_below};
use crate::sense_tests::{MORE_THAN_A_NODE, bound_to_a_node};
use crate::suite::figure;
use crate::surroundings_tests::unit_capabilities;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How far below what is available the threshold is, in MiB.
const CAPACITY_LEFT: u64 = 96;
/// Rounds in which a sample may come before the event.
const TRIES: usize = 4;
/// How long what is slow without hardware virtualisation may take: filling caches, remembering names.
const LONG: Duration = Duration::from_mins(3);

/// Without an agent the OOM killer ends the hog; with one it has nothing to do.
pub(crate) fn tight() -> Result<()> {
    let _lists = short_lists()?;
    let mib = usize::try_from(machine::meminfo("MemTotal")? / MIB)?;
    let before = machine::oom_kills()?;
    let alone = Cgroup::create("work.slice/alone")?;
    let mut hog = Hog::start("anon", alone.path(), mib, &["--hold", "60"])?;
    wait_for("without an agent the OOM killer fires", PATIENCE, || {
        let ended = hog.child.try_wait()?.is_some();
        ensure!(!ended || machine::oom_kills()? > before, "the hog ended, and not by the OOM killer");
        Ok(ended)
    })?;
    drop(hog);
    alone.remove()?;

    let mut tried = 0;
    while !before_the_oom_killer(mib)? {
        tried += 1;
        ensure!(tried < TRIES, "in none of {TRIES} rounds the threshold's event led to the decision");
    }
    Ok(())
}

/// One of two NUMA nodes is out of memory for a process that is bound to it, while the machine has room: that is reported, and
/// nothing is evicted.
pub(crate) fn exhausted_numa_node() -> Result<()> {
    let leaf = bound_to_a_node("work.slice/bound")?;
    let mut scene = Scene::set_with(0, |settings| settings.threshold_bytes = 96 * MIB)?;
    let mut hog = Hog::start("anon", leaf.path(), MORE_THAN_A_NODE, &[])?;
    wait_for("the OOM killer is called", PATIENCE, || Ok(hog.child.try_wait()?.is_some()))?;
    scene.expect_oom_kill()?;
    let counts = ["plimsoll_oom_kills_total{scope=\"cpuset\"} 1\n", "plimsoll_races_lost_total 0\n"];
    wait_for("it is counted as what it is", PATIENCE, || {
        let (_, metrics) = scene.agent.get("/metrics")?;
        Ok(counts.iter().all(|count| metrics.contains(count)))
    })?;
    let pid = hog.child.id();
    let is_said = |line: &Value| line["scope"] == "cpuset" && line["pid"] == pid;
    wait_for("the log has it", PATIENCE, || Ok(scene.agent.lines().iter().any(is_said)))?;
    ensure!(scene.agent.killed() == 0, "the agent evicted: {}", tail(&scene.agent.text()));
    scene.end()
}

/// One round. Gives whether the event led to the decision: a sample that was due because the threshold was near may
/// come first.
fn before_the_oom_killer(mib: usize) -> Result<bool> {
    let mut scene = Scene::set_with(0, |settings| settings.threshold_bytes = 96 * MIB)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let available = machine::meminfo("MemAvailable")?;
    let mut hog = Hog::start("anon", victim.path(), mib, &["--hold", "60"])?;
    scene.expect_killed(&mut hog, &victim)?;
    let trigger = in_order(&scene, &hog, &victim, available)?;
    scene.end()?;
    Ok(trigger)
}

/// The threshold was crossed, then the agent woke, then it killed: by its own log, and by the hog's own record. Gives
/// whether the threshold's event came first.
fn in_order(scene: &Scene, hog: &Hog, victim: &Cgroup, available: u64) -> Result<bool> {
    let plans = scene.agent.plans();
    let evicts = |plan: &&Value| {
        let actions = plan["actions"].as_array().into_iter().flatten();
        actions.into_iter().any(|action| action["action"] == "evict" && action["cgroup"] == victim.name())
    };
    let plan = plans.iter().find(evicts).context("no decision evicts the hog")?;
    let kills = scene.agent.kills(victim.name(), "begun");
    let answered = kills.first().and_then(|kill| kill["at_ns"].as_u64()).context("the kill is not reported")?;
    let Some(trigger) = plan["crossed_ns"].as_u64() else { return Ok(false) };
    let awake = plan["awake_ns"].as_u64().context("the decision has no wake")?;
    ensure!(trigger <= awake && awake <= answered, "event at {trigger}, awake at {awake}, killed at {answered}");
    // What the hog itself had by then. Its own pages and batches of charges lie between this and the kernel's figure.
    let filled = record::read(&hog.record)?;
    let needed = available.saturating_sub(scene.settings.threshold_bytes).saturating_sub(16 * MIB);
    let most = filled.iter().map(|entry| entry.bytes).max().unwrap_or(0);
    let crossed = filled
        .iter()
        .find(|entry| entry.bytes >= needed)
        .with_context(|| format!("the hog never came to the threshold: it had {most} bytes of the {needed} between"))?;
    let crossed = crossed.at_ns;
    ensure!(crossed <= answered, "the kill at {answered} came before the hog was at the threshold at {crossed}");
    let past = filled.last().map_or(0, |entry| entry.bytes).saturating_sub(needed);
    figure("tight", &[("answered_after_us", &((answered - trigger) / 1000)), ("taken_past_mib", &(past / MIB))]);
    Ok(true)
}

/// Swaps long before its threshold: remembered names can be had back, so they count as available, while free memory ends.
pub(crate) fn with_swap() -> Result<()> {
    let swap = Swap::start(64)?;
    // The kernel rather swaps than forgets names or drops page cache, and begins where little is free: with huge pages
    // it keeps so much free that nothing would be left to cross a threshold with.
    let settings = [
        ("/proc/sys/vm/vfs_cache_pressure", "5"),
        ("/proc/sys/vm/swappiness", "200"),
        ("/proc/sys/vm/min_free_kbytes", "8192"),
    ];
    let settings =
        settings.into_iter().map(|(file, value)| KernelSetting::begin(file, value)).collect::<Result<Vec<_>>>()?;
    let outcome = swapping();
    drop(settings);
    drop(swap);
    outcome
}

fn swapping() -> Result<()> {
    let names = Cgroup::create("other.slice/names")?;
    let mut remembered = Hog::start("dentries", names.path(), 96, &["--hold", "600"])?;
    remembered.wait_taken(96, LONG)?;
    let mut scene = Scene::set_with(0, |settings| settings.threshold_bytes = 40 * MIB)?;
    let before = machine::vmstat("pswpout")?;
    let victim = Cgroup::create("work.slice/hog")?;
    let available = machine::meminfo("MemAvailable")? / MIB;
    // As fast as it can to where free memory is about to end, slowly from there.
    let rush = (available - 160).to_string();
    let mib = usize::try_from(available + 64)?;
    let mut hog = Hog::start("anon", victim.path(), mib, &["--rush", &rush, "--rate", "30", "--hold", "120"])?;
    let mut swapped = 0;
    wait_for("the machine swaps before its threshold", PATIENCE, || {
        ensure!(hog.child.try_wait()?.is_none(), "the hog was killed before anything was swapped");
        swapped = machine::vmstat("pswpout")? - before;
        Ok(swapped > 0)
    })
    .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    let above = machine::meminfo("MemAvailable")?;
    ensure!(scene.agent.killed() == 0, "a workload was killed before anything was swapped");
    scene.expect_killed(&mut hog, &victim)?;
    let pages = machine::vmstat("pswpout")? - before;
    let above = above / MIB;
    figure("swapped", &[("first_pages", &swapped), ("pages", &pages), ("available_then_mib", &above)]);
    wait_for("memory is back above the threshold", PATIENCE, || {
        Ok(machine::meminfo("MemAvailable")? > scene.settings.threshold_bytes)
    })?;
    scene.end()
}

const OVERCOMMIT_HUGE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

pub(crate) fn hugetlb() -> Result<()> {
    let _pages = KernelSetting::begin(OVERCOMMIT_HUGE, "128")?;
    huge_pages()
}

/// Where they are charged to their cgroup, what takes them is evicted like what takes any other memory.
pub(crate) fn charged_hugetlb() -> Result<()> {
    let _pages = KernelSetting::begin(OVERCOMMIT_HUGE, "128")?;
    cgroup::charge_huge_pages(true)?;
    let outcome = charged_huge_pages();
    cgroup::charge_huge_pages(false)?;
    outcome
}

fn charged_huge_pages() -> Result<()> {
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let victim = Cgroup::create("work.slice/hog")?;
    let mut hog = Hog::start("hugetlb", victim.path(), 192, &["--rate", "60", "--hold", "120"])?;
    scene.expect_killed(&mut hog, &victim)?;
    scene.end()
}

/// As a rule pages of hugetlb are charged to no cgroup's memory, so no figure shows which workload has them, and none is evicted
/// by rank: the crossing is reported, and the process that holds such pages is named.
fn huge_pages() -> Result<()> {
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let hog = names_a_holder(&mut scene, "hugetlb", "huge_pages_bytes")?;
    ends_with_its_holder(scene, hog)
}

/// Rings of packet sockets are charged to no cgroup either. What holds them is in a workload and in a network namespace of
/// its own, and the agent keeps no capability by which it could read that process's descriptors.
pub(crate) fn packet_rings() -> Result<()> {
    let capabilities = unit_capabilities().context("the unit names no capabilities")?;
    let mut scene = Scene::set_with(CAPACITY_LEFT, |settings| settings.capabilities = Some(capabilities))?;
    let hog = names_a_holder(&mut scene, "packet-rings", "packet_rings_bytes")?;
    ends_with_its_holder(scene, hog)
}

/// Crosses the threshold by what is charged to no cgroup, and waits until its holder is named with its cgroup and how
/// much it holds, in the field of this name.
fn names_a_holder(scene: &mut Scene, kind: &str, field: &str) -> Result<Hog> {
    let cgroup = Cgroup::create("work.slice/hog")?;
    let hog = Hog::start(kind, cgroup.path(), 192, &["--rate", "60", "--hold", "120"])?;
    let pid = hog.child.id();
    wait_for("the crossing is reported, with most of the growth in no cgroup's memory", PATIENCE, || {
        scene.check()?;
        Ok(scene.agent.plans().iter().any(|plan| plan["outcome"] == "unattributed" && is_below(plan)))
    })
    .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    wait_for("the process that holds it is named", PATIENCE, || {
        scene.check()?;
        let held = |line: &Value| line[field].as_u64().is_some_and(|bytes| bytes >= 64 * MIB);
        let is_it = |line: &Value| line["pid"] == pid && line["cgroup"] == "work.slice/hog" && held(line);
        Ok(scene.agent.lines().iter().any(is_it))
    })
    .with_context(|| format!("process {pid}; the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    Ok(hog)
}

/// No workload is evicted for what its cgroup is not charged.
fn ends_with_its_holder(mut scene: Scene, mut hog: Hog) -> Result<()> {
    hog.wait_taken(192, PATIENCE)?;
    scene.settled()?;
    ensure!(
        hog.child.try_wait()?.is_none() && scene.agent.killed() == 0,
        "a workload was killed for what it is not charged"
    );
    scene.end()
}

/// Whether the kernel's own reading of a decision was below its threshold.
fn is_below(plan: &Value) -> bool {
    let mem_available = plan["readings"]["mem_available_bytes"].as_u64();
    mem_available
        .zip(plan["threshold_bytes"].as_u64())
        .is_some_and(|(mem_available, threshold)| mem_available < threshold)
}

pub(crate) fn root_cgroup() -> Result<()> {
    let mut scene = Scene::set(CAPACITY_LEFT)?;
    let hog = Hog::start("anon", Path::new(cgroup::ROOT), 192, &["--rate", "80", "--hold", "60"])?;
    let pid = hog.child.id();
    wait_for("the agent names the process in the root cgroup", PATIENCE, || {
        scene.check()?;
        let grown = |line: &Value| line["resident_bytes"].as_u64().is_some_and(|bytes| bytes >= 64 * MIB);
        Ok(scene.agent.lines().iter().any(|line| line["pid"] == pid && grown(line)))
    })
    .with_context(|| format!("process {pid}; the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    ensure!(scene.agent.plans().iter().any(|plan| plan["outcome"] == "unattributed"), "no decision reports why");
    ensure!(machine::alive(pid), "the process in the root cgroup was killed");
    ensure!(scene.agent.killed() == 0, "a bystander was killed for the root cgroup");
    scene.end()
}

/// A file on tmpfs stays when the process that wrote it dies, and so does its charge: the emptied cgroup is killed
/// once, no other workload is evicted for the file, and the next one that grows is.
pub(crate) fn kept_file() -> Result<()> {
    let outcome = file_that_stays();
    remove_leftovers()?;
    outcome
}

fn file_that_stays() -> Result<()> {
    let mut scene = Scene::set_with(CAPACITY_LEFT, |settings| settings.victims_per_minute = 3)?;
    let writer = Cgroup::create("work.slice/writer")?;
    let mut hog = Hog::start("tmpfs", writer.path(), 256, &["--keep", "--rate", "100"])?;
    scene.expect_killed(&mut hog, &writer)?;
    let left = writer.current()?;
    ensure!(left >= 64 * MIB, "only {left} bytes stayed charged to it");
    stays_below(&mut scene, &writer)?;
    let victim = Cgroup::create("work.slice/next")?;
    let mut hog = Hog::start("anon", victim.path(), 256, &["--rate", "60"])?;
    scene.expect_killed(&mut hog, &victim).context("after a file stayed")?;
    figure("kept-file", &[("left_mib", &(left / MIB)), ("next_taken_mib", &(hog.taken()? / MIB))]);
    scene.end()
}

/// What one kill could not free is reported with its cgroup, which is empty, and is no reason to kill another workload.
fn stays_below(scene: &mut Scene, owner: &Cgroup) -> Result<()> {
    // How far past the threshold its owner came is up to how fast it was stopped, and what it held beside that is back.
    // What is no workload keeps memory below the threshold, so that every further sample finds a reason and nothing to
    // kill.
    let keeps = Cgroup::create("other.slice/keeps")?;
    let mut ballast = Hog::start("anon", keeps.path(), 48, &["--hold", "120"])?;
    ballast.wait_taken(48, PATIENCE)?;
    std::thread::sleep(Duration::from_secs(5));
    scene.settled()?;
    stays(scene, owner)?;
    ensure!(ballast.child.try_wait()?.is_none(), "what is no workload was killed");
    drop(ballast);
    keeps.remove()
}

fn stays(scene: &Scene, owner: &Cgroup) -> Result<()> {
    let available = machine::meminfo("MemAvailable")?;
    ensure!(available < scene.settings.threshold_bytes, "{available} bytes are available: memory came back after all");
    let killed = scene.agent.killed();
    ensure!(killed == 1, "{killed} kills where one was all that could be done");
    let plans = scene.agent.plans();
    let reported = plans.iter().any(|plan| {
        let mut candidates = plan["candidates"].as_array().into_iter().flatten();
        candidates.any(|it| it["cgroup"] == owner.name() && it["verdict"] == "nothing-to-free")
    });
    ensure!(reported, "no decision names {} as what cannot be freed: {}", owner.name(), Value::from(plans));
    // How much of what it made is charged to it differs from kernel to kernel; what is charged stays.
    let stays = owner.current()?;
    ensure!(stays >= 8 * MIB, "{stays} bytes are still charged to {}", owner.name());
    let emptied = scene.agent.kills(owner.name(), "emptied");
    let left = emptied.first().and_then(|kill| kill["left_bytes"].as_u64());
    ensure!(left.is_some_and(|left| left + MIB >= stays), "{stays} bytes are left, and {left:?} were reported");
    Ok(())
}

/// Directories on tmpfs stay when the process that made them dies: slab that neither reclaim nor a kill frees.
pub(crate) fn pinned_slab() -> Result<()> {
    let outcome = directories();
    remove_leftovers()?;
    outcome
}

fn directories() -> Result<()> {
    let mut scene = Scene::set(32)?;
    let cgroup = Cgroup::create("work.slice/directories")?;
    let mut hog = Hog::start("dirs", cgroup.path(), 112, &["--hold", "120"])?;
    wait_for("the process that makes directories is killed", LONG, || {
        scene.check()?;
        Ok(hog.child.try_wait()?.is_some())
    })
    .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    stays_below(&mut scene, &cgroup)?;
    scene.end()
}

/// Names that the kernel remembers, in a slice up to its threshold: a kill would free none of them, so they are
/// reclaimed.
pub(crate) fn slab() -> Result<()> {
    let slice = Cgroup::create("work.slice")?;
    let (max, threshold) = (192 * MIB, 96 * MIB);
    slice.write("memory.max", &max.to_string())?;
    let mut scene = Scene::set_with(0, |settings| {
        settings.threshold_bytes = 32 * MIB;
        settings.slice_threshold_bytes = Some(threshold);
        // A slow machine stalls by itself.
        settings.stall_percent = Some(100);
    })?;
    let cgroup = Cgroup::create("work.slice/names")?;
    // On a busy machine it takes long, and it has to be there at the end.
    let mut hog = Hog::start("dentries", cgroup.path(), 160, &["--hold", "240"])?;
    hog.wait_taken(160, LONG)
        .with_context(|| format!("the log ends with: {}", crate::agent::tail(&scene.agent.text())))?;
    // The slice's threshold submitted an event, or a sample that was due because it was near came first.
    let asked = scene.agent.plans().into_iter().any(|plan| {
        let reclaims = plan["actions"].as_array().into_iter().flatten().any(|action| action["action"] == "reclaim");
        plan["slice"] == "work.slice" && reclaims
    });
    ensure!(asked, "no decision about the slice reclaims");
    let id = cgroup.id()?;
    let asked = |line: &Value| line["cgroup_id"] == id && line["asked_bytes"].is_u64();
    ensure!(scene.agent.lines().iter().any(asked), "nothing was reclaimed from the cgroup that remembers names");
    wait_for("the slice is above its threshold", PATIENCE, || {
        scene.check()?;
        Ok(slice.current()? <= max - threshold)
    })?;
    let taken = hog.taken()?;
    let charged = machine::named(&cgroup.read("memory.stat")?, "slab_reclaimable");
    let charged = charged.context("memory.stat has no slab_reclaimable")?;
    figure("slab", &[("taken_mib", &(taken / MIB)), ("charged_mib", &(charged / MIB))]);
    ensure!(charged + 32 * MIB < taken, "{charged} bytes of {taken} are still remembered");
    scene.settled()?;
    let killed = scene.agent.plans().into_iter().find(|plan| plan["outcome"] == "evict");
    ensure!(killed.is_none(), "a workload was killed for slab that can be reclaimed: {killed:?}");
    ensure!(hog.child.try_wait()?.is_none(), "the process that remembers names ended");
    scene.end()
}

/// Page cache in active use: the kubelet's reading counts it as used up, the kernel's does not.
pub(crate) fn page_cache() -> Result<()> {
    let _lists = machine::two_lists()?;
    let mib = machine::meminfo("MemAvailable")? / MIB - 128;
    let device = Slow::create("cache", mib, Duration::from_micros(10))?;
    let threshold = threshold_below(0)? / 2;
    let mut scene = Scene::set_with(0, |settings| {
        settings.threshold_bytes = threshold;
        // A slow machine stalls by itself.
        settings.stall_percent = Some(100);
    })?;
    let cgroup = Cgroup::create("work.slice/cache")?;
    let mut reader = guest()
        .args(["hog", "churn", "--mapped", "--mib", &mib.to_string(), "--hold", "300", "--cgroup"])
        .arg(cgroup.path())
        .arg("--path")
        .arg(&device.device)
        .spawn()?;
    let only_the_kubelet = |plan: &Value| {
        let thresholds = plan["thresholds"].as_array().into_iter().flatten();
        thresholds.into_iter().any(|it| it["case"] == "kubelet-only" && it["acting"] == true)
    };
    wait_for("only the kubelet's reading is below the threshold", LONG, || {
        scene.check()?;
        ensure!(reader.try_wait()?.is_none(), "a process was killed for page cache that can be dropped");
        Ok(scene.agent.plans().iter().any(only_the_kubelet))
    })
    .with_context(|| {
        let now = ["MemAvailable", "Active(file)", "Inactive(file)"].map(|name| (name, machine::meminfo(name)));
        format!("{now:?}; the log ends with: {}", crate::agent::tail(&scene.agent.text()))
    })?;
    // It is reclaimed, again and again while it is read again and again.
    wait_for("page cache is reclaimed", PATIENCE, || {
        scene.check()?;
        Ok(scene.agent.lines().iter().any(|line| line["cgroup_id"].is_u64() && line["asked_bytes"].is_u64()))
    })?;
    std::thread::sleep(Duration::from_secs(5));
    scene.settled()?;
    ensure!(reader.try_wait()?.is_none(), "a process was killed for page cache that can be dropped");
    ensure!(scene.agent.killed() == 0, "a workload was killed for page cache that can be dropped");
    reader.kill()?;
    reader.wait()?;
    scene.end()
}

/// What replaces its page cache by anonymous memory is the victim, in a slice whose charges stay the same meanwhile as on
/// the node; a process that has read a larger file is not.
pub(crate) fn replaced_page_cache() -> Result<()> {
    Cgroup::create("work.slice")?.write("memory.max", &(240 * MIB).to_string())?;
    let mut scene = Scene::set_with(CAPACITY_LEFT, |settings| {
        settings.slice_threshold_bytes = Some(176 * MIB);
        // A slow machine stalls by itself.
        settings.stall_percent = Some(100);
    })?;
    // Past the threshold of the slice, then past the node's.
    replaced_in(&mut scene, "work.slice", 80)?;
    replaced_in(&mut scene, "user.slice", 128)?;
    scene.end()
}

fn replaced_in(scene: &mut Scene, slice: &str, mib: usize) -> Result<()> {
    let larger = mib + 8;
    let device = |name: &str| Slow::create(&format!("{name}-{mib}"), larger as u64, Duration::from_micros(10));
    let (of_backup, of_hog) = (device("backup")?, device("hog")?);
    let start = |kind, cgroup: &Cgroup, mib, rate, device: &Slow| {
        let device = device.device.to_str().context("a device has a name")?;
        Hog::start(kind, cgroup.path(), mib, &["--path", device, "--rate", rate, "--hold", "60"])
    };
    let cgroup = Cgroup::create(&format!("{slice}/backup"))?;
    let mut backup = start("cache", &cgroup, larger, "0", &of_backup)?;
    backup.wait_taken(larger, PATIENCE)?;
    let victim = Cgroup::create(&format!("{slice}/replaces"))?;
    // Past the threshold of the slice it goes on for 16 MiB, half a second, in which a stalled machine decides as well.
    let mut hog = start("replace", &victim, mib, "30", &of_hog)?;
    scene.expect_killed(&mut hog, &victim).with_context(|| format!("in {slice}"))?;
    ensure!(backup.child.try_wait()?.is_none(), "{slice}: a process was killed for page cache that can be dropped");
    let taken = usize::try_from(hog.taken()? / MIB)?;
    figure("replaced", &[("in", &slice), ("taken_mib", &taken), ("page_cache_mib", &mib)]);
    ensure!(taken < mib, "{slice}: all of its page cache was replaced before it was stopped");
    Ok(())
}
