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
    /// The marks that the kernel's table was last written with, each with the threshold below which the kernel stops
    /// processes in it.
    written: ArrayVec<BrakeMark, MAX_BRAKES>,
    held: Option<MonotonicNs>,
    /// Continues what the kernel stopped; absent where it stops no process.
    resumer: Option<Resumer>,
}

impl KernelBrake {
    /// Nothing is marked, and no hold will be longer than `most`.
    pub(super) const fn new(most: Duration, resumer: Option<Resumer>) -> Self {
        Self { most, marks: [None; MAX_BRAKES], written: ArrayVec::new_const(), held: None, resumer }
    }

    /// From now on this one continues what the kernel stopped.
    pub(super) fn set_resumer(&mut self, resumer: Option<Resumer>) {
        self.resumer = resumer;
    }

    /// A slice to be marked from the next [`Self::set`] on. A mark that is withdrawn, and not replaced by another one,
    /// comes off at once: nothing is set as long as memory is below a threshold.
    pub(super) fn mark(&mut self, index: u8, mark: Option<Mark>, source: &mut dyn Source) {
        let Some(place) = self.marks.get_mut(usize::from(index)) else { return };
        *place = mark;
        if mark.is_none() {
            let mut left = self.written.clone();
            left.retain(|written| self.marks.iter().flatten().any(|mark| mark.slice == written.slice));
            // Where it could not be written, that was reported when the marks were set.
            let _ = self.write(source, left);
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
        self.written.clear();
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
        let marks = self.marks.iter().flatten();
        let wanted = marks
            .map(|&Mark { slice, level, path: _ }| BrakeMark { slice, level, kubelet: Bytes::ZERO, mem_available })
            .collect();
        self.write(source, wanted)
    }

    /// Writes the kernel's table, where that differs from what it was last written with.
    fn write(&mut self, source: &mut dyn Source, wanted: ArrayVec<BrakeMark, MAX_BRAKES>) -> Result<(), SenseError> {
        if self.written == wanted {
            return Ok(());
        }
        // Once: what cannot be marked now cannot be marked in a second either.
        self.written = wanted;
        source.set_brakes(&self.written)?;
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
        brake.mark(3, Some(mark(7, 1)), &mut source);
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
        brake.mark(0, Some(mark(7, 1)), &mut source);
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
            (1, None, vec![]),
        ] {
            brake.mark(index, mark, &mut source);
            brake.set(&mut source, Bytes::ZERO).expect("it takes them");
            assert_eq!(source.0.last(), Some(&expected.into_iter().map(CgroupId).collect()));
        }
    }

    /// Two slices are marked.
    fn of_two_slices() -> (KernelBrake, Marked) {
        let (mut brake, mut source) = (KernelBrake::new(Duration::from_secs(1), None), Marked::default());
        for (index, id) in [(0, 7), (1, 8)] {
            brake.mark(index, Some(mark(id, 1)), &mut source);
        }
        brake.set(&mut source, Bytes::mib(1)).expect("it takes them");
        (brake, source)
    }

    #[test]
    fn a_mark_that_is_withdrawn_comes_off_at_once_and_so_does_the_last_one() {
        let (mut brake, mut source) = of_two_slices();
        // No `set` follows, as while memory is short.
        for (index, left) in [(0, vec![CgroupId(8)]), (1, vec![])] {
            brake.mark(index, None, &mut source);
            assert_eq!(source.0.last(), Some(&left));
        }
        brake.set(&mut source, Bytes::mib(2)).expect("it takes them");
        assert_eq!(source.0.len(), 3, "an empty table is written once");
    }

    #[test]
    fn what_is_withdrawn_during_a_hold_marks_nothing() {
        let (mut brake, mut source) = of_two_slices();
        brake.continue_all(&mut source);
        brake.mark(0, None, &mut source);
        assert_eq!(source.0.last(), Some(&vec![]), "the other one comes back with the next threshold that is set");
        brake.set(&mut source, Bytes::mib(1)).expect("it takes them");
        assert_eq!(source.0.last(), Some(&vec![CgroupId(8)]));
    }
}
