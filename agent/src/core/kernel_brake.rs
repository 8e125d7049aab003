//! The in-kernel brake, as the watching thread handles it: slices are marked while memory is above the thresholds, and
//! the marks come off before the processes that the kernel stopped go on.

use core::time::Duration;

use arrayvec::ArrayVec;
use plimsoll_act::{KillPoint, reached};
use plimsoll_inventory::{Mark, PathEnd};
use plimsoll_sense::{BrakeMark, MAX_BRAKES, SenseError, Source};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

use super::resume::Resumer;

/// What is marked, and since when processes are held.
#[derive(Debug)]
pub(super) struct KernelBrake {
    /// No hold is longer.
    most: Duration,
    /// Slices, by place.
    marks: [Option<Mark>; MAX_BRAKES],
    /// The threshold below which the kernel stops processes in them; absent where it stops none.
    set: Option<Bytes>,
    held: Option<MonotonicNs>,
    /// Continues what the kernel stopped; absent where it stops no process.
    resumer: Option<Resumer>,
}

impl KernelBrake {
    /// Nothing is marked, and no hold will be longer than `most`.
    pub(super) const fn new(most: Duration, resumer: Option<Resumer>) -> Self {
        Self { most, marks: [None; MAX_BRAKES], set: None, held: None, resumer }
    }

    /// From now on this one continues what the kernel stopped.
    pub(super) fn set_resumer(&mut self, resumer: Option<Resumer>) {
        self.resumer = resumer;
    }

    /// A slice to be marked from the next [`Self::set`] on.
    pub(super) fn mark(&mut self, index: u8, mark: Option<Mark>) {
        if let Some(place) = self.marks.get_mut(usize::from(index)) {
            *place = mark;
            self.set = None;
        }
    }

    /// What names such a slice.
    pub(super) fn path(&self, slice: CgroupId) -> Option<PathEnd> {
        self.marks.iter().flatten().find(|mark| mark.slice == slice).map(|mark| mark.path)
    }

    /// The kernel stopped a process at `at`.
    pub(super) fn stopped(&mut self, at: MonotonicNs) {
        self.held = Some(self.held.map_or(at, |earlier| earlier.min(at)));
    }

    /// Finds a stopped process whose event was lost: what the kernel wrote down before the signal is not.
    pub(super) fn find_stopped(&mut self, source: &dyn Source) {
        if self.resumer.is_some()
            && !self.holds()
            && let Some(at) = source.first_stopped()
        {
            self.stopped(at);
        }
    }

    /// Whether a process is held.
    pub(super) const fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// When the processes that are held go on at the latest.
    pub(super) fn due(&self) -> Option<MonotonicNs> {
        self.held.map(|since| since.after(self.most))
    }

    /// Takes the marks off. Processes that are held are to be continued now; the marks come back with the next
    /// [`Self::set`].
    pub(super) fn unmark(&mut self, source: &mut dyn Source) {
        self.held = None;
        self.set = None;
        // Where they could not be taken off, a process that goes on is stopped again, and that hold ends as this one.
        let _ = source.set_brakes(&[]);
    }

    /// Takes the marks off and has every stopped process continued.
    pub(super) fn continue_all(&mut self, source: &mut dyn Source) {
        self.unmark(source);
        if let Some(resumer) = &self.resumer {
            resumer.request();
        }
    }

    /// Whether a process could not be continued since this was last asked.
    pub(super) fn has_failed(&self) -> bool {
        self.resumer.as_ref().is_some_and(Resumer::has_failed)
    }

    /// Has every stopped process continued for the last time.
    pub(super) fn end(&self) {
        if let Some(resumer) = &self.resumer {
            resumer.end();
        }
    }

    /// Whether that is done.
    pub(super) fn has_ended(&self) -> bool {
        self.resumer.as_ref().is_none_or(Resumer::has_ended)
    }

    /// Marks the slices, where they are not marked for this threshold yet. `mem_available` is the threshold, by the
    /// kernel's own reading only: page cache that reclaim can take is no reason to stop a process.
    pub(super) fn set(&mut self, source: &mut dyn Source, mem_available: Bytes) -> Result<(), SenseError> {
        if self.set == Some(mem_available) || self.marks.iter().all(Option::is_none) {
            return Ok(());
        }
        let marked = self.marks.iter().flatten();
        let marks: ArrayVec<BrakeMark, MAX_BRAKES> = marked
            .map(|&Mark { slice, level, path: _ }| BrakeMark { slice, level, kubelet: Bytes::ZERO, mem_available })
            .collect();
        // Once: what cannot be marked now cannot be marked in a second either.
        self.set = Some(mem_available);
        source.set_brakes(&marks)?;
        reached(KillPoint::KernelMarked);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_sense::{Descriptor, Kind, MAX_DESCRIPTORS, WakeList};

    /// Remembers what was marked.
    #[derive(Default)]
    struct Marked(Vec<Vec<CgroupId>>);

    impl Source for Marked {
        fn kind(&self) -> Kind {
            Kind::Ebpf
        }

        fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
            ArrayVec::new()
        }

        fn drain(&mut self, _: u32, _: &mut WakeList) -> Result<(), SenseError> {
            Ok(())
        }

        fn set_brakes(&mut self, marks: &[BrakeMark]) -> Result<(), SenseError> {
            self.0.push(marks.iter().map(|mark| mark.slice).collect());
            Ok(())
        }
    }

    fn mark(id: u64, level: u8) -> Mark {
        Mark { slice: CgroupId(id), level, path: PathEnd::of(b"system.slice") }
    }

    fn at(seconds: u64) -> MonotonicNs {
        MonotonicNs(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn the_marks_come_back_after_every_hold() {
        let (mut brake, mut source) = (KernelBrake::new(Duration::from_secs(2), None), Marked::default());
        assert!(brake.set(&mut source, Bytes::mib(1)).is_ok() && source.0.is_empty(), "nothing is to be marked");
        brake.mark(3, Some(mark(7, 1)));
        assert_eq!([7, 8].map(|id| brake.path(CgroupId(id))), [Some(PathEnd::of(b"system.slice")), None]);
        for hold in 0..2 {
            for _ in 0..3 {
                brake.set(&mut source, Bytes::mib(1)).expect("it takes them");
            }
            assert_eq!(source.0.len(), 2 * hold + 1, "marked once");
            assert_eq!(source.0.last(), Some(&vec![CgroupId(7)]));
            assert!(!brake.holds() && brake.due().is_none());
            brake.stopped(at(10));
            brake.stopped(at(11));
            assert!(brake.holds());
            assert_eq!(brake.due(), Some(at(12)), "the first one counts");
            brake.continue_all(&mut source);
            assert_eq!(source.0.last(), Some(&vec![]));
            assert!(!brake.holds() && brake.due().is_none());
        }
    }

    #[test]
    fn a_threshold_that_moved_is_marked_anew() {
        let (mut brake, mut source) = (KernelBrake::new(Duration::from_secs(1), None), Marked::default());
        brake.mark(0, Some(mark(7, 1)));
        for (mib, times) in [(100, 1), (100, 1), (90, 2), (90, 2), (100, 3)] {
            brake.set(&mut source, Bytes::mib(mib)).expect("it takes them");
            assert_eq!(source.0.len(), times, "{mib}");
        }
    }

    #[test]
    fn a_slice_that_comes_or_goes_is_marked_anew() {
        let (mut brake, mut source) = (KernelBrake::new(Duration::from_secs(1), None), Marked::default());
        for (index, mark, expected) in [
            (0, Some(mark(7, 1)), vec![7]),
            (1, Some(mark(8, 2)), vec![7, 8]),
            (0, None, vec![8]),
            // There is no such place: nothing changes.
            (200, Some(mark(9, 1)), vec![8]),
        ] {
            brake.mark(index, mark);
            brake.set(&mut source, Bytes::ZERO).expect("it takes them");
            assert_eq!(source.0.last(), Some(&expected.into_iter().map(CgroupId).collect()));
        }
    }
}
