//! Records as events of the log.

use core::time::Duration;
use std::fmt::from_fn;

use plimsoll_config::Configuration;
use plimsoll_inventory::{RemovalError, RemovalResult};
use plimsoll_policy::ThresholdStatus;
use plimsoll_policy::kubelet::{Amount, Condition, Reclaim, Signal};
use plimsoll_units::{Bytes, counted};
use serde_json::{Map, Value, json};

use crate::container_log;
use crate::disk_victim::{label, message};
use crate::fields::nanoseconds;
use crate::names::{Cgroup, Names};
use crate::orphaned_log;
use crate::plan::Draft;
use crate::record::{
    Braked, DISKS, DiskRecord, EnforcementRecord, HealthRecord, Held, HoldEnd, Killed, MachineRecord, Record, Refused,
    StartParts, StartupRecord, Tampered, ThresholdRecord,
};
use crate::text::{escaped, printable};

/// A warning where `$warns`, information else.
macro_rules! event {
    ($warns:expr, $($event:tt)*) => {
        if $warns { tracing::warn!($($event)*) } else { tracing::info!($($event)*) }
    };
}

pub(crate) fn record(record: &Record<'_>, names: &Names) {
    match record {
        Record::Startup(record) => startup(record),
        // A plan is one line once it is complete; an observation is for a trace.
        Record::Plan(_) | Record::Observation(_) | Record::Readings(_) => {}
        Record::Threshold(record) => threshold(record),
        Record::Disk(record) => disk(record, names),
        Record::Enforcement(record) => enforcement(record, names),
        Record::Machine(record) => machine(record, names),
        Record::Container(record) => container_log::record(record, names),
        Record::Health(record) => health(record),
    }
}

pub(crate) fn plan(draft: &Draft, configuration: &Configuration) {
    let fields = from_fn(|f| write!(f, "{}", Value::Object(draft.fields(configuration))));
    tracing::info!(json = %fields, "{}", draft.line(configuration));
}

fn startup(record: &StartupRecord<'_>) {
    match *record {
        StartupRecord::SourceFailed { source, why } => {
            tracing::warn!(source, "source {source} was not taken: {why}");
        }
        StartupRecord::Hook { name, attached: true, how } => {
            tracing::info!(hook = name, "hook {name} is attached: {how}");
        }
        StartupRecord::Hook { name, attached: false, how } => {
            tracing::warn!(hook = name, "hook {name} is missing: {how}");
        }
        StartupRecord::Armed { pid, source, shadow, workloads, start } => {
            let action = shadow.map_or_else(|| "acts".to_owned(), |why| format!("shadows: {why}"));
            tracing::info!(
                core_pid = pid,
                source,
                shadow,
                workloads,
                json.start = %in_nanoseconds(&start),
                "armed with source {source} over {}; {action}",
                counted(workloads, "workload", "workloads")
            );
        }
        StartupRecord::Undone { thawed, continued, failed, kills } => {
            event!(failed > 0, thawed, continued, failed, kills, "undid what an earlier process left");
        }
    }
}

fn in_nanoseconds(start: &StartParts) -> Value {
    let parts = start.named().map(|(part, took)| (format!("{part}_ns"), json!(nanoseconds(took))));
    Value::Object(Map::from_iter(parts))
}

fn threshold(record: &ThresholdRecord) {
    match *record {
        ThresholdRecord::Crossed { crossed, awake } => {
            let took = awake.since(crossed);
            tracing::debug!(crossed_ns = crossed.0, awake_ns = awake.0, "awake {took:?} after a threshold was crossed");
        }
        ThresholdRecord::Stopped { crossed, at, past_threshold } => tracing::debug!(
            at_ns = at.0,
            crossed_ns = crossed.map(|at| at.0),
            past_threshold_bytes = past_threshold.0,
            "what grew was stopped {past_threshold} below the threshold"
        ),
        ThresholdRecord::MemoryBack { crossed, at, past_threshold } => {
            let took = crossed.map(|crossed| at.since(crossed));
            let took = took.map_or_else(String::new, |took| format!(", {took:?} after it was crossed"));
            tracing::info!(
                at_ns = at.0,
                crossed_ns = crossed.map(|at| at.0),
                past_threshold_bytes = past_threshold.0,
                "memory is above the threshold again{took}"
            );
        }
    }
}

fn disk(record: &DiskRecord<'_>, names: &Names) {
    match *record {
        DiskRecord::Threshold { signal, grace, status } => {
            let ThresholdStatus { at, target, available, since, is_met, .. } = status;
            let whole = |amount: Amount| amount.to_bytes().0;
            let (kind, amount) = (if grace.is_zero() { "hard" } else { "soft" }, |it| amount_of(signal, it));
            let message = match (since, is_met) {
                (None, _) => {
                    format!("{signal} {}, above its {kind} threshold {} again", amount(available), amount(target))
                }
                (Some(_), true) => format!("{signal} {}, below its {kind} threshold {}", amount(available), amount(at)),
                (Some(_), false) => format!(
                    "{signal} {}, below its {kind} threshold {}, within its grace period of {grace:?}",
                    amount(available),
                    amount(at)
                ),
            };
            event!(
                since.is_some(),
                signal = signal.name(),
                available = whole(available),
                threshold = whole(at),
                target = whole(target),
                since_ns = since.map(|at| at.0),
                is_met,
                "{message}"
            );
        }
        DiskRecord::Victim { .. } => disk_victim(record, names),
        DiskRecord::Pressure { holds, read, at } => {
            let condition = Condition::DiskPressure.name();
            let of: Vec<&str> = DISKS.into_iter().zip(read).filter(|(_, read)| *read).map(|(disk, _)| disk).collect();
            let of = if of.is_empty() { "no disk is read".to_owned() } else { format!("by {}", of.join(", ")) };
            event!(holds, condition, status = holds, at_ns = at.0, "{condition} is {holds}: {of}");
        }
        DiskRecord::Order { number, signal, what, bytes, is_repeated, at } => {
            let what = to_remove(what, bytes);
            let verb = if number.is_some() { "removes" } else { "would remove" };
            let (order, shadow, signal) = (number, number.is_none(), signal.name());
            let bytes = bytes.map(|bytes| bytes.0);
            let message = format!("{verb} {what} for {signal}");
            if is_repeated {
                tracing::debug!(order, shadow, signal, bytes, at_ns = at.0, "{message}");
            } else {
                tracing::info!(order, shadow, signal, bytes, at_ns = at.0, "{message}");
            }
        }
        DiskRecord::Removed { result, took, is_repeated } => removed(&result, took, is_repeated),
        DiskRecord::Orphaned { pods, is_new: true } => orphaned_log::log(&pods),
        // A trace's alone, and what was said.
        DiskRecord::Judged { .. } | DiskRecord::Orphaned { is_new: false, .. } => {}
    }
}

fn to_remove(what: Reclaim, bytes: Option<Bytes>) -> String {
    let images = match bytes {
        // Less than any image takes: inodes are short.
        Some(Bytes(1)) => "one unused image".to_owned(),
        Some(bytes) => format!("unused images of {bytes}"),
        None => "all unused images".to_owned(),
    };
    match (what.containers, what.images) {
        (true, false) => "dead containers and sandboxes".to_owned(),
        (true, true) => format!("dead containers and sandboxes, and {images}"),
        (false, _) => images,
    }
}

fn removed(result: &RemovalResult, took: Duration, is_repeated: bool) {
    let RemovalResult { number, containers, sandboxes, images, freed, unused, error } = *result;
    let what = if result.is_nothing() {
        "nothing was removed".to_owned()
    } else {
        let parts = [
            counted(containers, "container", "containers"),
            counted(sandboxes, "sandbox", "sandboxes"),
            counted(images, "image", "images"),
        ];
        format!("removed {}, {} and {} of {freed} in {took:?}", parts[0], parts[1], parts[2])
    };
    let left =
        unused.map_or_else(String::new, |left| format!("; {} left", counted(left, "unused image", "unused images")));
    let why = error.map_or_else(String::new, |error| format!("; {}", error.text()));
    let (message, freed_bytes, error) = (format!("{what}{left}{why}"), freed.0, error.map(RemovalError::name));
    if is_repeated {
        tracing::debug!(order = number, containers, sandboxes, images, freed_bytes, unused, error, "{message}");
    } else {
        event!(error.is_some(), order = number, containers, sandboxes, images, freed_bytes, unused, error, "{message}");
    }
}

/// A pod that is evicted for a disk, with the kubelet's message.
fn disk_victim(record: &DiskRecord<'_>, names: &Names) {
    let DiskRecord::Victim { plan, path, cause, used, request, shadow, at } = *record else { return };
    let (message, cgroup) = (message(cause, path, names), names.cgroup(path));
    let done = if shadow { "shadow, not done: " } else { "" };
    let line = format!("{done}evict {cgroup}: {}", message.trim_end());
    let Cgroup { path, pod, container: _ } = cgroup;
    tracing::warn!(
        plan,
        shadow,
        cgroup = path,
        pod,
        cause = label(cause),
        used_bytes = used.map(|bytes| bytes.0),
        request_bytes = request.0,
        at_ns = at.0,
        "{line}"
    );
}

/// Bytes, or a number of inodes.
fn amount_of(signal: Signal, amount: Amount) -> String {
    let whole = amount.to_bytes();
    if signal.is_bytes() { whole.to_string() } else { whole.0.to_string() }
}

fn enforcement(record: &EnforcementRecord<'_>, names: &Names) {
    match *record {
        EnforcementRecord::Brake { path, at, what } => {
            let cgroup = names.cgroup(path);
            let message = braked(&cgroup, what);
            let warns = matches!(what, Braked::Stopped(_) | Braked::ThawFailed | Braked::Refused(_));
            let Cgroup { path, pod, container } = cgroup;
            event!(warns, cgroup = path, pod, container, brake = what.name(), at_ns = at.0, "{message}");
        }
        EnforcementRecord::StoppedInKernel { pid, slice, at } => tracing::info!(
            pid,
            kernel_brake = "stopped",
            slice_id = slice.0,
            at_ns = at.0,
            "the kernel stopped process {pid} at the threshold"
        ),
        EnforcementRecord::Kill { plan, path, usage, at, what } => {
            let cgroup = names.cgroup(path);
            let message = killed(&cgroup, what);
            let Cgroup { path, pod, container } = cgroup;
            event!(
                matches!(what, Killed::Again(_) | Killed::Stuck(_) | Killed::Refused(_)),
                cgroup = path,
                pod,
                container,
                kill = what.name(),
                plan,
                usage_bytes = usage.map(|bytes| bytes.0),
                left_bytes = left(what).map(|bytes| bytes.0),
                at_ns = at.0,
                "{message}"
            );
        }
        EnforcementRecord::Released { cgroup, released, gone, kept } => {
            tracing::info!(cgroup_id = cgroup.0, released, gone, kept, "took the memory of dying processes");
        }
        EnforcementRecord::Reclaimed { cgroup, asked, all } => {
            let outcome = if all { "reclaimed" } else { "reclaimed less than was asked for" };
            tracing::info!(cgroup_id = cgroup.0, asked_bytes = asked.0, "{outcome}");
        }
        EnforcementRecord::Hold { path, at, what } => {
            let cgroup = names.cgroup(path);
            let message = held(&cgroup, what);
            let warns = matches!(what, Held::Refused(_));
            let reason = what.end().map(HoldEnd::name);
            let Cgroup { path, pod, container } = cgroup;
            event!(warns, cgroup = path, pod, container, hold = what.name(), reason, at_ns = at.0, "{message}");
        }
        EnforcementRecord::HeldDown { .. } => {}
    }
}

fn held(cgroup: &Cgroup, what: Held) -> String {
    match what {
        Held::Begun(most) => {
            format!("{cgroup} is held down for {most:?} at most: it was evicted, and nothing runs in it")
        }
        Held::Ended(why, lasted) => {
            let why = match why {
                HoldEnd::Recorded => "the API server has its status, and what was started in it was killed",
                HoldEnd::Over => "its time is over, and what was started in it goes on",
                HoldEnd::Gone => "its cgroup was removed",
                HoldEnd::NotActing => "the agent acts no more, and what was started in it goes on",
            };
            format!("{cgroup} is not held down any more after {lasted:?}: {why}")
        }
        Held::Refused(why) => format!("{cgroup} was evicted and is not held down: {why}"),
    }
}

fn braked(cgroup: &Cgroup, what: Braked) -> String {
    match what {
        Braked::Frozen => format!("{cgroup} is frozen"),
        Braked::Stopped(processes) => format!(
            "{} of {cgroup} stopped one by one, because its freeze waits for writes to other cgroups",
            counted(processes, "process", "processes")
        ),
        Braked::Thawed(held) => format!("{cgroup} is thawed after {held:?}"),
        Braked::StillGrows(grown) => format!("{cgroup} was frozen and grew {grown}"),
        Braked::Gone => format!("{cgroup} was removed while it was frozen"),
        Braked::Refused(why) => format!("{cgroup} was not frozen: {why}"),
        Braked::ThawFailed => format!("{cgroup} could not be thawed; it is tried again"),
    }
}

fn killed(cgroup: &Cgroup, what: Killed) -> String {
    match what {
        Killed::Begun => format!("killed {cgroup}"),
        Killed::Asked(grace) => format!("{cgroup} was asked to terminate within {grace:?}"),
        Killed::Gone => format!("{cgroup} was removed or empty before it was killed"),
        Killed::Again(grown) => format!("{cgroup} grew by {grown} after it was killed, and was killed again"),
        Killed::Emptied(took, _) => format!("{cgroup} is empty after {took:?}"),
        Killed::Stuck(_) => format!("{cgroup} does not terminate; its memory does not count as coming back"),
        Killed::Refused(why) => format!("{cgroup} was not killed: {why}"),
    }
}

/// What is still charged to the cgroup.
const fn left(what: Killed) -> Option<Bytes> {
    match what {
        Killed::Emptied(_, left) | Killed::Stuck(left) => left,
        Killed::Begun | Killed::Asked(_) | Killed::Gone | Killed::Again(_) | Killed::Refused(_) => None,
    }
}

fn machine(record: &MachineRecord<'_>, names: &Names) {
    match *record {
        MachineRecord::Oom { at, pid, name, cgroup, resident, scope } => {
            let name = escaped(name.split(|byte| *byte == 0).next().unwrap_or_default());
            tracing::warn!(
                at_ns = at.0,
                pid,
                process = name,
                cgroup_id = cgroup.map(|id| id.0),
                resident_bytes = resident.map(|bytes| bytes.0),
                scope = scope.name(),
                "the OOM killer chose process {pid} ({name}; scope {})",
                scope.name()
            );
        }
        MachineRecord::Tasks { count, at, pid } => {
            tracing::warn!(tasks = count, at_ns = at.0, pid, "{count} tasks exist, close to the limit of tasks");
        }
        MachineRecord::Suspect { pid, name, cgroup, resident, huge_pages, packet_rings } => {
            let (name, cgroup) = (escaped(name), names.cgroup(cgroup));
            let charged_to_none = [(huge_pages, "huge pages"), (packet_rings, "rings of packet sockets")];
            let held: Vec<String> = charged_to_none
                .iter()
                .filter(|(bytes, _)| *bytes > Bytes::ZERO)
                .map(|(bytes, what)| format!("{bytes} in {what}, "))
                .collect();
            let message = if held.is_empty() {
                format!("process {pid} ({name}), outside all workloads, holds {resident}")
            } else {
                let held = held.concat();
                format!(
                    "process {pid} ({name}) in /{cgroup} holds {held}charged to no cgroup, and {resident} beside that"
                )
            };
            let Cgroup { path, pod, container } = cgroup;
            tracing::warn!(
                pid,
                name,
                cgroup = path,
                pod,
                container,
                resident_bytes = resident.0,
                huge_pages_bytes = huge_pages.0,
                packet_rings_bytes = packet_rings.0,
                "{message}"
            );
        }
    }
}

fn health(record: &HealthRecord<'_>) {
    match *record {
        // For the metrics and health.
        HealthRecord::Beat { .. }
        | HealthRecord::Inventory { .. }
        | HealthRecord::Lost { .. }
        | HealthRecord::Program { .. }
        | HealthRecord::Trouble { is_logged: true, .. } => {}
        HealthRecord::Tampered(what) => {
            let message = match what {
                Tampered::Thresholds => "another program changed the armed thresholds; they were written anew",
                Tampered::Programs => "the kernel programs do not run any more; the core is started again",
            };
            tracing::error!(tampered = what.name(), "{message}");
        }
        HealthRecord::Failed { what, errno } => {
            let why = Refused::Kernel(errno);
            tracing::warn!(errno, "failed to {what}: {why}");
        }
        HealthRecord::Trouble { what, text: Some(text), .. } => tracing::warn!(trouble = what, "{text}"),
        HealthRecord::Trouble { what, text: None, .. } => tracing::info!(trouble = what, "works again: {what}"),
        HealthRecord::KillSwitch { switch, is_thrown } => {
            let switch = printable(switch);
            let says = if is_thrown {
                "is there: nothing is evicted, frozen, reclaimed or removed; what would be is reported"
            } else {
                "is not there: it stops no action"
            };
            event!(is_thrown, kill_switch = switch, is_thrown, "the kill switch {switch} {says}");
        }
    }
}
