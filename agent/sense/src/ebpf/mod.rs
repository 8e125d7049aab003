//! The best source: programs in the kernel that compare what is charged and submit an event as a threshold is crossed.

mod counts;
mod decode;
mod load;
mod refusals;
mod table;

use std::{
    mem::offset_of,
    os::fd::{AsFd as _, BorrowedFd},
    sync::Arc,
};

use arrayvec::ArrayVec;
use aya::{
    Ebpf,
    maps::{HashMap, MapData, RingBuf},
};
use plimsoll_abi::{BrakeSlot, Event, SliceSlot, ThresholdRecord, ThresholdTable};
use plimsoll_units::{Bytes, MonotonicNs, Pages};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::{
    counts::Counts,
    decode::{event_wake, threshold_wake},
    table::{Ring, Table, generation_of, slice_slot},
};
use crate::{
    error::SenseError,
    hooks::TASKS,
    kind::Kind,
    packet_rings::PacketRings,
    source::{Descriptor, HealthReader, HookState, Interest, MAX_DESCRIPTORS, Source},
    thresholds::{ArmedThresholds, BrakeMark, Generation, MAX_BRAKES, MAX_SLICES, NodeThreshold},
    wake::WakeList,
};

#[cfg(feature = "bench")]
pub(crate) use self::load::{OBJECT, attach, load, set_layout};
pub(crate) use self::refusals::refusals;

const THRESHOLDS_TOKEN: u32 = 0;
const EVENTS_TOKEN: u32 = 1;
#[cfg(feature = "log")]
const LOG_TOKEN: u32 = 2;

/// How many stopped processes are read to find the one that was stopped first.
const STOPPED_BATCH: usize = 256;

/// Programs in the kernel, attached as long as this lives.
pub struct EbpfSource {
    thresholds: RingBuf<MapData>,
    events: RingBuf<MapData>,
    table: Table,
    /// What the brake stopped: start, slice, time, by process id.
    stopped: HashMap<MapData, u32, [u64; 3]>,
    can_brake: Result<(), String>,
    generation: Generation,
    /// Grows whenever a level changes.
    arming: u64,
    near_node: Near,
    near_marks: Near,
    page_bytes: u64,
    counts: Arc<Counts>,
    packet_rings: PacketRings,
    /// What the programs log, where they were built to.
    #[cfg(feature = "log")]
    log: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
    /// Holds the programs and their links.
    _ebpf: Ebpf,
}

impl std::fmt::Debug for EbpfSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EbpfSource")
            .field("generation", &self.generation)
            .field("hooks", &self.counts.hooks)
            .finish_non_exhaustive()
    }
}

/// Below how many available pages every charge is compared; zero where none has to be.
#[derive(Clone, Copy, Debug, Default)]
struct Near {
    kubelet: u64,
    mem_available: u64,
}

impl EbpfSource {
    /// Ends what CPUs may charge without a comparison: the last step of every change of a level.
    fn end_allowances(&mut self) {
        let Self { near_node, near_marks, .. } = *self;
        self.table.store(offset_of!(ThresholdTable, near_kubelet), near_node.kubelet.max(near_marks.kubelet));
        let near_mem_available = near_node.mem_available.max(near_marks.mem_available);
        self.table.store(offset_of!(ThresholdTable, near_mem_available), near_mem_available);
        self.arming += 1;
        self.table.store(offset_of!(ThresholdTable, arming), self.arming);
    }

    fn drain_thresholds(&mut self, wakes: &mut WakeList) {
        while !wakes.is_full() {
            let Some(item) = self.thresholds.next() else { return };
            let record = ThresholdRecord::decode(&item);
            drop(item);
            match record {
                Ok(record) => {
                    self.table.answer(generation_of(record.threshold), Some(record.generation));
                    wakes.push(threshold_wake(&record));
                }
                Err(_) => self.counts.malformed(),
            }
        }
    }

    fn drain_events(&mut self, wakes: &mut WakeList) {
        while !wakes.is_full() {
            let Some(item) = self.events.next() else { return };
            let event = Event::decode(&item);
            drop(item);
            match event {
                Ok(event) => {
                    match &event {
                        Event::Tasks(record) => {
                            let generation = Some(record.generation);
                            self.table.answer(offset_of!(ThresholdTable, task_generation), generation);
                        }
                        Event::Reclaim(_) => {
                            self.table.answer(offset_of!(ThresholdTable, reclaim_generation), None);
                        }
                        Event::Stall(_) | Event::Oom(_) | Event::Cgroup(_) | Event::Stopped(_) => {}
                    }
                    wakes.push(event_wake(event));
                }
                Err(_) => self.counts.malformed(),
            }
        }
    }
}

impl Source for EbpfSource {
    fn kind(&self) -> Kind {
        Kind::Ebpf
    }

    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
        let readable = |fd, token| Descriptor { fd, interest: Interest::Readable, token };
        let mut descriptors = ArrayVec::new();
        descriptors.push(readable(self.thresholds.as_fd(), THRESHOLDS_TOKEN));
        descriptors.push(readable(self.events.as_fd(), EVENTS_TOKEN));
        #[cfg(feature = "log")]
        descriptors.extend(self.log.as_ref().map(|log| readable(log.as_fd(), LOG_TOKEN)));
        descriptors
    }

    fn drain(&mut self, token: u32, wakes: &mut WakeList) -> Result<(), SenseError> {
        match token {
            THRESHOLDS_TOKEN => self.drain_thresholds(wakes),
            EVENTS_TOKEN => self.drain_events(wakes),
            #[cfg(feature = "log")]
            LOG_TOKEN => self.log.iter_mut().for_each(aya_log::EbpfLogger::flush),
            _ => {}
        }
        Ok(())
    }

    fn arm(&mut self, thresholds: &ArmedThresholds) -> Result<Generation, SenseError> {
        let ArmedThresholds { node, slices, tasks } = thresholds;
        let node_threshold = node.unwrap_or_default();
        let NodeThreshold { kubelet, mem_available, total, reserve, low_watermark, kubelet_drift, mem_available_drift } =
            node_threshold;
        let page_bytes = self.page_bytes;
        let early =
            |bytes: Bytes, drift: Pages| if bytes == Bytes::ZERO { 0 } else { level(bytes, page_bytes) + drift.0 };
        let table = &mut self.table;
        table.store(offset_of!(ThresholdTable, node_kubelet), early(kubelet, kubelet_drift));
        table.store(offset_of!(ThresholdTable, node_mem_available), early(mem_available, mem_available_drift));
        table.store(offset_of!(ThresholdTable, total), total.0);
        table.store(offset_of!(ThresholdTable, reserve), reserve.0);
        table.store(offset_of!(ThresholdTable, low_watermark), low_watermark.0);
        let task_count = tasks.map_or(u64::MAX, |tasks| u64::from(tasks.count));
        table.store(offset_of!(ThresholdTable, task_count), task_count);
        for (slot, slice) in slices.iter().enumerate() {
            let slot = slice_slot(slot);
            // Until the whole slot is written, nothing is compared with it.
            table.store(slot + offset_of!(SliceSlot, generation), 0);
            table.store(slot + offset_of!(SliceSlot, usage), level(slice.usage, page_bytes));
            table.store(slot + offset_of!(SliceSlot, cgroup), slice.cgroup.0);
            table.store(slot + offset_of!(SliceSlot, level), slice.level.into());
        }
        table.store(offset_of!(ThresholdTable, slice_count), slices.len() as u64);

        // The levels are written; from here on a crossing submits an event.
        self.generation.0 += 1;
        let generation = self.generation.0;
        let armed = |is: bool| if is { generation } else { 0 };
        for slot in 0..slices.len() {
            table.store(slice_slot(slot) + offset_of!(SliceSlot, generation), generation);
        }
        table.store(offset_of!(ThresholdTable, reclaim_generation), generation);
        table.store(offset_of!(ThresholdTable, task_generation), armed(tasks.is_some()));
        table.store(offset_of!(ThresholdTable, node_generation), armed(node.is_some()));
        // What CPUs keep back may be folded in between two comparisons.
        self.near_node = Near {
            kubelet: early(kubelet, Pages(2 * kubelet_drift.0)),
            mem_available: early(mem_available, Pages(2 * mem_available_drift.0)),
        };
        self.end_allowances();
        Ok(self.generation)
    }

    fn disarm(&mut self) -> Result<(), SenseError> {
        self.table.store(offset_of!(ThresholdTable, node_generation), 0);
        self.table.store(offset_of!(ThresholdTable, reclaim_generation), 0);
        self.table.store(offset_of!(ThresholdTable, task_generation), 0);
        for slot in 0..MAX_SLICES {
            self.table.store(slice_slot(slot) + offset_of!(SliceSlot, generation), 0);
        }
        Ok(())
    }

    fn set_brakes(&mut self, marks: &[BrakeMark]) -> Result<(), SenseError> {
        if !marks.is_empty() && self.can_brake.is_err() {
            return Err(SenseError::NoKernelBrake(Kind::Ebpf));
        }
        if marks.len() > MAX_BRAKES || marks.iter().any(|mark| mark.level == 0) {
            return Err(SenseError::BrakeMarks { most: MAX_BRAKES });
        }
        // Off while the marks change.
        let table = &mut self.table;
        table.store(offset_of!(ThresholdTable, brake_count), 0);
        let mut near = Near::default();
        for (index, BrakeMark { slice, level: depth, kubelet, mem_available }) in marks.iter().enumerate() {
            let (kubelet, mem_available) = (level(*kubelet, self.page_bytes), level(*mem_available, self.page_bytes));
            let slot = offset_of!(ThresholdTable, brakes) + index * size_of::<BrakeSlot>();
            table.store(slot + offset_of!(BrakeSlot, cgroup), slice.0);
            table.store(slot + offset_of!(BrakeSlot, level), (*depth).into());
            table.store(slot + offset_of!(BrakeSlot, kubelet), kubelet);
            table.store(slot + offset_of!(BrakeSlot, mem_available), mem_available);
            near.kubelet = near.kubelet.max(kubelet);
            near.mem_available = near.mem_available.max(mem_available);
        }
        table.store(offset_of!(ThresholdTable, brake_count), marks.len() as u64);
        self.near_marks = near;
        self.end_allowances();
        Ok(())
    }

    fn lease_brakes(&mut self, until: MonotonicNs) {
        self.table.store(offset_of!(ThresholdTable, brake_until), until.0);
    }

    fn restore(&mut self) -> bool {
        let Self { table, thresholds, events, .. } = self;
        let changed = table.restore(|ring| {
            is_drained(match ring {
                Ring::Thresholds => thresholds.as_fd(),
                Ring::Events => events.as_fd(),
            })
        });
        if changed {
            self.end_allowances();
        }
        changed
    }

    fn ran(&mut self) -> bool {
        self.table.ran()
    }

    fn sees_forks(&self) -> bool {
        self.counts.hooks.iter().any(|hook| hook.name == TASKS && matches!(hook.state, HookState::Attached(_)))
    }

    fn first_stopped(&self) -> Option<MonotonicNs> {
        // Bounded: entries that are taken away meanwhile may start the walk anew.
        let entries = self.stopped.iter().take(STOPPED_BATCH).filter_map(Result::ok);
        entries.map(|(_, [_, _, at])| MonotonicNs(at)).min()
    }

    fn health_reader(&self) -> HealthReader {
        HealthReader(Some(Arc::clone(&self.counts) as _))
    }

    fn packet_rings(&self) -> PacketRings {
        self.packet_rings.clone()
    }
}

/// A level in pages, rounded up so that the event is never late; zero stays zero.
const fn level(bytes: Bytes, page_bytes: u64) -> u64 {
    bytes.0.div_ceil(page_bytes)
}

/// Whether everything in a ring buffer was read, and no record is reserved in it: the kernel reports it as readable from
/// the reservation on. Where that is not known, it is not.
fn is_drained(ring: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(ring, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready == 0)
}
