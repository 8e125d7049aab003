//! The thresholds at which the kernel submits the next event.

use core::time::Duration;

use plimsoll_node::limits::TaskReading;
use plimsoll_policy::kubelet::Signal;
use plimsoll_policy::{MemoryReading, Scope, SliceThresholds};
use plimsoll_sense::{ArmedThresholds, Kind, NodeThreshold, SliceThreshold, TaskThreshold};
use plimsoll_units::{Bytes, MEMCG_CHARGE_BATCH, MonotonicNs};

use super::super::thresholds::{self, Machine};
use super::Watch;
use super::triggers::Trigger;
use crate::record::HealthRecord;

/// Without a threshold on tasks in the configuration, that they are few is reported: after that event none of it comes for
/// so long.
const TASKS_QUIET: Duration = Duration::from_mins(1);

/// What the thresholds are computed from, and where they are.
pub(in crate::core) struct Arming {
    machine: Machine,
    node: Option<NodeThreshold>,
    /// How many tasks there can be; absent where the kernel does not say.
    task_limit: Option<u64>,
    /// The threshold of tasks that is armed.
    armed_task: Option<TaskThreshold>,
    /// That few are left is not armed until then.
    tasks_quiet: Option<MonotonicNs>,
}

impl Arming {
    pub(in crate::core) const fn new(machine: Machine) -> Self {
        Self { machine, node: None, task_limit: None, armed_task: None, tasks_quiet: None }
    }

    pub(super) const fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn set_machine(&mut self, machine: Machine) {
        self.machine = machine;
    }

    /// The limits of tasks were read, which can be changed at any time. Gives whether they were.
    pub(super) fn set_task_limit(&mut self, reading: &TaskReading) -> bool {
        let limit = reading.limit();
        self.task_limit.replace(limit).is_some_and(|before| before != limit)
    }

    pub(super) fn silence_tasks(&mut self, now: MonotonicNs) {
        self.tasks_quiet = Some(now.after(TASKS_QUIET));
    }

    /// Where a twentieth of the tasks that there can be is left, unless that is silenced.
    fn few_left(&self, now: MonotonicNs) -> Option<TaskThreshold> {
        let limit = self.task_limit.filter(|_| self.tasks_quiet.is_none_or(|until| until <= now))?;
        Some(TaskThreshold { count: u32::try_from(limit - limit / 20).unwrap_or(u32::MAX) })
    }
}

impl Watch {
    /// Whether a threshold on tasks is configured.
    pub(super) fn watches_tasks(&self) -> bool {
        self.engine.policy.thresholds_on(Scope::Node, Signal::PidAvailable).next().is_some()
    }

    /// Whether samples need not read how many tasks there are, as the threshold of tasks is armed and submits an event.
    pub(super) fn arms_tasks(&self, now: MonotonicNs) -> bool {
        if self.watches_tasks() {
            self.arming.armed_task.is_some() && self.triggers.source().sees_forks()
        } else {
            self.arming.armed_task == self.arming.few_left(now)
        }
    }

    /// Takes in how many tasks there can be. Where that has changed, the next sample arms the threshold of tasks anew.
    /// Where it cannot be read, what was read before holds.
    pub(super) fn read_task_limit(&mut self) {
        if let Some(Ok(reading)) = self.sampler.tasks()
            && self.arming.set_task_limit(&reading)
        {
            self.resting.end();
        }
    }

    /// The threshold of tasks to arm. Where no event comes for it, samples are due before it can be crossed.
    fn arm_tasks(&mut self, tasks: Option<TaskReading>, now: MonotonicNs) -> Option<TaskThreshold> {
        if !self.watches_tasks() {
            return self.arming.few_left(now);
        }
        let (thresholds, tasks) = (&self.engine.policy.thresholds, tasks?);
        if !self.triggers.source().sees_forks()
            && let Some(room) = thresholds::room_for_tasks(thresholds, &tasks)
        {
            self.schedule.fork_room(room, now);
        }
        thresholds::tasks(thresholds, &tasks)
    }

    /// Arms the thresholds anew, and checks whether memory or tasks passed one before it was armed.
    pub(super) fn rearm(
        &mut self,
        trigger: &Trigger,
        (memory, tasks): (&MemoryReading, Option<TaskReading>),
        is_quiet: bool,
        now: MonotonicNs,
    ) {
        let tasks = self.arm_tasks(tasks, now);
        if self.triggers.source().kind() != Kind::Ebpf {
            return;
        }
        let (node, is_near) = thresholds::node(&self.engine.policy.thresholds, memory, self.arming.machine()).unzip();
        if is_near == Some(true) {
            self.schedule.is_near(now);
        }
        // The event of reclaim comes once for each arming: arming for its sake alone would make it come without end.
        if trigger.is_reclaim_alone() && node == self.arming.node && is_quiet {
            return;
        }
        let mut armed = ArmedThresholds { node, tasks, ..ArmedThresholds::default() };
        self.arm_slices(&mut armed, now);
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
        let slices = self.workloads.table.slices();
        let is_reached = |slice: &SliceThreshold| {
            let handle = slices.iter().find(|(_, it)| it.handle.id() == slice.cgroup).map(|(_, it)| &it.handle);
            handle.is_some_and(|handle| handle.usage().is_ok_and(|usage| usage >= slice.usage))
        };
        if armed.slices.iter().any(is_reached) {
            self.schedule.sample_by(now);
        }
        if self.watches_tasks()
            && let (Some(Ok(after)), Some(armed)) = (self.sampler.tasks(), tasks)
            && after.tasks >= armed.count.into()
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
            let cgroup = (slice.handle.id(), slice.handle.level());
            let Some(next) = thresholds::slice(cgroup, thresholds, &reading, inactive_file) else {
                continue;
            };
            // An attempt to charge submits an event, also one that fails, as in a pod at its own limit. Where a batch would come
            // to the threshold already, each attempt would, and memory is read from time to time.
            let batch = Bytes(MEMCG_CHARGE_BATCH * self.arming.machine().page_bytes);
            let is_armed = slice.handle.usage().is_ok_and(|usage| usage.saturating_add(batch) < next.usage);
            if is_armed {
                armed.slices.push(next);
            }
            let unseen = thresholds::unseen(thresholds, &reading, inactive_file, is_armed);
            let pace = unseen.map(|room| self.schedule.reread_pace(room));
            let is_early = is_armed && thresholds::is_early(thresholds, &reading, inactive_file);
            self.scopes.reread_after(index, pace, is_early, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Arms, SLICE, Scene, slice_policy};
    use super::*;
    use crate::record::Cause;
    use plimsoll_node::clock::monotonic;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::{Arc, OnceLock};

    #[test]
    fn a_slice_that_reached_its_threshold_before_it_was_armed_is_sampled_again() {
        let threshold = Bytes::mib(SLICE - 10).0;
        for (bytes, is_due) in [(threshold - 4096, false), (threshold, true)] {
            let charged = Arc::new(OnceLock::<PathBuf>::new());
            let file = Arc::clone(&charged);
            let source = Arms(move |armed: &ArmedThresholds| {
                if let Some(file) = file.get() {
                    assert_eq!(armed.slices.len(), 1, "it was below its threshold before");
                    fs::write(file, format!("{bytes}\n")).expect("a file");
                }
            });
            let mut scene = Scene::woken_by(source, slice_policy(1));
            scene.uses("slice", 1);
            scene.sample();
            charged.set(scene.file("slice", "memory.current")).expect("it is set once");
            scene.watch.schedule.sampled();
            let (now, all) = (monotonic(), Bytes::mib(SLICE));
            let memory = MemoryReading { capacity: all, kubelet_available: all, mem_available: Some(all) };
            scene.watch.rearm(&Trigger::of(Cause::Timer, now), (&memory, None), true, now);
            assert_eq!(scene.watch.schedule.is_sample_due(now), is_due, "{bytes}");
        }
    }

    #[test]
    fn a_slice_is_not_armed_where_the_next_attempt_to_charge_would_submit_an_event() {
        let mut scene = Scene::new(10);
        let threshold = Bytes::mib(SLICE - 10).0;
        for (left, is_armed) in [(1 << 20, true), ((256 << 10) + 1, true), (256 << 10, false), (4096, false)] {
            scene.write("slice", "memory.current", &format!("{}\n", threshold - left));
            let mut armed = ArmedThresholds::default();
            scene.watch.arm_slices(&mut armed, monotonic());
            assert_eq!(armed.slices.len(), usize::from(is_armed), "{left}");
        }
    }

    #[test]
    fn a_slice_that_rests_within_a_batch_of_its_threshold_is_sampled_at_a_pace() {
        let mut scene = Scene::new(1);
        let bytes = Bytes::mib(SLICE - 10).0 - Bytes::mib(1).0 / 8;
        scene.write("slice", "memory.current", &format!("{bytes}\n"));
        let now = monotonic();
        for _ in 0..2 {
            scene.watch.arm_slices(&mut ArmedThresholds::default(), now);
            let due = scene.watch.scopes.next_due(now).expect("it can be crossed without an event");
            assert!(due > now, "it would be sampled without a pause");
        }
    }
}
