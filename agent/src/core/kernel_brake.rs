//! The in-kernel brake, as the watching thread handles it: slices are marked while memory is above the lines, and the
//! marks come off before whoever the kernel stopped goes on.

use core::time::Duration;

use arrayvec::ArrayVec;
use plimsoll_act::{KillPoint, reached};
use plimsoll_sense::{BrakeMark, MAX_BRAKES, SenseError, Source};
use plimsoll_units::{Bytes, CgroupId, MonotonicNs};

/// What is marked, and since when somebody is held.
#[derive(Debug)]
pub(super) struct KernelBrake {
    /// No hold is longer.
    most: Duration,
    /// Slices with their depth below the root, by place.
    marks: [Option<(CgroupId, u8)>; MAX_BRAKES],
    /// The line below which the kernel has them; it has none otherwise.
    set: Option<Bytes>,
    held: Option<MonotonicNs>,
}

impl KernelBrake {
    /// Nothing is marked, and no hold will be longer than `most`.
    pub(super) const fn new(most: Duration) -> Self {
        Self { most, marks: [None; MAX_BRAKES], set: None, held: None }
    }

    /// A slice to be marked from the next [`Self::set`] on.
    pub(super) fn mark(&mut self, index: u8, mark: Option<(CgroupId, u8)>) {
        if let Some(place) = self.marks.get_mut(usize::from(index)) {
            *place = mark;
            self.set = None;
        }
    }

    /// The kernel stopped somebody at `at`.
    pub(super) fn stopped(&mut self, at: MonotonicNs) {
        self.held = Some(self.held.map_or(at, |earlier| earlier.min(at)));
    }

    /// Whether somebody is held.
    pub(super) const fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// When whoever is held goes on at the latest.
    pub(super) fn due(&self) -> Option<MonotonicNs> {
        self.held.map(|since| since.after(self.most))
    }

    /// Takes the marks off. Whoever is held is to be continued now; the marks come back with the next [`Self::set`].
    pub(super) fn let_go(&mut self, source: &mut dyn Source) {
        self.held = None;
        self.set = None;
        // Where they could not be taken off, whoever goes on is stopped again, and that hold ends as this one.
        let _ = source.set_brakes(&[]);
    }

    /// Marks the slices, where they are not marked for this line yet. `mem_available` is the line, by the kernel's own
    /// reading only: page cache in the way is no reason to stop anybody.
    pub(super) fn set(&mut self, source: &mut dyn Source, mem_available: Bytes) -> Result<(), SenseError> {
        if self.set == Some(mem_available) || self.marks.iter().all(Option::is_none) {
            return Ok(());
        }
        let marked = self.marks.iter().flatten();
        let marks: ArrayVec<BrakeMark, MAX_BRAKES> = marked
            .map(|(slice, level)| BrakeMark { slice: *slice, level: *level, kubelet: Bytes::ZERO, mem_available })
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
    use plimsoll_sense::{ArmedThresholds, Descriptor, Generation, Kind, MAX_DESCRIPTORS, WakeList};

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

        fn arm(&mut self, _: &ArmedThresholds) -> Result<Generation, SenseError> {
            Ok(Generation(1))
        }

        fn disarm(&mut self) -> Result<(), SenseError> {
            Ok(())
        }

        fn set_brakes(&mut self, marks: &[BrakeMark]) -> Result<(), SenseError> {
            self.0.push(marks.iter().map(|mark| mark.slice).collect());
            Ok(())
        }
    }

    fn at(seconds: u64) -> MonotonicNs {
        MonotonicNs(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn the_marks_come_back_after_every_hold() {
        let (mut brake, mut source) = (KernelBrake::new(Duration::from_secs(2)), Marked::default());
        assert!(brake.set(&mut source, Bytes::mib(1)).is_ok() && source.0.is_empty(), "nothing is to be marked");
        brake.mark(3, Some((CgroupId(7), 1)));
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
            brake.let_go(&mut source);
            assert_eq!(source.0.last(), Some(&vec![]));
            assert!(!brake.holds() && brake.due().is_none());
        }
    }

    #[test]
    fn a_line_that_moved_is_marked_anew() {
        let (mut brake, mut source) = (KernelBrake::new(Duration::from_secs(1)), Marked::default());
        brake.mark(0, Some((CgroupId(7), 1)));
        for (mib, times) in [(100, 1), (100, 1), (90, 2), (90, 2), (100, 3)] {
            brake.set(&mut source, Bytes::mib(mib)).expect("it takes them");
            assert_eq!(source.0.len(), times, "{mib}");
        }
    }

    #[test]
    fn a_slice_that_comes_or_goes_is_marked_anew() {
        let (mut brake, mut source) = (KernelBrake::new(Duration::from_secs(1)), Marked::default());
        for (index, mark, expected) in [
            (0, Some((CgroupId(7), 1)), vec![7]),
            (1, Some((CgroupId(8), 2)), vec![7, 8]),
            (0, None, vec![8]),
            // No such place: as if nothing was said.
            (200, Some((CgroupId(9), 1)), vec![8]),
        ] {
            brake.mark(index, mark);
            brake.set(&mut source, Bytes::ZERO).expect("it takes them");
            assert_eq!(source.0.last(), Some(&expected.into_iter().map(CgroupId).collect()));
        }
    }
}
