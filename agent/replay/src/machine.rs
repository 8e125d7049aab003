//! A trace through the core's own decision, over cgroups.

use crate::report::{Decided, Turn};
use crate::trace::{Entry, Look, Memory, Reported, Slice, Trace, Workload};
use core::time::Duration;
use plimsoll_config::{Configuration, Pattern};
use plimsoll_policy::{
    Action, Candidate, Config, Going, Key, MemoryReading, Observation, Plan, Protected, Scope, SliceId, SliceSet,
    Stall, State, decide,
};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};
use std::collections::BTreeMap;

/// How many candidates growth is remembered of.
const SLOTS: u32 = 4096;

impl Workload {
    /// What its going gives back by the kernel's own estimate, which counts cache as available while it lives. Without
    /// a figure of that all of its working set.
    pub(crate) fn held(&self) -> Bytes {
        let all = self.usage_bytes.unwrap_or(Bytes::ZERO);
        self.held_bytes.map_or(all, |held| held.min(all))
    }

    /// What of its working set is cache.
    fn cache(&self) -> Bytes {
        self.usage_bytes.unwrap_or(Bytes::ZERO).saturating_sub(self.held())
    }
}

/// Somebody whom the replay evicted.
#[derive(Clone, Copy)]
struct Taken {
    until: MonotonicNs,
    is_gentle: bool,
}

/// Looks of a trace, in order: a plan that was told counts as a look at those it told of.
pub(crate) fn looks(trace: &Trace) -> impl Iterator<Item = (Look, Option<&Reported>)> {
    let mut last = Look::default();
    trace.entries.iter().filter_map(move |entry| match entry {
        Entry::Look(look) => {
            last = look.clone();
            Some((look.clone(), None))
        }
        Entry::Reported(reported) => {
            let mut look = Look { at_ns: reported.at_ns, memory: Some(reported.memory?), ..last.clone() };
            for workload in &reported.workloads {
                match look.workloads.iter_mut().find(|known| known.id == workload.id) {
                    // A plan does not tell what of them is in swap, nor what of them is cache: what grew since is not.
                    Some(known) => {
                        let cache = known.held_bytes.map(|_| known.cache());
                        let usage_less_cache = || Some(workload.usage_bytes?.saturating_sub(cache?));
                        *known = Workload {
                            held_bytes: workload.held_bytes.or_else(usage_less_cache),
                            swapped_bytes: workload.swapped_bytes.or(known.swapped_bytes),
                            ..workload.clone()
                        };
                    }
                    None => look.workloads.push(workload.clone()),
                }
            }
            Some((look, Some(reported)))
        }
    })
}

/// The most workloads that a look of the trace has.
pub(crate) fn most_workloads(trace: &Trace) -> usize {
    let count = |entry: &Entry| match entry {
        Entry::Look(look) => look.workloads.len(),
        Entry::Reported(reported) => reported.workloads.len(),
    };
    // A plan may tell of some that the last look did not see.
    2 * trace.entries.iter().map(count).max().unwrap_or(0)
}

/// A workload's priority and protection, as this configuration has them: where it says nothing of it, as they were.
pub(crate) fn judged_anew(workload: &Workload, configuration: &Configuration) -> (i32, Option<Protected>) {
    let path = &workload.cgroup;
    let known = configuration.workloads.iter().find(|known| known.pattern.matches(path));
    let is_never = |never: &Pattern| never.matches(path) || never.matches_parent_of(path);
    let listed = configuration.never.iter().any(is_never).then_some(Protected::Listed);
    (known.map_or(workload.priority, |known| known.priority), workload.protected.or(listed))
}

/// Candidates and names of a look.
pub(crate) fn candidates(
    look: &Look,
    configuration: &Configuration,
    mut slot: impl FnMut(CgroupId) -> u32,
) -> Vec<Candidate> {
    let of_workload = |workload: &Workload| {
        let path = &workload.cgroup;
        let (priority, protected) = judged_anew(workload, configuration);
        let within = |slice: &Pattern| slice.matches(path) || slice.matches_parent_of(path);
        let slices = (0_u8..).zip(&configuration.slices).filter(|(_, slice)| within(&slice.path));
        Candidate {
            key: Key { slot: slot(workload.id), id: workload.id },
            usage: workload.usage_bytes,
            empty: workload.empty,
            reservation: workload.reservation_bytes,
            priority,
            protected,
            started: workload.started_ns,
            slices: slices.fold(SliceSet::NONE, |set, (index, _)| set.with(SliceId(index))),
            grace: configuration.policy.max_grace,
            ..Candidate::default()
        }
    };
    look.workloads.iter().map(of_workload).collect()
}

/// Candidates of a single look, in its order.
pub fn machine_candidates(look: &Look, configuration: &Configuration) -> Vec<Candidate> {
    let mut next = 0..;
    candidates(look, configuration, |_| next.next().unwrap_or(u32::MAX))
}

impl From<Memory> for MemoryReading {
    fn from(memory: Memory) -> Self {
        let Memory { capacity_bytes, kubelet_bytes, mem_available_bytes } = memory;
        Self { capacity: capacity_bytes, kubelet_available: kubelet_bytes, mem_available: mem_available_bytes }
    }
}

/// Stall as it was seen.
pub(crate) fn stall(look: &Look) -> Option<Stall> {
    look.stall
        .map(|stall| Stall { full: Duration::from_nanos(stall.full_ns), window: Duration::from_nanos(stall.window_ns) })
}

/// Runs it.
pub(crate) fn run(trace: &Trace, configuration: &Configuration, each: &mut dyn FnMut(&Turn<'_>)) {
    let policy = &configuration.policy;
    let mut run = Run {
        configuration,
        state: State::with_capacity(policy, SLOTS as usize),
        plan: Plan::with_capacity(policy, most_workloads(trace)),
        slots: BTreeMap::new(),
        taken: BTreeMap::new(),
        reclaimed: vec![None; 1 + policy.slices.len()],
    };
    for (look, reported) in looks(trace) {
        run.look(look, reported, trace.header.epoch_ns, each);
    }
}

struct Run<'a> {
    configuration: &'a Configuration,
    state: State,
    plan: Plan,
    slots: BTreeMap<CgroupId, u32>,
    taken: BTreeMap<CgroupId, Taken>,
    /// By scope.
    reclaimed: Vec<Option<MonotonicNs>>,
}

impl Run<'_> {
    fn look(
        &mut self,
        mut look: Look,
        reported: Option<&Reported>,
        epoch_ns: Option<i64>,
        each: &mut dyn FnMut(&Turn<'_>),
    ) {
        let now = look.at_ns;
        let policy: &Config = &self.configuration.policy;
        self.give_back(&mut look);
        let slots = &mut self.slots;
        let mut candidates = candidates(&look, self.configuration, |id| {
            let next = u32::try_from(slots.len()).unwrap_or(u32::MAX);
            *slots.entry(id).or_insert(next)
        });
        for candidate in &mut candidates {
            candidate.going = self.taken.get(&candidate.key.id).map(|taken| Going {
                held: candidate.usage.unwrap_or(Bytes::ZERO),
                stuck: false,
                gentle: taken.is_gentle,
            });
        }
        let names: Vec<String> = look.workloads.iter().map(|workload| workload.cgroup.clone()).collect();
        for scope in 0..=policy.slices.len() {
            let (name, slice, reading) = match scope.checked_sub(1) {
                None => (Scope::Node, None, look.memory.map(Into::into)),
                Some(index) => {
                    let path = self.configuration.slices.get(index).map(|slice| slice.path.as_str());
                    let seen = look.slices.iter().find(|slice| path == Some(slice.path.as_str()));
                    let reading = seen.map(|slice| MemoryReading {
                        capacity: slice.capacity_bytes,
                        kubelet_available: slice.available_bytes,
                        mem_available: slice.mem_available_bytes,
                    });
                    (Scope::Slice(SliceId(u8::try_from(index).unwrap_or(u8::MAX))), path, reading)
                }
            };
            let observation = Observation {
                taken: now,
                scope: name,
                memory: reading,
                stall: stall(&look),
                unattributed: None,
                reclaimed: self.reclaimed[scope],
                candidates: &candidates,
            };
            decide(policy, &mut self.state, &observation, now, &mut self.plan);
            for action in &self.plan.actions {
                let (candidate, grace) = match *action {
                    Action::Evict { candidate, grace, .. } => (candidate, grace),
                    Action::Hasten { candidate, .. } => (candidate, Duration::ZERO),
                    Action::Reclaim { .. } => {
                        // It has ended before the next look, and brought nothing.
                        self.reclaimed[scope] = Some(now);
                        continue;
                    }
                };
                let Some(candidate) = candidates.get_mut(candidate as usize) else { continue };
                let is_gentle = !grace.is_zero();
                self.taken.insert(candidate.key.id, Taken { until: now.after(grace), is_gentle });
                let held = candidate.usage.unwrap_or(Bytes::ZERO);
                candidate.going = Some(Going { held, stuck: false, gentle: is_gentle });
            }
            let decided = Decided::Machine { policy, plan: &self.plan, slice };
            each(&Turn {
                at: now,
                epoch_ns,
                reported: reported.map(|reported| reported.line.as_str()),
                names: &names,
                messages: &[],
                decided,
            });
        }
    }

    /// Takes those out whose time is over, and gives back what they hold.
    fn give_back(&self, look: &mut Look) {
        let Look { at_ns, memory, slices, workloads, stall: _, swap: _ } = look;
        let is_over = |workload: &Workload| self.taken.get(&workload.id).is_some_and(|taken| taken.until < *at_ns);
        for gone in workloads.extract_if(.., |workload| is_over(workload)) {
            let (all, held) = (gone.usage_bytes.unwrap_or(Bytes::ZERO), gone.held());
            if let Some(memory) = memory {
                let more = |available: Bytes, back| available.saturating_add(back).min(memory.capacity_bytes);
                *memory = Memory {
                    kubelet_bytes: more(memory.kubelet_bytes, all),
                    mem_available_bytes: memory.mem_available_bytes.map(|mem_available| more(mem_available, held)),
                    ..*memory
                };
            }
            for Slice { path, capacity_bytes, available_bytes, mem_available_bytes } in slices.iter_mut() {
                let inside = gone.cgroup.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/'));
                if inside {
                    for (available, back) in [(available_bytes, all)]
                        .into_iter()
                        .chain(mem_available_bytes.as_mut().map(|mem_available| (mem_available, held)))
                    {
                        *available = available.saturating_add(back).min(*capacity_bytes);
                    }
                }
            }
        }
    }
}
