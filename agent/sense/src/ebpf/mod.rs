//! The best source: programs in the kernel that compare at every charge and submit an event as a threshold is crossed.

mod counts;
mod decode;
mod load;

use std::{
    io,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arrayvec::ArrayVec;
use aya::{
    Ebpf,
    maps::{HashMap, MapData, RingBuf},
};
use plimsoll_abi::{Event, SliceSlot, ThresholdRecord, ThresholdTable};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Pages};

use self::{
    counts::Counts,
    decode::{event_wake, threshold_wake},
};
use crate::{
    error::SenseError,
    kind::Kind,
    mapped::MappedWords,
    packet_rings::PacketRings,
    source::{Descriptor, HealthReader, Interest, MAX_DESCRIPTORS, Source},
    thresholds::{ArmedThresholds, BrakeMark, Generation, MAX_BRAKES, MAX_SLICES, NodeThreshold, SliceThreshold},
    wake::WakeList,
};

const THRESHOLDS_TOKEN: u32 = 0;
const EVENTS_TOKEN: u32 = 1;
#[cfg(feature = "log")]
const LOG_TOKEN: u32 = 2;

/// Levels below the root cgroup at which the brake's program finds slices.
const BRAKE_LEVELS: u8 = 8;

/// How many stopped processes are read to find the one that was stopped first.
const STOPPED_BATCH: usize = 256;

/// Programs in the kernel, attached as long as this lives.
pub struct EbpfSource {
    thresholds: RingBuf<MapData>,
    events: RingBuf<MapData>,
    table: MappedWords,
    slice_slots: HashMap<MapData, u64, [u64; 2]>,
    brake_slots: HashMap<MapData, u64, [u64; 2]>,
    /// What the brake stopped: start, slice, time, by process id.
    stopped: HashMap<MapData, u32, [u64; 3]>,
    /// The slices that the table's slots are assigned to.
    slices: ArrayVec<CgroupId, MAX_SLICES>,
    epoch: u64,
    brakes: ArrayVec<CgroupId, MAX_BRAKES>,
    can_brake: Result<(), String>,
    generation: Generation,
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

impl EbpfSource {
    fn word(&self, offset: usize) -> &AtomicU64 {
        self.table.at(offset)
    }

    fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// A level in pages, rounded up so that the event is never late; zero stays zero.
    fn level(&self, bytes: Bytes) -> u64 {
        bytes.0.div_ceil(self.page_bytes)
    }

    /// Assigns the slots to slices. Their page counters are found again as charges pass.
    fn set_slices(&mut self, slices: &[SliceThreshold]) -> Result<(), SenseError> {
        if self.slices.iter().eq(slices.iter().map(|slice| &slice.cgroup)) {
            return Ok(());
        }
        self.store(std::mem::offset_of!(ThresholdTable, slice_mask), 0);
        for old in self.slices.drain(..) {
            // A slice that was never stored is not there to remove.
            let _ = self.slice_slots.remove(&old.0);
        }
        self.epoch += 1;
        for (slot, slice) in (0_u64..).zip(slices) {
            self.slice_slots
                .insert(slice.cgroup.0, [slot, self.epoch], 0)
                .map_err(|error| SenseError::Map { what: "a slice", error: map_errno(&error) })?;
            self.slices.push(slice.cgroup);
        }
        self.store(std::mem::offset_of!(ThresholdTable, slice_epoch), self.epoch);
        self.store(std::mem::offset_of!(ThresholdTable, slice_mask), (1 << slices.len()) - 1);
        Ok(())
    }

    fn drain_thresholds(&mut self, wakes: &mut WakeList) {
        while !wakes.is_full() {
            let Some(item) = self.thresholds.next() else { return };
            let record = ThresholdRecord::decode(&item);
            drop(item);
            match record {
                Ok(record) => wakes.push(threshold_wake(&record)),
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
                Ok(event) => wakes.push(event_wake(event)),
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
        // Slices that the kernel refuses cost only their own thresholds.
        let taken = self.set_slices(slices);
        let slices = if taken.is_ok() { &slices[..] } else { &[] };
        // Found again as charges pass: one that was found just as the slots changed may have been forgotten since.
        self.store(std::mem::offset_of!(ThresholdTable, resolved_mask), 0);
        let node_threshold = node.unwrap_or_default();
        let NodeThreshold { kubelet, mem_available, total, reserve, low_watermark, kubelet_drift, mem_available_drift } =
            node_threshold;
        let early = |bytes: Bytes, drift: Pages| if bytes == Bytes::ZERO { 0 } else { self.level(bytes) + drift.0 };
        self.store(std::mem::offset_of!(ThresholdTable, node_kubelet), early(kubelet, kubelet_drift));
        self.store(std::mem::offset_of!(ThresholdTable, node_mem_available), early(mem_available, mem_available_drift));
        self.store(std::mem::offset_of!(ThresholdTable, total), total.0);
        self.store(std::mem::offset_of!(ThresholdTable, reserve), reserve.0);
        self.store(std::mem::offset_of!(ThresholdTable, low_watermark), low_watermark.0);
        self.store(
            std::mem::offset_of!(ThresholdTable, task_count),
            tasks.map_or(u64::MAX, |tasks| u64::from(tasks.count)),
        );
        for (slot, slice) in slices.iter().enumerate() {
            self.store(slice_slot(slot) + std::mem::offset_of!(SliceSlot, usage), self.level(slice.usage));
        }

        // The levels are written; from here on a crossing submits an event.
        self.generation.0 += 1;
        let generation = self.generation.0;
        let armed = |is: bool| if is { generation } else { 0 };
        for slot in 0..slices.len() {
            self.store(slice_slot(slot) + std::mem::offset_of!(SliceSlot, generation), generation);
        }
        self.store(std::mem::offset_of!(ThresholdTable, reclaim_generation), generation);
        self.store(std::mem::offset_of!(ThresholdTable, task_generation), armed(tasks.is_some()));
        self.store(std::mem::offset_of!(ThresholdTable, node_generation), armed(node.is_some()));
        taken.map(|()| self.generation)
    }

    fn disarm(&mut self) -> Result<(), SenseError> {
        self.store(std::mem::offset_of!(ThresholdTable, node_generation), 0);
        self.store(std::mem::offset_of!(ThresholdTable, reclaim_generation), 0);
        self.store(std::mem::offset_of!(ThresholdTable, task_generation), 0);
        for slot in 0..MAX_SLICES {
            self.store(slice_slot(slot) + std::mem::offset_of!(SliceSlot, generation), 0);
        }
        Ok(())
    }

    fn set_brakes(&mut self, marks: &[BrakeMark]) -> Result<(), SenseError> {
        if marks.is_empty() && self.brakes.is_empty() {
            return Ok(());
        }
        if self.can_brake.is_err() {
            return Err(SenseError::NoKernelBrake(Kind::Ebpf));
        }
        if marks.len() > MAX_BRAKES || marks.iter().any(|mark| mark.level == 0 || mark.level > BRAKE_LEVELS) {
            return Err(SenseError::BrakeLevel { most: MAX_BRAKES, deepest: BRAKE_LEVELS });
        }
        // Off while the marks change: a slice that is no longer marked is not braked by a stale level.
        self.store(std::mem::offset_of!(ThresholdTable, brake_levels), 0);
        for old in self.brakes.drain(..) {
            let _ = self.brake_slots.remove(&old.0);
        }
        let mut levels = 0;
        for BrakeMark { slice, level, kubelet, mem_available } in marks {
            let thresholds = [self.level(*kubelet), self.level(*mem_available)];
            self.brake_slots
                .insert(slice.0, thresholds, 0)
                .map_err(|error| SenseError::Map { what: "a brake", error: map_errno(&error) })?;
            self.brakes.push(*slice);
            levels |= 1_u64 << level;
        }
        self.store(std::mem::offset_of!(ThresholdTable, brake_levels), levels);
        Ok(())
    }

    fn lease_brakes(&mut self, until: MonotonicNs) {
        self.store(std::mem::offset_of!(ThresholdTable, brake_until), until.0);
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

const fn slice_slot(slot: usize) -> usize {
    std::mem::offset_of!(ThresholdTable, slices) + slot * size_of::<SliceSlot>()
}

/// What the kernel answered to a map call, without text: this is on the hot path.
fn map_errno(error: &aya::maps::MapError) -> io::Error {
    match error {
        aya::maps::MapError::SyscallError(error) => {
            error.io_error.raw_os_error().map_or_else(|| io::ErrorKind::Other.into(), io::Error::from_raw_os_error)
        }
        _ => io::ErrorKind::Other.into(),
    }
}
