//! Records as metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use plimsoll_inventory::{OrphanedPods, RemovalError, RemovalResult};
use plimsoll_policy::kubelet::Condition;
use plimsoll_policy::message::SIGNAL_LABEL;
use plimsoll_units::Bytes;

use crate::disk_victim;
use crate::fields::variant;
use crate::metrics::{Metrics, count, count_candidates, store};
use crate::names::Names;
use crate::plan::Draft;
use crate::record::{
    DISKS, DiskRecord, EnforcementRecord, HealthRecord, Killed, MachineRecord, OomScope, Record, StartParts,
    StartupRecord, ThresholdRecord,
};

/// The metrics, and what of a starting core does not count before it is armed.
pub(crate) struct MetricsSink {
    pub(crate) metrics: Metrics,
    /// Its hooks, and whether they are attached.
    starting_hooks: BTreeMap<String, bool>,
    /// The kill switches that are thrown.
    switches: BTreeSet<String>,
}

impl MetricsSink {
    pub(crate) const fn new(metrics: Metrics) -> Self {
        Self { metrics, starting_hooks: BTreeMap::new(), switches: BTreeSet::new() }
    }

    /// The records of another core follow, which has no source until it is armed.
    pub(crate) fn follow(&self) {
        self.metrics.source.clear();
        self.metrics.inventory.troubles.clear();
    }

    pub(crate) fn record(&mut self, record: &Record<'_>, names: &Names) {
        match record {
            Record::Startup(record) => self.startup(record),
            // Counted as a whole.
            Record::Plan(_) | Record::Observation(_) => {}
            Record::Readings(record) => self.metrics.signals.record(record),
            Record::Threshold(record) => self.threshold(record),
            Record::Disk(record) => self.disk(record),
            Record::Enforcement(record) => self.enforcement(record),
            Record::Machine(record) => self.machine(record),
            Record::Container(record) => self.metrics.containers.record(record, names),
            Record::Health(record) => self.health(record),
        }
    }

    pub(crate) fn plan(&self, draft: &Draft) {
        if !draft.is_whole() {
            self.metrics.broken_plans.inc();
        }
        count(&self.metrics.decisions, ("outcome", &variant(&draft.plan.outcome).0));
        count_candidates(&self.metrics, &draft.plan);
        self.metrics.memory_pressure.set(draft.of_node.has(Condition::MemoryPressure).into());
        self.metrics.pid_pressure.set(draft.of_node.has(Condition::PidPressure).into());
    }

    fn startup(&mut self, record: &StartupRecord<'_>) {
        match *record {
            StartupRecord::Hook { name, attached, how: _ } => {
                self.starting_hooks.insert(name.into(), attached);
            }
            StartupRecord::Armed { pid: _, source, shadow: _, workloads, start } => {
                self.armed(source, workloads, &start);
            }
            StartupRecord::SourceFailed { .. } | StartupRecord::Undone { .. } => {}
        }
    }

    fn armed(&mut self, source: &str, workloads: u32, start: &StartParts) {
        // What another core had is not there any more.
        self.metrics.source.clear();
        self.metrics.hook_attached.clear();
        self.metrics.containers.clear();
        self.metrics.signals.clear();
        self.metrics.held_down.set(0);
        for (name, attached) in std::mem::take(&mut self.starting_hooks) {
            self.metrics.hook_attached.get_or_create(&[("hook", name)]).set(attached.into());
        }
        self.metrics.source.get_or_create(&[("source", source.into())]).set(1);
        self.metrics.workloads.set(workloads.into());
        for (part, took) in start.named() {
            self.metrics.core_start.get_or_create(&[("part", part.into())]).set(took.as_secs_f64());
        }
    }

    /// A kill switch is thrown.
    pub(crate) fn is_switched_off(&self) -> bool {
        !self.switches.is_empty()
    }

    fn threshold(&self, record: &ThresholdRecord) {
        match *record {
            ThresholdRecord::Crossed { crossed, awake } => {
                self.metrics.crossed_to_awake.observe(awake.since(crossed).as_secs_f64());
            }
            ThresholdRecord::Stopped { crossed, at, past_threshold } => {
                if let Some(crossed) = crossed {
                    self.metrics.crossed_to_stopped.observe(at.since(crossed).as_secs_f64());
                }
                self.metrics.past_threshold.observe(float(past_threshold.0));
            }
            ThresholdRecord::MemoryBack { crossed, at, past_threshold: _ } => {
                if let Some(crossed) = crossed {
                    self.metrics.crossed_to_memory_back.observe(at.since(crossed).as_secs_f64());
                }
            }
        }
    }

    fn disk(&self, record: &DiskRecord<'_>) {
        match *record {
            // An order that is sent counts by its result.
            DiskRecord::Threshold { .. }
            | DiskRecord::Judged { .. }
            | DiskRecord::Order { number: Some(_), .. }
            | DiskRecord::Victim { shadow: true, .. } => {}
            DiskRecord::Victim { cause, .. } => {
                count(&self.metrics.disks.evictions, (SIGNAL_LABEL, disk_victim::label(cause)));
            }
            DiskRecord::Pressure { holds, read, at: _ } => {
                self.metrics.disks.pressure.set(holds.into());
                for (disk, read) in DISKS.into_iter().zip(read) {
                    self.metrics.disks.read.get_or_create(&[("disk", disk.into())]).set(read.into());
                }
            }
            DiskRecord::Order { number: None, .. } => count(&self.metrics.disks.orders, ("outcome", "shadow")),
            DiskRecord::Removed { result, .. } => self.removed(&result),
            DiskRecord::Orphaned { pods, is_new: _ } => self.orphaned(&pods),
        }
    }

    fn orphaned(&self, pods: &OrphanedPods) {
        let OrphanedPods { measured, unmeasured, logs, volumes, first: _ } = *pods;
        let disks = &self.metrics.disks;
        for (is_measured, count) in [("true", measured), ("false", unmeasured)] {
            disks.orphaned.get_or_create(&[("measured", is_measured.into())]).set(count.into());
        }
        for (part, bytes) in [("logs", logs), ("volumes", volumes)] {
            disks
                .orphaned_bytes
                .get_or_create(&[("part", part.into())])
                .set(i64::try_from(bytes.0).unwrap_or(i64::MAX));
        }
    }

    fn removed(&self, result: &RemovalResult) {
        let RemovalResult { containers, sandboxes, images, freed, error, .. } = *result;
        let done = if result.is_nothing() { "nothing" } else { "removed" };
        let disks = &self.metrics.disks;
        count(&disks.orders, ("outcome", error.map_or(done, RemovalError::name)));
        for (what, number) in [("container", containers), ("sandbox", sandboxes), ("image", images)] {
            disks.removed.get_or_create(&[("what", what.into())]).inc_by(number.into());
        }
        disks.freed.inc_by(freed.0);
    }

    fn enforcement(&self, record: &EnforcementRecord<'_>) {
        match *record {
            EnforcementRecord::Brake { what, .. } => count(&self.metrics.brakes, ("outcome", what.name())),
            EnforcementRecord::Kill { what, .. } => {
                let counter = match what {
                    Killed::Begun => &self.metrics.kills,
                    Killed::Asked(_) => &self.metrics.asked_to_end,
                    Killed::Stuck(_) => &self.metrics.stuck_victims,
                    Killed::Refused(_) => &self.metrics.kills_refused,
                    Killed::Again(_) | Killed::Gone | Killed::Emptied(..) => return,
                };
                counter.inc();
            }
            EnforcementRecord::HeldDown { count } => drop(self.metrics.held_down.set(count.into())),
            // The kernel side counts its own; of reclaim nothing is counted, and of holds how many there are.
            EnforcementRecord::StoppedInKernel { .. }
            | EnforcementRecord::Hold { .. }
            | EnforcementRecord::Released { .. }
            | EnforcementRecord::Reclaimed { .. } => {}
        }
    }

    fn machine(&self, record: &MachineRecord<'_>) {
        match *record {
            MachineRecord::Oom { scope, .. } => {
                count(&self.metrics.oom_kills, ("scope", scope.name()));
                if scope == OomScope::Global {
                    self.metrics.races_lost.inc();
                }
            }
            MachineRecord::Tasks { .. } | MachineRecord::Suspect { .. } => {}
        }
    }

    fn health(&mut self, record: &HealthRecord<'_>) {
        let metrics = &self.metrics;
        match *record {
            HealthRecord::KillSwitch { switch, is_thrown } => {
                if is_thrown {
                    self.switches.insert(switch.into());
                } else {
                    self.switches.remove(switch);
                }
                self.metrics.kill_switch.set(self.is_switched_off().into());
            }
            HealthRecord::Beat { at: _, workloads, malformed, brakes_applied, brakes_refused, brakes_repeated } => {
                metrics.workloads.set(workloads.into());
                store(&metrics.malformed_records, ("side", "kernel"), malformed);
                store(&metrics.kernel_brakes, ("outcome", "applied"), brakes_applied);
                store(&metrics.kernel_brakes, ("outcome", "refused"), brakes_refused);
                store(&metrics.kernel_brakes, ("outcome", "repeated"), brakes_repeated);
            }
            HealthRecord::Inventory {
                without_row,
                outside,
                descriptors,
                kernel_memory,
                sample_cost,
                delayed_samples,
            } => {
                let signed = |bytes: Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
                let metrics = &metrics.inventory;
                metrics.without_row.set(without_row.into());
                metrics.outside.set(signed(outside));
                metrics.descriptors.set(descriptors.into());
                kernel_memory.inspect(|bytes| _ = metrics.kernel_memory.set(signed(*bytes)));
                metrics.sample_cost.set(sample_cost.as_secs_f64());
                metrics.delayed_samples.inner().store(delayed_samples.into(), Ordering::Relaxed);
            }
            HealthRecord::Lost { ring, count } => store(&metrics.lost_records, ("ring", ring), count),
            HealthRecord::Program { name, runs, run_time_ns, recursion_misses } => {
                let label = ("program", name);
                if let Some(runs) = runs {
                    store(&metrics.program_runs, label, runs);
                }
                if let Some(nanoseconds) = run_time_ns {
                    let seconds = float(nanoseconds) / 1e9;
                    let counter = metrics.program_run_time.get_or_create(&[(label.0, name.to_owned())]);
                    counter.inner().store(seconds.to_bits(), Ordering::Relaxed);
                }
                if let Some(misses) = recursion_misses {
                    store(&metrics.program_recursion_misses, label, misses);
                }
            }
            HealthRecord::Tampered(what) => count(&metrics.tampered, ("what", what.name())),
            HealthRecord::Failed { what, errno: _ } => count(&metrics.failures, ("what", what)),
            HealthRecord::Trouble { what, text, is_logged: _ } => {
                metrics.inventory.troubles.get_or_create(&[("what", what.to_owned())]).set(text.is_some().into());
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float; above 2^53 the last digits do not matter")]
fn float(value: u64) -> f64 {
    value as f64
}
