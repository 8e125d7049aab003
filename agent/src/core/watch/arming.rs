//! The thresholds at which the kernel submits the next event.

use core::time::Duration;

use plimsoll_node::limits::TaskLimits;
use plimsoll_policy::{MemoryReading, Scope, SliceThresholds};
use plimsoll_sense::{ArmedThresholds, Kind, NodeThreshold, TaskThreshold};
use plimsoll_units::MonotonicNs;

use super::super::thresholds::{self, Machine};
use super::Watch;
use super::triggers::Trigger;
use crate::record::{Cause, HealthRecord};

/// After the event of the threshold of tasks, none of it comes for so long.
const TASKS_QUIET: Duration = Duration::from_mins(1);

/// What the thresholds are computed from, and where they are.
pub(in crate::core) struct Arming {
    machine: Machine,
    /// How many tasks there can be; absent where the kernel does not say.
    tasks: Option<TaskLimits>,
    node: Option<NodeThreshold>,
    task: Option<TaskThreshold>,
    /// The threshold of tasks that is armed.
    armed_task: Option<TaskThreshold>,
    /// The threshold of tasks is not armed until then.
    tasks_quiet: Option<MonotonicNs>,
}

impl Arming {
    pub(in crate::core) const fn new(machine: Machine, tasks: Option<TaskLimits>) -> Self {
        Self { machine, tasks, node: None, task: None, armed_task: None, tasks_quiet: None }
    }

    pub(super) const fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn set_machine(&mut self, machine: Machine) {
        self.machine = machine;
    }

    /// The limits of tasks can be changed at any time. Where they cannot be read, the threshold stays.
    pub(super) fn read_task_limit(&mut self) {
        let Some(Ok(reading)) = self.tasks.as_ref().map(TaskLimits::read) else { return };
        let limit = reading.limit();
        self.task = Some(TaskThreshold { count: u32::try_from(limit - limit / 20).unwrap_or(u32::MAX) });
    }

    pub(super) fn silence_tasks(&mut self, now: MonotonicNs) {
        self.tasks_quiet = Some(now.after(TASKS_QUIET));
    }

    /// The threshold of tasks, where it is not silenced.
    fn tasks_now(&self, now: MonotonicNs) -> Option<TaskThreshold> {
        self.task.filter(|_| self.tasks_quiet.is_none_or(|until| until <= now))
    }

    /// Whether the threshold of tasks is armed as it is to be.
    pub(super) fn is_current(&self, now: MonotonicNs) -> bool {
        self.armed_task == self.tasks_now(now)
    }
}

impl Watch {
    /// Arms the thresholds anew, and checks whether memory passed one before it was armed.
    pub(super) fn rearm(&mut self, trigger: &Trigger, memory: &MemoryReading, is_quiet: bool, now: MonotonicNs) {
        if self.triggers.source().kind() != Kind::Ebpf {
            return;
        }
        let (node, is_near) = thresholds::node(&self.engine.policy.thresholds, memory, self.arming.machine()).unzip();
        if is_near == Some(true) {
            self.schedule.is_near(now);
        }
        let mut armed = ArmedThresholds { node, tasks: self.arming.tasks_now(now), ..ArmedThresholds::default() };
        self.arm_slices(&mut armed, now);
        // The event of reclaim comes once for each arming: arming for its sake alone would make it come without end.
        let is_reclaim_alone = matches!(trigger.cause(), Some(Cause::Reclaim | Cause::Psi)) && node == self.arming.node;
        if is_reclaim_alone && is_quiet {
            return;
        }
        self.arming.node = node;
        self.arming.armed_task = armed.tasks;
        if self.triggers.source_mut().arm(&armed).is_err() {
            self.reporting.send(HealthRecord::Failed { what: "arm the thresholds", errno: None });
        }
        let after = self.sampler.reading(Scope::Node, self.engine.policy.eviction_policy, &self.workloads.table);
        if let (Some(after), Some(node)) = (after, node)
            && (after.kubelet_available < node.kubelet
                || after.mem_available.is_some_and(|own| own < node.mem_available))
        {
            self.schedule.sample_by(now);
        }
    }

    /// Adds the slices' thresholds, as far as a charge can cross them, and says when page cache is read anew for those
    /// that can be crossed without an event.
    fn arm_slices(&mut self, armed: &mut ArmedThresholds, now: MonotonicNs) {
        let table = &self.workloads.table;
        for (index, slice) in table.slices() {
            let Some(SliceThresholds { thresholds }) = self.engine.policy.slices.get(index) else { continue };
            let Some(reading) = table.slice_reading(index) else { continue };
            let inactive_file = slice.figures.cache.inactive_file;
            let place = (slice.handle.id(), slice.handle.level());
            let Some(next) = thresholds::slice(place, thresholds, &reading, inactive_file) else {
                continue;
            };
            let is_armed = slice.handle.usage().is_ok_and(|usage| usage < next.usage);
            if is_armed {
                armed.slices.push(next);
            }
            let unseen = thresholds::unseen(thresholds, &reading, inactive_file, is_armed);
            let due = unseen.map(|room| now.after(self.schedule.reread_pace(room)));
            self.scopes.reread_by(index, due);
        }
    }
}
