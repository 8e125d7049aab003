//! What is left on the disks of a node, by one worker for each file system.

use crate::error::StorageError;
use crate::layout::Disks;
use crate::mounts::FileSystem;
use crate::statfs::{Trouble, read};
use crate::worker::{Slots, Worker};
use core::time::Duration;
use plimsoll_policy::kubelet::{FsStats, NodeStats, StatsTime};
use plimsoll_units::MonotonicNs;
use std::time::Instant;

/// Looks at the disks of a node. Nothing here waits for a disk.
#[derive(Debug)]
pub struct DiskWatch {
    disks: Disks,
    workers: Vec<(FileSystem, Worker<Answer>)>,
}

/// What was read, and how long the worker's thread took for it.
type Answer = (Result<FsStats, Trouble>, Duration);

/// One file system, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskState<'a> {
    /// Which.
    pub fs: &'a FileSystem,
    /// The last answer, with its time, however old.
    pub answer: Option<(MonotonicNs, Result<FsStats, Trouble>)>,
    /// How long the kernel has owed the next one. A local disk answers in microseconds: after a second it hangs.
    pub outstanding: Option<Duration>,
}

impl DiskWatch {
    /// Starts a worker for each of the one to three file systems, each of which takes one of `slots`.
    pub fn start(disks: Disks, slots: &Slots) -> Result<Self, StorageError> {
        Self::start_with(disks, slots, |fs| read(&fs))
    }

    fn start_with(
        disks: Disks,
        slots: &Slots,
        read: impl Fn(FileSystem) -> Result<FsStats, Trouble> + Clone + Send + 'static,
    ) -> Result<Self, StorageError> {
        let mut workers: Vec<(FileSystem, Worker<_>)> = Vec::new();
        for fs in [&disks.node, &disks.image, &disks.container] {
            if !workers.iter().any(|(other, _)| other.is(fs)) {
                let (asked, read) = (fs.clone(), read.clone());
                let name = fs.mount_point.display().to_string();
                let answer = move || {
                    let (fs, begun) = (asked.clone(), Instant::now());
                    (read(fs), begun.elapsed())
                };
                workers.push((fs.clone(), Worker::start(slots, &name, answer)?));
            }
        }
        Ok(Self { disks, workers })
    }

    /// The disks.
    pub const fn disks(&self) -> &Disks {
        &self.disks
    }

    /// Asks for a reading of each file system that owes none. Returns at once.
    pub fn ask(&self, now: MonotonicNs) {
        for (_, worker) in &self.workers {
            worker.ask(now);
        }
    }

    /// Puts the last readings into the statistics of the node, with their times. Absent are those older than `max_age`,
    /// and those of a file system whose last answer was an error. Gives how long its thread took for each of them: nodefs,
    /// imagefs and containerfs.
    pub fn fill(&self, now: MonotonicNs, max_age: Duration, stats: &mut NodeStats) -> [Option<Duration>; 3] {
        self.disks.fill(stats, |fs| {
            let (_, worker) = self.workers.iter().find(|(other, _)| other.is(fs))?;
            let (at, (read, cost)) = worker.answer(now, max_age)?;
            let time = Some(StatsTime(i64::try_from(at.0).unwrap_or(i64::MAX)));
            Some((FsStats { time, ..read.ok()? }, cost))
        })
    }

    /// Each file system, once.
    pub fn states(&self, now: MonotonicNs) -> impl Iterator<Item = DiskState<'_>> {
        self.workers.iter().map(move |(fs, worker)| DiskState {
            fs,
            answer: worker.answer(now, Duration::MAX).map(|(at, (read, _))| (at, read)),
            outstanding: worker.outstanding(now),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Roots, find};
    use rustix::io::Errno;
    use std::path::Path;
    use std::sync::{Arc, Barrier};
    use std::thread::{sleep, yield_now};

    /// How long a disk takes to answer.
    const SLOW: Duration = Duration::from_millis(5);

    const fn at(second: u64) -> MonotonicNs {
        MonotonicNs(second * 1_000_000_000)
    }

    fn disks(images: &Path) -> Disks {
        find(Roots { kubelet: Path::new("/"), images, containers: None }).expect("both exist")
    }

    fn wait(watch: &DiskWatch, outstanding: usize) {
        while watch.states(at(1)).filter(|state| state.outstanding.is_some()).count() > outstanding {
            yield_now();
        }
    }

    #[test]
    fn one_file_system_is_asked_once_and_fills_all_three_with_one_time() {
        let slots = Slots::new(3);
        let watch = DiskWatch::start(disks(Path::new("/")), &slots).expect("a thread");
        assert_eq!((watch.states(at(1)).count(), slots.taken()), (1, 1));
        let mut stats = NodeStats::default();
        assert_eq!(watch.fill(at(1), Duration::MAX, &mut stats), [None; 3]);
        assert_eq!(stats, NodeStats::default(), "nothing was read");
        watch.ask(at(1));
        wait(&watch, 0);
        let costs = watch.fill(at(5), Duration::from_secs(4), &mut stats);
        assert!(costs[0].is_some_and(|cost| cost > Duration::ZERO) && costs == [costs[0]; 3], "{costs:?}");
        let node = stats.node_fs.expect("it was read");
        assert_eq!(
            (node.time, stats.image_fs, stats.container_fs),
            (Some(StatsTime(1_000_000_000)), Some(node), Some(node))
        );
        assert_eq!(watch.fill(at(6), Duration::from_secs(4), &mut stats), [None; 3]);
        assert_eq!(stats, NodeStats::default(), "too old");
    }

    #[test]
    fn a_disk_that_hangs_or_fails_is_absent_and_costs_the_others_nothing() {
        let slots = Slots::new(3);
        let until = Arc::new(Barrier::new(2));
        let barrier = Arc::clone(&until);
        let read = move |fs: FileSystem| {
            if fs.fs_type == "proc" {
                barrier.wait();
                return Err(Trouble::Failed(Errno::IO));
            }
            sleep(SLOW);
            Ok(FsStats { available: Some(9), ..FsStats::default() })
        };
        let watch = DiskWatch::start_with(disks(Path::new("/proc")), &slots, read).expect("two threads");
        watch.ask(at(1));
        wait(&watch, 1);
        let mut stats = NodeStats::default();
        let costs = watch.fill(at(2), Duration::MAX, &mut stats);
        assert!(costs[0].is_some_and(|cost| cost >= SLOW) && costs[1..] == [None; 2], "{costs:?}");
        assert_eq!(stats.node_fs.and_then(|fs| fs.available), Some(9));
        assert_eq!((stats.image_fs, stats.container_fs), (None, None));
        watch.ask(at(3));
        let hung = watch.states(at(31)).find(|state| state.fs.fs_type == "proc").expect("it is there");
        assert_eq!((hung.answer, hung.outstanding), (None, Some(Duration::from_secs(30))));
        until.wait();
        wait(&watch, 0);
        let costs = watch.fill(at(31), Duration::MAX, &mut stats);
        assert_eq!((stats.image_fs, costs[1]), (None, None));
        let failed = watch.states(at(31)).find(|state| state.fs.fs_type == "proc").expect("it is there");
        assert_eq!(failed.answer, Some((at(1), Err(Trouble::Failed(Errno::IO)))));
    }
}
