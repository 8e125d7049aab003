//! Hands each record to every sink.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use plimsoll_config::Configuration;
use plimsoll_inventory::PodRoot;
use plimsoll_node::clock::monotonic;
use plimsoll_node::meminfo::MemInfo;
use plimsoll_state::queue::Losses;
use plimsoll_units::MonotonicNs;

use crate::answers::Answers;
use crate::health::HealthSink;
use crate::kernel_log::{Figures, KernelLog};
use crate::log_sink;
use crate::metrics::{Metrics, count};
use crate::metrics_sink::MetricsSink;
use crate::names::{Names, Unnamed};
use crate::plan::Draft;
use crate::record::{DiskRecord, PlanRecord, Record};
use crate::trace::Entry;
use crate::trace_sink::TraceSink;
use crate::witnessed::Ended;

/// Reports records to the log of this process, the kernel's log, metrics, health, and a trace.
pub struct Reporter {
    configuration: Configuration,
    /// Of which parts are still to come.
    draft: Option<Draft>,
    names: Names,
    /// It was said that names were left out.
    lacks_names: bool,
    kernel_log: KernelLog,
    metrics: MetricsSink,
    health: HealthSink,
    trace: TraceSink,
    memory: Option<Arc<MemInfo>>,
    clock: fn() -> MonotonicNs,
}

impl Reporter {
    /// Without `kernel_log` kills are not reported there; without `memory` metrics have no available memory.
    pub fn new(
        configuration: Configuration,
        metrics: Metrics,
        kernel_log: Option<File>,
        memory: Option<MemInfo>,
    ) -> Self {
        Self {
            metrics: MetricsSink::new(metrics.with_thresholds(&configuration)),
            names: Names::new(PodRoot(configuration.cgroup_root().as_bytes().to_vec())),
            lacks_names: false,
            configuration,
            draft: None,
            kernel_log: KernelLog::new(kernel_log),
            health: HealthSink::default(),
            trace: TraceSink::default(),
            memory: memory.map(Arc::new),
            clock: monotonic,
        }
    }

    /// Has observations and plans written into a trace too. `entries` gives false where it has no room for one.
    pub fn trace(&mut self, entries: impl FnMut(Entry) -> bool + Send + 'static) {
        self.trace.entries = Some(Box::new(entries));
    }

    /// Whether a trace is written.
    pub const fn traces(&self) -> bool {
        self.trace.entries.is_some()
    }

    /// What is served of what it knows.
    pub fn answers(&self) -> Answers {
        Answers {
            metrics: self.metrics.metrics.clone(),
            health: self.health.health(),
            memory: self.memory.clone(),
            clock: self.clock,
            unwatched: self.configuration.unwatched_memory(),
        }
    }

    /// Counts a frame that is no record.
    pub fn malformed(&mut self) {
        count(&self.metrics.metrics.malformed_records, ("side", "agent"));
    }

    /// Counts what did not come out of the queue with this name since this was called last.
    pub fn queue(&mut self, name: &str, Losses { lost, damaged }: Losses) {
        let metrics = &self.metrics.metrics;
        metrics.lost_records.get_or_create(&[("ring", name.to_owned())]).inc_by(lost);
        metrics.malformed_records.get_or_create(&[("side", "agent".to_owned())]).inc_by(damaged);
    }

    /// Takes in what another process sends of the names of pods. What is no message, or too much, is left out.
    pub fn take_names(&mut self, message: &[u8]) {
        match self.names.take(message) {
            Ok(Some(Unnamed::Witnessed(witnessed))) => self.metrics.metrics.witnessed.set(&witnessed),
            Ok(Some(Unnamed::Ended(ended))) => {
                let name = self.names.pod(ended.uid);
                // None was seen in the future.
                let ended = Ended { at: ended.at.min((self.clock)()), ..ended };
                self.metrics.metrics.comparison.end(ended, name, self.is_dry_run());
            }
            // Once: what sends them could go on.
            Err(left_out) if !self.lacks_names => {
                self.lacks_names = true;
                tracing::warn!("{left_out}");
            }
            Ok(None) | Err(_) => {}
        }
    }

    /// The records of the core with this process follow.
    pub fn follow(&mut self, process: OwnedFd) {
        self.health.follow(process);
        self.metrics.follow();
    }

    /// No record comes any more: writes what waits for one.
    pub fn close(&mut self) {
        self.kernel_log.flush();
    }

    /// Reports one record.
    pub fn report(&mut self, record: &Record<'_>) {
        match record {
            Record::Plan(record) => self.plan(record),
            Record::Observation(record) => self.trace.observation(record, &self.configuration),
            Record::Startup(_)
            | Record::Readings(_)
            | Record::Threshold(_)
            | Record::Disk(_)
            | Record::Enforcement(_)
            | Record::Machine(_)
            | Record::Container(_)
            | Record::Health(_) => {}
        }
        self.health.record(record, self.clock);
        self.metrics.record(record, &self.names);
        self.kernel_log.record(record, &self.names);
        if let Record::Disk(DiskRecord::Victim { plan, cause, .. }) = record {
            self.kernel_log.plan(*plan, Figures::of(*cause).as_ref());
        }
        if let Record::Disk(DiskRecord::Victim { path, shadow: true, at, .. }) = record
            && self.is_dry_run()
            && let Some(uid) = self.names.uid(path)
        {
            let cgroup = self.names.cgroup(path);
            self.metrics.metrics.comparison.decide(uid, cgroup.pod.as_ref().unwrap_or(&cgroup.path), *at);
        }
        if let Record::Disk(DiskRecord::Judged { judged, at }) = record {
            self.trace.disks(judged, *at);
        }
        log_sink::record(record, &self.names);
    }

    /// Compares what a dry run would evict.
    fn compare(&self, draft: &Draft) {
        if draft.shadow && self.is_dry_run() {
            for (uid, name) in draft.evicted_pods() {
                self.metrics.metrics.comparison.decide(uid, name, draft.plan.made);
            }
        }
    }

    /// Nothing is done by any agent, as far as is known here. One that waits for another one's end shadows too.
    fn is_dry_run(&self) -> bool {
        self.configuration.machine.shadow || self.metrics.is_switched_off()
    }

    /// Takes in a part of a plan, and reports the plan once it is complete. One whose beginning was lost is not
    /// reported.
    fn plan(&mut self, record: &PlanRecord<'_>) {
        let draft = self.draft.as_mut();
        match *record {
            PlanRecord::Begin { .. } => {
                if draft.is_some() {
                    // Its end was lost.
                    self.metrics.metrics.broken_plans.inc();
                }
                self.draft = Draft::begin(record);
            }
            PlanRecord::Threshold { status, acting } => drop(draft.map(|draft| draft.threshold(status, acting))),
            PlanRecord::Ranked { ranked, path } => {
                if let Some(draft) = draft {
                    draft.ranked(ranked, self.names.cgroup(path), self.names.uid(path));
                }
            }
            PlanRecord::Action(action) => drop(draft.map(|draft| draft.action(action))),
            PlanRecord::End => match self.draft.take() {
                Some(draft) => {
                    self.kernel_log.plan(draft.number(), draft.figures(&self.configuration.policy).as_ref());
                    self.metrics.plan(&draft);
                    self.compare(&draft);
                    self.trace.plan(&draft, &self.configuration);
                    log_sink::plan(&draft, &self.configuration);
                }
                None => _ = self.metrics.metrics.broken_plans.inc(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
