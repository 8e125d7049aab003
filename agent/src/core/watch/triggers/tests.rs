use super::super::super::inventory::{eventfd, wake};
use super::super::End;
use super::super::testing::{SLICE, Scene, slice_policy};
use super::*;
use arrayvec::ArrayVec;
use core::time::Duration;
use plimsoll_node::clock::monotonic;
use plimsoll_sense::{Descriptor, Kind, MAX_DESCRIPTORS};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Readable without end, and nothing can be read: a record that is reserved and not submitted.
struct Busy {
    ready: OwnedFd,
    drains: Arc<AtomicU32>,
}

impl Source for Busy {
    fn kind(&self) -> Kind {
        Kind::Ebpf
    }

    fn descriptors(&self) -> ArrayVec<Descriptor<'_>, MAX_DESCRIPTORS> {
        let descriptor = Descriptor { fd: self.ready.as_fd(), interest: Interest::Readable, token: 0 };
        std::iter::once(descriptor).collect()
    }

    fn drain(&mut self, _: u32, _: &mut WakeList) -> Result<(), SenseError> {
        self.drains.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_record_that_stays_busy_leaves_the_cpu_to_other_threads_and_the_timers_go_on() {
    let (ready, drains) = (eventfd().expect("a descriptor"), Arc::new(AtomicU32::new(0)));
    wake(&ready);
    let mut scene = Scene::woken_by(Busy { ready, drains: Arc::clone(&drains) }, slice_policy(1));
    scene.cgroup("batch", 0);
    scene.joins(0, "batch");
    for (tokens, in_a_row) in
        [(&[Ready::Source(0)][..], 1), (&[Ready::Source(0)], 2), (&[], 0), (&[Ready::Source(0)], 1)]
    {
        scene.turn(tokens, Duration::ZERO);
        assert_eq!(scene.watch.triggers.empty_drains(), in_a_row);
    }
    scene.watch.schedule.set_slow(Duration::from_millis(20), monotonic());
    let term = scene.watch.triggers.signals().term.try_clone().expect("a descriptor more");
    let tree = scene.tree.path().to_owned();
    let kill = tree.join("batch/cgroup.kill");
    let write = move |file: &str, text: &str| fs::write(tree.join(file), text).expect("writable");
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        write("batch/memory.current", &format!("{}\n", (SLICE - 1) << 20));
        write("slice/memory.current", &format!("{}\n", (SLICE - 1) << 20));
        for _ in 0..400 {
            std::thread::sleep(Duration::from_millis(50));
            if fs::read_to_string(&kill).is_ok_and(|text| text == "1") {
                break;
            }
        }
        write("slice/memory.current", "0\n");
        write("batch/cgroup.events", "populated 0\n");
        wake(&term);
    });
    let begun = monotonic();
    assert_eq!(scene.watch.run(), End::Asked);
    let (took, drains) = (monotonic().since(begun), drains.load(Ordering::Relaxed));
    other.join().expect("it wrote everything");
    assert_eq!(scene.text("batch", "cgroup.kill"), "1", "the slow timer took no sample");
    // Twice at once, then once in a millisecond.
    assert!(u128::from(drains) <= 10 + took.as_millis(), "{drains} drains in {took:?}");
}
