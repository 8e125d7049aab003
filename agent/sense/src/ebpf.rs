//! The highest rung: programs in the kernel that compare at every charge and ring as a threshold is crossed.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    panic::resume_unwind,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use arrayvec::ArrayVec;
use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{HashMap, Map, MapData, PerCpuArray, RingBuf},
    programs::{Program, ProgramError, ProgramFd},
    sys::{Stats, enable_stats},
};
use plimsoll_abi::{ABSENT, Event, SliceSlot, ThresholdRecord, ThresholdTable, change, counter, reclaimer, scope};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs, Pages};

use crate::{
    config::Config,
    error::SenseError,
    mapped::MappedWords,
    probe::{self, Found, with_sources},
    rules::{self, AttachType, Attachment, LINE, Planned},
    source::{
        Descriptor, Health, HealthReader, Hook, HookState, Interest, Kind, MAX_DESCRIPTORS, ProgramStats, Source,
    },
    thresholds::{ArmedThresholds, BrakeMark, Generation, MAX_BRAKES, MAX_SLICES, NodeThreshold, SliceThreshold},
    wake::{CgroupChange, CrossedThreshold, OomScope, Reclaimer, Wake, WakeList},
};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/plimsoll.bpf.o"));

const THRESHOLDS_TOKEN: u32 = 0;
const EVENTS_TOKEN: u32 = 1;
#[cfg(feature = "log")]
const LOG_TOKEN: u32 = 2;

/// Levels below the root cgroup at which the brake's program looks.
const BRAKE_LEVELS: u8 = 8;

/// How many of those that were stopped are looked at, to find the first.
const STOPPED_BATCH: usize = 256;

/// Programs in the kernel, attached as long as this lives.
pub struct EbpfSource {
    thresholds: RingBuf<MapData>,
    events: RingBuf<MapData>,
    table: MappedWords,
    slice_slots: HashMap<MapData, u64, [u64; 2]>,
    brake_slots: HashMap<MapData, u64, [u64; 2]>,
    /// What the brake stopped: start, slice, time, by process.
    stopped: HashMap<MapData, u32, [u64; 3]>,
    /// The slices that the table's slots stand for now.
    slices: ArrayVec<CgroupId, MAX_SLICES>,
    epoch: u64,
    brakes: ArrayVec<CgroupId, MAX_BRAKES>,
    can_brake: Result<(), String>,
    generation: Generation,
    page_bytes: u64,
    counts: Arc<Counts>,
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

fn failed(what: &'static str) -> impl Fn(&dyn std::error::Error) -> SenseError {
    move |error| SenseError::Ebpf { what, why: with_sources(error) }
}

impl EbpfSource {
    /// Probes this kernel, loads the programs and attaches what it allows. Without the line hook it does not stand.
    pub fn new(config: &Config) -> Result<Self, SenseError> {
        // The library reads the kernel's type information for itself too, for relocations that these programs do not
        // have: some 10 MiB that are given back at once.
        let (mut loader, types, Found { mut facts, layout }) = thread::scope(|scope| {
            let library = scope.spawn(|| {
                let mut loader = EbpfLoader::new();
                loader.btf(None);
                (loader, Btf::from_sys_fs())
            });
            let found = probe::gather(Path::new("/"));
            let (loader, types) = library.join().unwrap_or_else(|panic| resume_unwind(panic));
            (loader, types, found)
        });
        if config.no_trampolines {
            facts.trampolines = Ok(false);
        }
        let plan = rules::plan(&facts);
        let unusable = plan.iter().find(|planned| planned.family.name == LINE && planned.choices.is_empty());
        let reason = unusable.map(|planned| planned.reason.clone().unwrap_or_default());
        let (Some(layout), None) = (layout, &reason) else {
            let why = reason.unwrap_or_else(|| "no type information".into());
            return Err(SenseError::Ebpf { what: "the line hook", why });
        };

        let can_brake = brake_possible(config, facts.bpffs);
        let braking = u32::from(can_brake.is_ok());
        let burst = u64::try_from(config.stall_burst.as_nanos()).unwrap_or(u64::MAX);
        for (name, address) in &layout.addresses {
            loader.override_global(name, address, true);
        }
        for (name, offset) in &layout.offsets {
            loader.override_global(name, offset, true);
        }
        loader.override_global("STALL_BURST", &burst, true).override_global("KERNEL_BRAKE", &braking, true);
        if can_brake.is_ok() {
            loader.map_pin_path("stopped", config.stopped_pin.as_path());
        }
        let mut ebpf = loader.load(OBJECT).map_err(|error| failed("the kernel programs")(&error))?;
        drop(loader);

        let stats = enable_stats(Stats::RunTime).ok();
        let types = types.map_err(|error| failed("the kernel's type information")(&error))?;
        let mut hooks = attach_all(&mut ebpf, &plan, &types)?;
        if config.kernel_brake {
            let brake = match &can_brake {
                Ok(()) => {
                    HookState::Attached(format!("with the line hook, record in {}", config.stopped_pin.display()))
                }
                Err(why) => HookState::Missing(why.clone()),
            };
            hooks.push(Hook { name: "brake", state: brake });
        }
        Self::assemble(ebpf, stats, hooks, can_brake)
    }

    fn assemble(
        mut ebpf: Ebpf,
        stats: Option<OwnedFd>,
        hooks: Vec<Hook>,
        can_brake: Result<(), String>,
    ) -> Result<Self, SenseError> {
        // The programs may have been built without log lines: then there is nothing to pass on.
        #[cfg(feature = "log")]
        let log = aya_log::EbpfLogger::init(&mut ebpf).ok();
        let mut take = |name: &'static str| ebpf.take_map(name).ok_or_else(|| no_map(name));
        let map_failed = failed("a map of the kernel programs");
        let Map::Array(table) = take("lines")? else { return Err(no_map("lines")) };
        let words = MappedWords::new(table.fd().as_fd(), size_of::<ThresholdTable>() / 8)
            .map_err(|error| SenseError::System { action: "map the line table", error })?;
        let source = Self {
            thresholds: RingBuf::try_from(take("line_ring")?).map_err(|error| map_failed(&error))?,
            events: RingBuf::try_from(take("event_ring")?).map_err(|error| map_failed(&error))?,
            table: words,
            slice_slots: HashMap::try_from(take("slices")?).map_err(|error| map_failed(&error))?,
            brake_slots: HashMap::try_from(take("brakes")?).map_err(|error| map_failed(&error))?,
            stopped: HashMap::try_from(take("stopped")?).map_err(|error| map_failed(&error))?,
            counts: Arc::new(Counts {
                stalls: HashMap::try_from(take("stalls")?).map_err(|error| map_failed(&error))?,
                sums: PerCpuArray::try_from(take("counts")?).map_err(|error| map_failed(&error))?,
                malformed: AtomicU64::new(0),
                hooks,
                programs: loaded_programs(&ebpf),
                stats,
            }),
            slices: ArrayVec::new(),
            epoch: 0,
            brakes: ArrayVec::new(),
            can_brake,
            generation: Generation(0),
            page_bytes: rustix::param::page_size() as u64,
            #[cfg(feature = "log")]
            log,
            _ebpf: ebpf,
        };
        Ok(source)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.table.at(offset)
    }

    fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// A level in pages, rounded up so that the ring is never late; zero stays zero.
    fn level(&self, bytes: Bytes) -> u64 {
        bytes.0.div_ceil(self.page_bytes)
    }

    /// Says which slices the slots stand for. Their counters are found again as charges pass.
    fn set_slices(&mut self, slices: &[SliceThreshold]) -> Result<(), SenseError> {
        if self.slices.iter().eq(slices.iter().map(|line| &line.cgroup)) {
            return Ok(());
        }
        self.store(std::mem::offset_of!(ThresholdTable, slice_mask), 0);
        for old in self.slices.drain(..) {
            // A slice that was never stored is not there to remove.
            let _ = self.slice_slots.remove(&old.0);
        }
        self.epoch += 1;
        for (slot, line) in (0_u64..).zip(slices) {
            self.slice_slots
                .insert(line.cgroup.0, [slot, self.epoch], 0)
                .map_err(|error| SenseError::Map { what: "a slice", error: map_errno(&error) })?;
            self.slices.push(line.cgroup);
        }
        self.store(std::mem::offset_of!(ThresholdTable, slice_epoch), self.epoch);
        self.store(std::mem::offset_of!(ThresholdTable, slice_mask), (1 << slices.len()) - 1);
        Ok(())
    }

    fn threshold_wake(record: &ThresholdRecord) -> Wake {
        Wake::ThresholdCrossed {
            threshold: match record.threshold {
                0 => CrossedThreshold::Node,
                slot => CrossedThreshold::Slice(slot as usize - 1),
            },
            generation: Generation(record.generation),
            crossed: MonotonicNs(record.at_ns),
            kubelet_available: Pages(record.kubelet),
            mem_available: Pages(record.mem_available),
            usage: present(record.usage).map(Pages),
            charged: present(record.charged).map(CgroupId),
            ancestors: record.ancestors.map(|id| (id != 0).then_some(CgroupId(id))),
            pid: record.pid,
            tgid: record.tgid,
        }
    }

    fn drain_thresholds(&mut self, wakes: &mut WakeList) {
        while !wakes.is_full() {
            let Some(item) = self.thresholds.next() else { return };
            let record = ThresholdRecord::decode(&item);
            drop(item);
            match record {
                Ok(record) => wakes.push(Self::threshold_wake(&record)),
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

fn present(value: u64) -> Option<u64> {
    (value != ABSENT).then_some(value)
}

fn event_wake(event: Event) -> Wake {
    match event {
        Event::Reclaim(record) => Wake::ReclaimStarted {
            by: if record.by == reclaimer::KSWAPD { Reclaimer::Kswapd } else { Reclaimer::Direct },
            node: present(record.node).and_then(|node| u32::try_from(node).ok()),
            at: MonotonicNs(record.at_ns),
        },
        Event::Stall(record) => Wake::StallBurst {
            cgroup: CgroupId(record.cgroup),
            stalled_ns: record.stalled_ns,
            at: MonotonicNs(record.at_ns),
        },
        Event::Oom(record) => Wake::Oom {
            at: MonotonicNs(record.at_ns),
            victim: present(record.victim).and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
            victim_cgroup: present(record.cgroup).map(CgroupId),
            mapped: present(record.mapped).map(Pages),
            resident: present(record.resident).map(Pages),
            scope: match record.scope {
                scope::CGROUP => OomScope::Cgroup,
                scope::CPUSET => OomScope::Cpuset,
                scope::NUMA_NODE => OomScope::NumaNode,
                _ => OomScope::Global,
            },
        },
        Event::Tasks(record) => Wake::Tasks {
            count: record.count,
            generation: Generation(record.generation),
            at: MonotonicNs(record.at_ns),
            tgid: u32::try_from(record.tgid).unwrap_or(0),
            cgroup: CgroupId(record.cgroup),
        },
        Event::Cgroup(record) => Wake::Cgroup {
            id: CgroupId(record.id),
            change: match record.change {
                change::CREATED => CgroupChange::Created,
                change::REMOVED => CgroupChange::Removed,
                change::EMPTIED => CgroupChange::Emptied,
                _ => CgroupChange::Populated,
            },
            at: MonotonicNs(record.at_ns),
        },
        Event::Stopped(record) => {
            Wake::Stopped { tgid: record.tgid, slice: CgroupId(record.slice), at: MonotonicNs(record.at_ns) }
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
        // Slices that the kernel does not take cost only their own lines.
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
        for (slot, line) in slices.iter().enumerate() {
            self.store(slice_slot(slot) + std::mem::offset_of!(SliceSlot, usage), self.level(line.usage));
        }

        // Levels are written; now whoever crosses one may ring.
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

    fn first_stopped(&self) -> Option<MonotonicNs> {
        // Bounded: entries that are taken away meanwhile may start the walk anew.
        let entries = self.stopped.iter().take(STOPPED_BATCH).filter_map(Result::ok);
        entries.map(|(_, [_, _, at])| MonotonicNs(at)).min()
    }

    fn health_reader(&self) -> HealthReader {
        HealthReader(Some(Arc::clone(&self.counts)))
    }
}

/// What the kernel counts for the programs, and what became of the hooks.
pub(crate) struct Counts {
    stalls: HashMap<MapData, u64, [u64; 4]>,
    sums: PerCpuArray<MapData, u64>,
    malformed: AtomicU64,
    hooks: Vec<Hook>,
    programs: Vec<(&'static str, ProgramFd)>,
    /// As long as it is open the kernel counts run time and runs.
    stats: Option<OwnedFd>,
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counts").field("hooks", &self.hooks).finish_non_exhaustive()
    }
}

impl Counts {
    fn malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stalls(&self) -> Vec<(CgroupId, u64)> {
        self.stalls.iter().filter_map(Result::ok).map(|(id, [total, ..])| (CgroupId(id), total)).collect()
    }

    pub(crate) fn read(&self) -> Health {
        let sum = |slot: u32| self.sums.get(&slot, 0).map_or(0, |each| each.iter().sum());
        let counted = self.stats.is_some()
            || fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|value| value.trim() == "1");
        Health {
            lost: vec![("lines", sum(counter::LOST_THRESHOLD_EVENTS)), ("events", sum(counter::LOST_EVENTS))],
            malformed: self.malformed.load(Ordering::Relaxed),
            programs: self.programs.iter().map(|(name, fd)| program_stats(name, fd, counted)).collect(),
            hooks: self.hooks.clone(),
            brakes_applied: sum(counter::BRAKES_APPLIED),
            brakes_refused: sum(counter::BRAKES_REFUSED),
        }
    }
}

const fn slice_slot(slot: usize) -> usize {
    std::mem::offset_of!(ThresholdTable, slices) + slot * size_of::<SliceSlot>()
}

fn no_map(name: &'static str) -> SenseError {
    SenseError::Ebpf { what: "the embedded object", why: format!("it has no map `{name}`") }
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

/// The programs see the machine's process numbers. The first PID namespace has a number that is part of the kernel's
/// interface (`PROC_PID_INIT_INO`).
fn is_initial_pid_namespace(link: &Path) -> bool {
    fs::read_link(link).is_ok_and(|to| to.as_os_str() == "pid:[4026531836]")
}

/// The brake needs its record on bpffs; without one it must not stop anything.
fn brake_possible(config: &Config, bpffs: bool) -> Result<(), String> {
    if !config.kernel_brake {
        return Err("not asked for".into());
    }
    if !bpffs {
        return Err("bpffs is not mounted at /sys/fs/bpf, so what it stops could not be undone".into());
    }
    if !is_initial_pid_namespace(Path::new("/proc/self/ns/pid")) {
        return Err("this is not the machine's own PID namespace (hostPID), so what it stops could not be found".into());
    }
    let directory = config.stopped_pin.parent().unwrap_or(Path::new("/sys/fs/bpf"));
    fs::create_dir_all(directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))
}

fn attach_all(ebpf: &mut Ebpf, plan: &[Planned], btf: &Btf) -> Result<Vec<Hook>, SenseError> {
    let mut hooks = Vec::with_capacity(plan.len());
    for Planned { family, choices, reason } in plan {
        let mut why = reason.clone();
        let mut state = None;
        for attach_type in choices {
            match attach_choice(ebpf, attach_type, btf) {
                Ok(()) => {
                    let hung: Vec<String> =
                        attach_type.iter().map(|it| format!("{} {}", it.attach_type.name(), it.target)).collect();
                    state = Some(HookState::Attached(hung.join(", ")));
                    break;
                }
                Err(error) => {
                    why.get_or_insert(error);
                }
            }
        }
        if state.is_none() && family.name == LINE {
            return Err(SenseError::Ebpf { what: "the line hook", why: why.unwrap_or_default() });
        }
        let state = state.unwrap_or_else(|| HookState::Missing(why.unwrap_or_default()));
        hooks.push(Hook { name: family.name, state });
    }
    Ok(hooks)
}

/// Loads and attaches all programs of an alternative, or none of them.
fn attach_choice(ebpf: &mut Ebpf, attach_type: &[Attachment], btf: &Btf) -> Result<(), String> {
    for (index, attachment) in attach_type.iter().enumerate() {
        if let Err(error) = attach(ebpf, attachment, btf) {
            for done in &attach_type[..=index] {
                // Unloading detaches; a program that never loaded says so, and that is fine here.
                let _ = ebpf.program_mut(done.program).map(unload);
            }
            return Err(format!("{} {}: {error}", attachment.attach_type.name(), attachment.target));
        }
    }
    Ok(())
}

fn attach(ebpf: &mut Ebpf, attachment: &Attachment, btf: &Btf) -> Result<(), String> {
    let Attachment { program, attach_type, target } = attachment;
    let program = ebpf.program_mut(program).ok_or_else(|| format!("the embedded object has no program `{program}`"))?;
    let result = match (attach_type, program) {
        (AttachType::Fentry, Program::FEntry(program)) => {
            program.load(target, btf).and_then(|()| program.attach().map(drop))
        }
        (AttachType::Fexit, Program::FExit(program)) => {
            program.load(target, btf).and_then(|()| program.attach().map(drop))
        }
        (AttachType::Tracepoint, Program::BtfTracePoint(program)) => {
            program.load(target, btf).and_then(|()| program.attach().map(drop))
        }
        (AttachType::Kprobe, Program::KProbe(program)) => {
            program.load().and_then(|()| program.attach(target, 0).map(drop))
        }
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    result.map_err(|error| with_sources(&error))
}

fn unload(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::FEntry(program) => program.unload(),
        Program::FExit(program) => program.unload(),
        Program::BtfTracePoint(program) => program.unload(),
        Program::KProbe(program) => program.unload(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// The programs that are loaded, by the names of the families' tables.
fn loaded_programs(ebpf: &Ebpf) -> Vec<(&'static str, ProgramFd)> {
    rules::FAMILIES
        .iter()
        .flat_map(|family| family.choices)
        .copied()
        .flatten()
        .filter_map(|attachment| {
            let fd = ebpf.program(attachment.program)?.fd().ok()?;
            Some((attachment.program, fd.try_clone().ok()?))
        })
        .collect()
}

/// What the kernel shows of a program under its descriptor; zeros that nobody counts are left out.
fn program_stats(name: &'static str, fd: &ProgramFd, counted: bool) -> ProgramStats {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd())).unwrap_or_default();
    stats_from(name, &text, counted)
}

fn stats_from(name: &'static str, fdinfo: &str, counted: bool) -> ProgramStats {
    let value = |key: &str| {
        let line = fdinfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    };
    ProgramStats {
        name,
        runs: value("run_cnt").filter(|_| counted),
        run_time_ns: value("run_time_ns").filter(|_| counted),
        recursion_misses: value("recursion_misses"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_object_has_every_program_and_global() {
        let object = aya_object();
        for attachment in rules::FAMILIES.iter().flat_map(|family| family.choices).copied().flatten() {
            assert!(object.contains(attachment.program), "{}", attachment.program);
        }
        for map in ["lines", "line_ring", "event_ring", "counts", "slices", "brakes", "stalls", "stopped"] {
            assert!(object.contains(map), "{map}");
        }
    }

    /// The object's string tables, good enough to look for names.
    fn aya_object() -> String {
        String::from_utf8_lossy(OBJECT).into_owned()
    }

    #[test]
    fn program_statistics_are_read_by_name() {
        let text = "pos:\t0\nprog_type:\t26\nrun_time_ns:\t1234\nrun_cnt:\t7\nrecursion_misses:\t2\n";
        assert_eq!(
            stats_from("x", text, true),
            ProgramStats { name: "x", runs: Some(7), run_time_ns: Some(1234), recursion_misses: Some(2) }
        );
        let misses_alone = ProgramStats { name: "x", recursion_misses: Some(2), ..ProgramStats::default() };
        assert_eq!(stats_from("x", text, false), misses_alone, "zeros of statistics that are off");
        assert_eq!(stats_from("x", "prog_type:\t26\n", true), ProgramStats { name: "x", ..ProgramStats::default() });
    }

    #[test]
    fn the_brake_is_never_loaded_without_a_place_for_its_record() {
        let directory = tempfile::tempdir().expect("tempdir");
        let config = |kernel_brake| Config {
            kernel_brake,
            stopped_pin: directory.path().join("deep/stopped"),
            ..Config::default()
        };
        assert!(brake_possible(&config(false), true).is_err());
        assert!(brake_possible(&config(true), false).is_err());
        assert_eq!(brake_possible(&config(true), true), Ok(()));
    }
}
