//! How a pod and its containers grow, by two readings, and whether memory.high throttles them.

use std::time::Duration;

use plimsoll_inventory::{ContainerFigures, Containers};
use plimsoll_replay::printable;
use plimsoll_units::{Bytes, CgroupId};
use serde::Serialize;

/// A pod's cgroup, or one directly in it. Amounts are as in the agent's metrics: without page cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ContainerRow {
    cgroup: String,
    usage_bytes: Option<Bytes>,
    #[serde(flatten)]
    swap: Swap,
    #[serde(flatten)]
    tasks: Tasks,
    #[serde(flatten)]
    pub(super) growth: Growth,
}

/// What a cgroup has in swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Swap {
    /// In all, compressed in memory or not.
    #[serde(rename = "swapped_bytes")]
    pub(super) used: Option<Bytes>,
    /// How much it may: `memory.swap.max`. Absent for no limit.
    #[serde(rename = "swap_limit_bytes")]
    pub(super) limit: Option<Bytes>,
    /// What of it is compressed in memory takes there.
    #[serde(rename = "zswap_bytes")]
    pub(super) compressed: Option<Bytes>,
}

/// How many tasks a cgroup has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tasks {
    /// Now.
    #[serde(rename = "tasks")]
    pub(super) count: Option<u64>,
    /// How many it may have: `pids.max`. Absent for no limit.
    #[serde(rename = "task_limit")]
    pub(super) limit: Option<u64>,
}

impl Tasks {
    const fn of(figures: &ContainerFigures) -> Self {
        Self { count: figures.tasks, limit: figures.task_limit }
    }
}

impl Swap {
    const fn of(figures: &ContainerFigures) -> Self {
        Self { used: figures.swapped, limit: figures.swap_limit, compressed: figures.zswap }
    }

    /// How much a pod may: a kubelet with `LimitedSwap` limits its containers, and not the pod, which so may have what they
    /// may together. Nor does it limit a sandbox, which the container runtime makes, and which has next to nothing to swap.
    pub(super) fn limit_of_pod(self, containers: &[ContainerRow], sandboxes: &[String]) -> Option<Bytes> {
        let is_sandbox = |row: &ContainerRow| sandboxes.iter().any(|id| !id.is_empty() && row.cgroup.contains(id));
        let counted = containers.iter().filter(|row| row.swap.limit.is_some() || !is_sandbox(row));
        let mut limits = counted.map(|row| row.swap.limit);
        let first = limits.next().flatten();
        let sum = first.and_then(|first| limits.try_fold(first, |sum, limit| Some(sum.saturating_add(limit?))));
        self.limit.into_iter().chain(sum).min()
    }
}

/// How a cgroup grows; of a pod, that of what is nearest to its memory.max in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Growth {
    pub(super) rate_bytes_per_second: Option<i64>,
    /// Until its memory.max.
    pub(super) distance_bytes: Option<Bytes>,
    /// When the OOM killer ends it at this rate, in whole seconds.
    pub(super) forecast_seconds: Option<u64>,
    /// memory.high throttles it.
    pub(super) is_throttled: bool,
    /// For so much of the time tasks wait for memory, in percent.
    pub(super) stall_percent: Option<u8>,
}

impl Growth {
    fn of(figures: &ContainerFigures) -> Self {
        let ContainerFigures { rate, distance, forecast, stall, is_throttled, .. } = *figures;
        let percent = |waited: Duration, within: Duration| {
            u8::try_from((waited.as_nanos() * 100).checked_div(within.as_nanos())?.min(100)).ok()
        };
        Self {
            rate_bytes_per_second: rate,
            distance_bytes: distance,
            forecast_seconds: forecast.map(|time| time.as_secs()),
            is_throttled,
            stall_percent: stall.and_then(|stall| percent(stall.waited, stall.within)),
        }
    }

    /// The cells of a table.
    pub(super) fn rate(&self) -> Option<String> {
        let rate = self.rate_bytes_per_second?;
        Some(format!("{}{}/s", if rate < 0 { "-" } else { "" }, Bytes(rate.unsigned_abs())))
    }

    pub(super) fn forecast(&self) -> Option<String> {
        Some(match self.forecast_seconds? {
            seconds @ 0..120 => format!("{seconds}s"),
            seconds @ 120..7200 => format!("{}m", seconds / 60),
            seconds => format!("{}h", seconds / 3600),
        })
    }

    pub(super) fn throttled(&self) -> Option<String> {
        let percent = || self.stall_percent.map_or_else(|| "yes".to_owned(), |percent| format!("{percent}%"));
        self.is_throttled.then(percent)
    }
}

/// What of its cgroups is the pod's, and the others.
pub(super) struct OfPod {
    pub(super) growth: Growth,
    pub(super) swap: Swap,
    pub(super) tasks: Tasks,
    pub(super) containers: Vec<ContainerRow>,
}

/// A pod's cgroup and those directly in it, by path.
pub(super) fn of_pod(containers: &Containers, pod: CgroupId, cgroup: &str) -> OfPod {
    let row = |path: &[u8], figures: &ContainerFigures| ContainerRow {
        cgroup: printable(&String::from_utf8_lossy(path)),
        usage_bytes: figures.working_set,
        swap: Swap::of(figures),
        tasks: Tasks::of(figures),
        growth: Growth::of(figures),
    };
    let mut rows: Vec<ContainerRow> = containers.of(pod).map(|it| row(it.path(), &it.figures())).collect();
    rows.sort_by(|one, other| one.cgroup.cmp(&other.cgroup));
    let all = || rows.iter().map(|row| &row.growth);
    let own = rows.iter().find(|row| row.cgroup == cgroup);
    let growth = Growth {
        rate_bytes_per_second: own.and_then(|row| row.growth.rate_bytes_per_second),
        distance_bytes: all().filter_map(|growth| growth.distance_bytes).min(),
        forecast_seconds: all().filter_map(|growth| growth.forecast_seconds).min(),
        is_throttled: all().any(|growth| growth.is_throttled),
        stall_percent: all().filter_map(|growth| growth.stall_percent).max(),
    };
    let (swap, tasks) = own.map(|row| (row.swap, row.tasks)).unwrap_or_default();
    rows.retain(|row| row.cgroup != cgroup);
    let swap = Swap { limit: swap.limit_of_pod(&rows, &[]), ..swap };
    OfPod { growth, swap, tasks, containers: rows }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_inventory::Stall;

    #[test]
    fn a_pod_may_have_as_much_swap_as_its_containers_may_together() {
        let of = |limit: Option<u64>| Swap { limit: limit.map(Bytes), ..Swap::default() };
        let row = |cgroup: &str, limit: Option<u64>| ContainerRow {
            cgroup: cgroup.to_owned(),
            usage_bytes: None,
            swap: of(limit),
            tasks: Tasks::default(),
            growth: Growth::default(),
        };
        for (pod, containers, expected) in [
            (None, &[("a", Some(3)), ("b", Some(4))][..], Some(7)),
            (Some(6), &[("a", Some(3)), ("b", Some(4))], Some(6)),
            (None, &[("a", Some(3)), ("b", None)], None),
            (None, &[("a", Some(3)), ("cri-containerd-5b.scope", None)], Some(3)),
            (None, &[("a", Some(3)), ("cri-containerd-5b.scope", Some(4))], Some(7)),
            (None, &[("a", None), ("cri-containerd-5b.scope", None)], None),
            (None, &[("cri-containerd-5b.scope", None)], None),
            (None, &[("a", Some(0))], Some(0)),
            (None, &[], None),
        ] {
            let rows: Vec<_> = containers.iter().map(|(name, limit)| row(&format!("pod/{name}"), *limit)).collect();
            let limit = of(pod).limit_of_pod(&rows, &[String::new(), "5b".to_owned()]);
            assert_eq!(limit, expected.map(Bytes), "{pod:?} {containers:?}");
        }
    }

    #[test]
    fn cells_have_what_is_known_and_what_is_not_is_absent() {
        let growth = |figures| {
            let growth = Growth::of(&figures);
            [growth.rate(), growth.forecast(), growth.throttled()].map(Option::unwrap_or_default)
        };
        let known = ContainerFigures {
            rate: Some(-3 << 20),
            forecast: Some(Duration::from_millis(45_900)),
            stall: Some(Stall { waited: Duration::from_millis(830), within: Duration::from_secs(1) }),
            is_throttled: true,
            ..ContainerFigures::default()
        };
        assert_eq!(growth(known), ["-3.0 MiB/s", "45s", "83%"]);
        assert_eq!(growth(ContainerFigures::default()), ["", "", ""]);
        let long =
            |seconds| growth(ContainerFigures { forecast: Some(Duration::from_secs(seconds)), ..known })[1].clone();
        assert_eq!([0, 120, 7199, 7200, 86_400].map(long), ["0s", "2m", "119m", "2h", "24h"]);
        let without_stall = ContainerFigures { stall: None, rate: Some(0), ..known };
        assert_eq!(growth(without_stall), ["0 B/s", "45s", "yes"]);
        let no_time = Stall { waited: Duration::ZERO, within: Duration::ZERO };
        assert_eq!(Growth::of(&ContainerFigures { stall: Some(no_time), ..known }).stall_percent, None);
    }
}
