//! The workloads and slices that are known, with their handles. Walks directories, opens files and allocates: for a
//! thread of its own.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_node::NodeError;
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::{SliceId, SliceSet};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Pattern};

use crate::{Bounds, Discovery, Facts, Found, Patterns, Protected, SLOTS, SliceFacts, SliceFigures, Update, discover};

/// Names in the path of a slice that the kernel brakes: as deep as its program looks.
const MARK_DEPTH: usize = 8;

/// Where an inventory sends what it finds.
pub trait Sink {
    /// A change for the table. May wait until there is room for it.
    fn update(&mut self, update: Update);

    /// What was tried did not work, or works again.
    fn trouble(&mut self, tried: &'static str, text: Option<String>);
}

/// What is looked for, and where.
#[derive(Debug)]
pub struct Config {
    /// The cgroup tree.
    pub root: Root,
    /// Workloads, and cgroups that are never touched.
    pub patterns: Patterns,
    /// By the place of its pattern in the list.
    pub priorities: Vec<i32>,
    /// The agent and init.
    pub protected: Protected,
    /// Slices with thresholds of their own.
    pub slices: Vec<Pattern>,
    /// The slices that the kernel brakes, and cgroups that are never touched; absent where there are none.
    pub brakes: Option<Patterns>,
    /// The most slices that the kernel brakes.
    pub max_brakes: usize,
    /// The most workloads, as far as the limit of open files allows.
    pub max_workloads: usize,
}

#[derive(Debug)]
struct Known {
    slot: u32,
    handle: Arc<Handle>,
    priority: i32,
    started: MonotonicNs,
    slices: SliceSet,
    /// Page cache and reservation as they were last sent.
    reported: Option<(Bytes, Bytes)>,
    seen: u64,
}

/// The workloads and slices that are known.
#[derive(Debug)]
pub struct Inventory {
    config: Config,
    known: HashMap<CgroupId, Known>,
    free: Vec<u32>,
    slices: Vec<Option<(Arc<Handle>, SliceFigures)>>,
    marks: Vec<Option<(CgroupId, u8)>>,
    walk: u64,
}

impl Inventory {
    /// An empty one.
    pub fn new(config: Config) -> Self {
        let end = u32::try_from(SLOTS.min(config.max_workloads)).unwrap_or(0);
        Self {
            known: HashMap::with_capacity(256),
            free: (0..end).rev().collect(),
            slices: config.slices.iter().map(|_| None).collect(),
            marks: vec![None; config.max_brakes],
            walk: 0,
            config,
        }
    }

    /// How many workloads are known.
    pub fn workloads(&self) -> u32 {
        u32::try_from(self.known.len()).unwrap_or(u32::MAX)
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Walks the tree, opens what is new and closes what is gone.
    pub fn discover(&mut self, sink: &mut impl Sink) {
        match self.find(&self.config.patterns, Bounds { count: self.rows(), ..Bounds::default() }) {
            Ok(discovery) => {
                let many = format!("there are more than {} workloads; the rest is not watched", self.rows());
                sink.trouble("count", discovery.cut_off.then_some(many));
                sink.trouble("walk", None);
                self.walk += 1;
                for found in &discovery.workloads {
                    self.meet(found, sink);
                }
                self.forget(sink);
            }
            Err(error) => sink.trouble("walk", Some(format!("cannot look for workloads: {error}"))),
        }
        self.find_slices(sink);
        self.find_marks(sink);
        self.refresh(sink);
    }

    fn rows(&self) -> usize {
        self.config.max_workloads.min(SLOTS)
    }

    fn find(&self, patterns: &Patterns, bounds: Bounds) -> Result<Discovery, NodeError> {
        discover(&self.config.root, patterns, &self.config.protected, bounds)
    }

    fn meet(&mut self, found: &Found, sink: &mut impl Sink) {
        if let Some(known) = self.known.get_mut(&found.id) {
            known.seen = self.walk;
            return;
        }
        let handle = match Handle::open(&self.config.root, &found.path) {
            // It was removed, or another one was made in its place, which the next walk finds.
            Ok(None) => return,
            Ok(Some(handle)) if handle.id() != found.id => return,
            Ok(Some(handle)) => handle,
            Err(error) => return sink.trouble("open", Some(format!("cannot watch a workload: {error}"))),
        };
        let Some(slot) = self.free.pop() else { return };
        let slices = (0_u8..).zip(&self.config.slices).filter(|(_, slice)| slice.covers(&found.path));
        let known = Known {
            slot,
            handle: Arc::new(handle),
            priority: self.config.priorities.get(found.pattern).copied().unwrap_or(0),
            started: monotonic(),
            slices: slices.fold(SliceSet::NONE, |set, (index, _)| set.with(SliceId(index))),
            reported: None,
            seen: self.walk,
        };
        self.known.insert(found.id, known);
    }

    /// Closes the workloads that the last walk did not see.
    fn forget(&mut self, sink: &mut impl Sink) {
        let walk = self.walk;
        for (_, known) in self.known.extract_if(|_, known| known.seen != walk) {
            sink.update(Update::Gone(known.slot));
            self.free.push(known.slot);
        }
    }

    /// Reads the slow figures of all workloads, and sends those that changed.
    pub fn refresh(&mut self, sink: &mut impl Sink) {
        for known in self.known.values_mut() {
            // Without a figure nothing is subtracted from its usage, and nothing is reserved for it.
            let inactive_file = known.handle.inactive_file().unwrap_or(Bytes::ZERO);
            let reservation = known.handle.reservation().unwrap_or(Bytes::ZERO);
            if known.reported.replace((inactive_file, reservation)) == Some((inactive_file, reservation)) {
                continue;
            }
            let facts = Facts {
                handle: Arc::clone(&known.handle),
                owner: None,
                reservation,
                inactive_file,
                priority: known.priority,
                started: known.started,
                slices: known.slices,
            };
            sink.update(Update::Workload(known.slot, facts));
        }
    }

    /// Reads the limits and slow figures of slices with thresholds of their own, and sends those that changed.
    pub fn find_slices(&mut self, sink: &mut impl Sink) {
        for (index, (known, path)) in (0..).zip(self.slices.iter_mut().zip(&self.config.slices)) {
            let handle = match &known {
                Some((handle, ..)) if handle.usage().is_ok() => Some(Arc::clone(handle)),
                _ => Handle::open(&self.config.root, path.as_str().as_bytes()).ok().flatten().map(Arc::new),
            };
            // A slice without a limit of its own has no threshold below it.
            let now = handle.and_then(|handle| {
                let max = handle.max().ok()??;
                let inactive_file = handle.inactive_file().unwrap_or(Bytes::ZERO);
                let reclaimable = handle.reclaimable().ok();
                Some((handle, SliceFigures { max, inactive_file, reclaimable }))
            });
            let facts = |(handle, figures): &(Arc<Handle>, _)| (handle.id(), *figures);
            if known.as_ref().map(facts) != now.as_ref().map(facts) {
                known.clone_from(&now);
                sink.update(Update::Slice(index, now.map(|(handle, figures)| SliceFacts { handle, figures })));
            }
        }
    }

    /// Finds the slices that the kernel brakes.
    fn find_marks(&mut self, sink: &mut impl Sink) {
        let Some(patterns) = &self.config.brakes else { return };
        let discovery = match self.find(patterns, Bounds { depth: MARK_DEPTH, count: self.marks.len() }) {
            Ok(discovery) => discovery,
            Err(error) => return sink.trouble("mark", Some(format!("cannot look for slices to mark: {error}"))),
        };
        sink.trouble("mark", unmarked(&discovery, self.marks.len()));
        let depth = |path: &[u8]| u8::try_from(path.split(|byte| *byte == b'/').count()).unwrap_or(u8::MAX);
        let mut marks = discovery.workloads.iter().map(|found| (found.id, depth(&found.path)));
        for (index, known) in (0..).zip(&mut self.marks) {
            let mark = marks.next();
            if *known != mark {
                *known = mark;
                sink.update(Update::Mark(index, mark));
            }
        }
    }
}

/// What is reported of slices that the kernel is configured to brake and does not.
fn unmarked(discovery: &Discovery, most: usize) -> Option<String> {
    const WHY: &str = "would stop what must not be touched: it holds this agent, init, or what `never` names";
    if let Some(path) = discovery.refused.first() {
        let others = match discovery.refused.len() - 1 {
            0 => String::new(),
            others => format!("; so would {others} more"),
        };
        return Some(format!("the kernel does not brake {}: that {WHY}{others}", path.escape_ascii()));
    }
    if discovery.cut_off {
        return Some(format!("the kernel brakes at most {most} slices; the rest is not marked"));
    }
    discovery.workloads.is_empty().then(|| "the kernel brakes nothing: no slice of `inKernel` exists".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_are_not_braked_are_reported() {
        let found = |path: &str| Found { path: path.into(), id: CgroupId(1), pattern: 0 };
        let discovery = |workloads: &[&str], refused: &[&str], cut_off| Discovery {
            workloads: workloads.iter().map(|path| found(path)).collect(),
            refused: refused.iter().map(|path| path.as_bytes().to_vec()).collect(),
            cut_off,
        };
        for (discovery, expected) in [
            (discovery(&["a"], &[], false), None),
            (discovery(&[], &[], false), Some("no slice of `inKernel` exists")),
            (discovery(&["a"], &["system.slice"], false), Some("does not brake system.slice: that would stop")),
            (discovery(&[], &["a", "b", "c"], false), Some("so would 2 more")),
            (discovery(&["a"], &[], true), Some("at most 16")),
        ] {
            let reported = unmarked(&discovery, 16);
            assert_eq!(reported.is_some(), expected.is_some(), "{reported:?}");
            assert!(reported.unwrap_or_default().contains(expected.unwrap_or_default()), "{expected:?}");
        }
    }
}
