//! Which containers memory.high throttles, and what is done about it, as events of the log.

use plimsoll_inventory::{ContainerFigures, Ended, Stall};

use crate::fields::nanoseconds;
use crate::names::{Cgroup, Names};
use crate::record::ContainerRecord;

pub(crate) fn record(record: &ContainerRecord<'_>, names: &Names) {
    match *record {
        // For the metrics.
        ContainerRecord::Begin { .. } | ContainerRecord::Figures { .. } | ContainerRecord::End => {}
        ContainerRecord::Raising { .. }
        | ContainerRecord::Raised { .. }
        | ContainerRecord::NotRaised { .. }
        | ContainerRecord::InVain { .. }
        | ContainerRecord::Victim { .. } => done(record, names),
        ContainerRecord::Throttled { path, at, high, figures } => {
            let ContainerFigures { working_set, rate, distance, forecast, stall, swapped, .. } = figures;
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
                swapped_bytes = swapped.map(|bytes| bytes.0),
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

/// What is done about one that is throttled.
fn done(record: &ContainerRecord<'_>, names: &Names) {
    match *record {
        ContainerRecord::Begin { .. }
        | ContainerRecord::Figures { .. }
        | ContainerRecord::End
        | ContainerRecord::Throttled { .. }
        | ContainerRecord::Relieved { .. } => {}
        ContainerRecord::Raising { path, from, to, shadow, at } => {
            let cgroup = names.cgroup(path);
            let would = if shadow { "would be" } else { "is" };
            let message = format!("memory.high of {cgroup} {would} raised from {from} to {to}");
            let Cgroup { path, pod, container } = cgroup;
            tracing::info!(
                cgroup = path,
                pod,
                container,
                throttled = "raising",
                shadow,
                from_bytes = from.0,
                to_bytes = to.0,
                at_ns = at.0,
                "{message}"
            );
        }
        ContainerRecord::Raised { path, high, took, at } => {
            let cgroup = names.cgroup(path);
            let message = format!("memory.high of {cgroup} is {high}, {took:?} after that was ordered");
            let Cgroup { path, pod, container } = cgroup;
            let took_ns = nanoseconds(took);
            tracing::info!(
                cgroup = path,
                pod,
                container,
                throttled = "raised",
                high_bytes = high.0,
                took_ns,
                at_ns = at.0,
                "{message}"
            );
        }
        ContainerRecord::NotRaised { path, at } => {
            let cgroup = names.cgroup(path);
            let message = format!(
                "memory.high of {cgroup} was not raised in time: services or the container runtime did not carry the \
                 order out"
            );
            let Cgroup { path, pod, container } = cgroup;
            tracing::warn!(cgroup = path, pod, container, throttled = "not-raised", at_ns = at.0, "{message}");
        }
        ContainerRecord::InVain { path, lasted, at } => {
            let cgroup = names.cgroup(path);
            let message = format!("{cgroup} is throttled for {lasted:?}, although its memory.high was raised");
            let Cgroup { path, pod, container } = cgroup;
            let lasted_ns = nanoseconds(lasted);
            tracing::warn!(cgroup = path, pod, container, throttled = "in-vain", lasted_ns, at_ns = at.0, "{message}");
        }
        ContainerRecord::Victim { plan, path, lasted, shadow, at } => {
            let cgroup = names.cgroup(path);
            let would = if shadow { "would be" } else { "is" };
            let message = format!(
                "{cgroup} {would} evicted: memory.high throttles one of its containers for {lasted:?}, although that was \
                 raised"
            );
            let Cgroup { path, pod, .. } = cgroup;
            let lasted_ns = nanoseconds(lasted);
            tracing::warn!(plan, cgroup = path, pod, throttled = "evict", shadow, lasted_ns, at_ns = at.0, "{message}");
        }
    }
}

fn waited(stall: Option<Stall>) -> String {
    stall.map_or_else(
        || "how long its tasks wait is not known, as the kernel has no pressure stall information for it".to_owned(),
        |stall| format!("its tasks waited {:.0} % of the last {:?}", stall.share() * 100.0, stall.within),
    )
}
