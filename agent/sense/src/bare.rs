//! The barest ring-buffer wake on the threshold's own hook: the yardstick of the benchmarks, and nothing else.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::Ordering,
};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Map, MapData, RingBuf},
    programs::{FEntry, KProbe},
};
use plimsoll_abi::BareRecord;
use plimsoll_units::MonotonicNs;

use crate::{error::SenseError, mapped::MappedWords, probe::with_sources};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/bare.bpf.o"));

const TARGET: &str = "page_counter_try_charge";

/// One program, one word to arm it, one ring buffer.
pub struct Bare {
    armed: MappedWords,
    ring: RingBuf<MapData>,
    _ebpf: Ebpf,
}

impl Bare {
    /// Loads and attaches it: fentry, else a kprobe.
    pub fn new() -> Result<Self, SenseError> {
        let failed =
            |error: &dyn std::error::Error| SenseError::Ebpf { what: "the bare wake", why: with_sources(error) };
        let missing = || SenseError::Ebpf { what: "the bare wake", why: "the object lacks a map or program".into() };
        let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(|error| failed(&error))?;
        let btf = Btf::from_sys_fs().map_err(|error| failed(&error))?;
        let program: &mut FEntry = ebpf
            .program_mut("bare_fentry")
            .ok_or_else(missing)?
            .try_into()
            .map_err(|error: aya::programs::ProgramError| failed(&error))?;
        if program.load(TARGET, &btf).and_then(|()| program.attach()).is_err() {
            let program: &mut KProbe = ebpf
                .program_mut("bare_kprobe")
                .ok_or_else(missing)?
                .try_into()
                .map_err(|error: aya::programs::ProgramError| failed(&error))?;
            program.load().and_then(|()| program.attach(TARGET, 0)).map_err(|error| failed(&error))?;
        }
        let ring =
            RingBuf::try_from(ebpf.take_map("bare_ring").ok_or_else(missing)?).map_err(|error| failed(&error))?;
        let Map::Array(armed) = ebpf.take_map("bare_armed").ok_or_else(missing)? else { return Err(missing()) };
        let armed = MappedWords::new(armed.fd().as_fd(), 1)
            .map_err(|error| SenseError::System { action: "map the bare wake's word", error })?;
        Ok(Self { armed, ring, _ebpf: ebpf })
    }

    /// What to wait on.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// The next charge submits an event, once.
    pub fn arm(&self) {
        self.armed.at(0).store(1, Ordering::Release);
    }

    /// When its event was submitted, if it was.
    pub fn take(&mut self) -> Option<MonotonicNs> {
        let item = self.ring.next()?;
        BareRecord::decode(&item).ok().map(|record| MonotonicNs(record.at_ns))
    }
}
