//! A threshold of the guest's own, watched by the kernel programs that the agent loads, whatever source the agent has.
//!
//! So the time of a crossing is taken in the kernel in every round, also where the agent itself only polls. Without an
//! allowance for drift: the agent wants to be early, an observer wants to be right.

use crate::machine;
use anyhow::{Context as _, Result};
use plimsoll_sense::{
    ArmedThresholds, Config, CrossedThreshold, EbpfSource, Generation, NodeThreshold, Source as _, Wake, WakeList,
};
use plimsoll_units::{Bytes, Pages};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::param::page_size;
use std::time::{Duration, Instant};

/// A crossing as the kernel saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    /// When, by `CLOCK_MONOTONIC`.
    pub(crate) at_ns: u64,
    /// When this process was awake.
    pub(crate) awake_ns: u64,
    /// What was available then, in bytes, as `MemAvailable` reckons it.
    pub(crate) available: u64,
}

/// The programs, and what zones keep for themselves, read once.
pub(crate) struct Observer {
    source: EbpfSource,
    reserve: Pages,
    low_watermark: Pages,
}

impl Observer {
    /// Loads and attaches the programs.
    pub(crate) fn new() -> Result<Self> {
        let source = EbpfSource::new(&Config::default()).context("the observer needs the kernel programs")?;
        let zones = std::fs::read_to_string("/proc/zoneinfo").context("cannot read /proc/zoneinfo")?;
        let (reserve, low_watermark) = machine::reserves(&zones);
        Ok(Self { source, reserve: Pages(reserve), low_watermark: Pages(low_watermark) })
    }

    /// Arms the threshold: one event, as soon as less than `bytes` are available.
    pub(crate) fn arm(&mut self, bytes: u64) -> Result<Generation> {
        let total = Pages::from_bytes(Bytes(machine::meminfo("MemTotal")?), page_size() as u64);
        let node = NodeThreshold {
            kubelet: Bytes::ZERO,
            mem_available: Bytes(bytes),
            total,
            reserve: self.reserve,
            low_watermark: self.low_watermark,
            kubelet_drift: Pages(0),
            mem_available_drift: Pages(0),
        };
        Ok(self.source.arm(&ArmedThresholds { node: Some(node), ..ArmedThresholds::default() })?)
    }

    /// Waits for the crossing that answers `generation`.
    pub(crate) fn wait(&mut self, generation: Generation, limit: Duration) -> Result<Option<Crossing>> {
        let started = Instant::now();
        while let Some(left) = limit.checked_sub(started.elapsed()) {
            let descriptors = self.source.descriptors();
            let mut polled: Vec<PollFd<'_>> =
                descriptors.iter().map(|it| PollFd::from_borrowed_fd(it.fd, PollFlags::IN)).collect();
            poll(&mut polled, Some(&Timespec::try_from(left)?))?;
            let awake_ns = machine::now_ns();
            let tokens: Vec<u32> = descriptors.iter().map(|it| it.token).collect();
            drop(polled);
            drop(descriptors);
            for token in tokens {
                let mut wakes = WakeList::new();
                self.source.drain(token, &mut wakes)?;
                for wake in wakes {
                    if let Wake::ThresholdCrossed {
                        threshold: CrossedThreshold::Node,
                        generation: answered,
                        crossed,
                        mem_available,
                        ..
                    } = wake
                        && answered == generation
                    {
                        let available = mem_available.to_bytes(page_size() as u64).0;
                        return Ok(Some(Crossing { at_ns: crossed.0, awake_ns, available }));
                    }
                }
            }
        }
        Ok(None)
    }

    /// When the OOM killer first chose a victim after `since_ns`, by what the kernel programs noted and was not yet
    /// read.
    pub(crate) fn oom_kill(&mut self, since_ns: u64) -> Result<Option<u64>> {
        let tokens: Vec<u32> = self.source.descriptors().iter().map(|descriptor| descriptor.token).collect();
        let mut first = None;
        for token in tokens {
            let mut wakes = WakeList::new();
            // A full list leaves the rest for the next call; the ring buffer is of a bounded size.
            loop {
                wakes.clear();
                self.source.drain(token, &mut wakes)?;
                if wakes.is_empty() {
                    break;
                }
                let chosen = wakes.iter().filter_map(|wake| match wake {
                    Wake::Oom { at, .. } if at.0 >= since_ns => Some(at.0),
                    _ => None,
                });
                first = chosen.chain(first).min();
            }
        }
        Ok(first)
    }
}
