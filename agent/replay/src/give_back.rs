//! What a workload's end gives back of memory, tasks and disks, in a node's statistics.

use plimsoll_policy::Workload;
use plimsoll_policy::kubelet::{DiskLayout, NodeStats, PodStats, Usage};

/// Counts what a workload holds as available, by the kubelet's formulas.
pub(crate) fn give_back(node: &mut NodeStats, workload: &Workload<'_>, layout: DiskLayout) {
    let Some(PodStats { working_set, processes, ephemeral_storage: _, containers, volumes }) = workload.facts.stats
    else {
        return;
    };
    let held = working_set.unwrap_or(0);
    for memory in [&mut node.memory, &mut node.pods].into_iter().flatten() {
        let back = memory.working_set.map_or(0, |used| used.min(held));
        memory.working_set = memory.working_set.map(|used| used - back);
        memory.available = memory.available.map(|available| available.saturating_add(back));
    }
    if let Some(pids) = &mut node.pids {
        let back = i64::try_from(processes.unwrap_or(0)).unwrap_or(i64::MAX);
        pids.running = pids.running.map(|running| running.saturating_sub(back));
    }
    let layers = sum(containers.iter().map(|container| container.rootfs));
    let local = volumes
        .iter()
        .filter(|stats| workload.facts.volumes.iter().any(|volume| volume.is_local && volume.number == stats.number));
    let rest = sum(containers.iter().map(|container| container.logs).chain(local.map(|stats| stats.usage)));
    let all = sum([layers, rest].into_iter());
    let [on_node, on_images, on_containers] = match layout {
        DiskLayout::Single => [all; 3],
        DiskLayout::DedicatedImageFs => [rest, layers, layers],
        DiskLayout::SplitImageFs => [all, Usage::default(), all],
    };
    for (fs, back) in
        [(&mut node.node_fs, on_node), (&mut node.image_fs, on_images), (&mut node.container_fs, on_containers)]
    {
        let Some(fs) = fs else { continue };
        fs.available = fs.available.map(|available| available.saturating_add(back.bytes.unwrap_or(0)));
        fs.inodes_free = fs.inodes_free.map(|free| free.saturating_add(back.inodes.unwrap_or(0)));
    }
}

fn sum(usages: impl Iterator<Item = Usage>) -> Usage {
    usages.fold(Usage { bytes: Some(0), inodes: Some(0) }, |sum, usage| Usage {
        bytes: sum.bytes.map(|bytes| bytes.saturating_add(usage.bytes.unwrap_or(0))),
        inodes: sum.inodes.map(|inodes| inodes.saturating_add(usage.inodes.unwrap_or(0))),
    })
}
