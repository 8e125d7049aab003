//! Which containers memory.high throttles, as events of the log.

use plimsoll_inventory::{ContainerFigures, Ended, Stall};

use crate::fields::nanoseconds;
use crate::names::{Cgroup, Names};
use crate::record::ContainerRecord;

pub(crate) fn record(record: &ContainerRecord<'_>, names: &Names) {
    match *record {
        // For the metrics.
        ContainerRecord::Begin { .. } | ContainerRecord::Figures { .. } | ContainerRecord::End => {}
        ContainerRecord::Throttled { path, at, high, figures } => {
            let ContainerFigures { working_set, rate, distance, forecast, stall, is_throttled: _ } = figures;
            let cgroup = names.cgroup(path);
            let limit = high.map_or_else(String::new, |high| format!(" of {high}"));
            let message = format!("{cgroup} is throttled by its memory.high{limit}: {}", waited(stall));
            let Cgroup { path, pod, container } = cgroup;
            tracing::warn!(
                cgroup = path,
                pod,
                container,
                throttled = "begins",
                stall_ns = stall.map(|stall| nanoseconds(stall.waited)),
                within_ns = stall.map(|stall| nanoseconds(stall.within)),
                high_bytes = high.map(|bytes| bytes.0),
                working_set_bytes = working_set.map(|bytes| bytes.0),
                rate_bytes_per_second = rate,
                distance_bytes = distance.map(|bytes| bytes.0),
                forecast_ns = forecast.map(nanoseconds),
                at_ns = at.0,
                "{message}"
            );
        }
        ContainerRecord::Relieved { path, at, ended, is_gone } => {
            let Ended { lasted, stalled } = ended;
            let cgroup = names.cgroup(path);
            let how = if is_gone { "is gone, which was throttled" } else { "is throttled no more" };
            let stall = stalled.map_or_else(String::new, |stalled| format!("; its tasks waited for {stalled:?}"));
            let message = format!("{cgroup} {how} by its memory.high for {lasted:?}{stall}");
            let Cgroup { path, pod, container } = cgroup;
            tracing::info!(
                cgroup = path,
                pod,
                container,
                throttled = "ends",
                is_gone,
                lasted_ns = nanoseconds(lasted),
                stall_ns = stalled.map(nanoseconds),
                at_ns = at.0,
                "{message}"
            );
        }
    }
}

fn waited(stall: Option<Stall>) -> String {
    stall.map_or_else(
        || "how long its tasks wait is not known, as the kernel has no pressure stall information for it".to_owned(),
        |stall| format!("its tasks waited {:.0} % of the last {:?}", stall.share() * 100.0, stall.within),
    )
}
