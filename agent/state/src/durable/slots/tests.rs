use super::*;
use crate::durable::entry::{Entry, Facts};
use proptest::prelude::*;
use std::collections::BTreeMap;

const BOOT: BootId = BootId([3; 16]);

/// What a disk does at one of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The step fails.
    Errno(Errno),
    /// The process is killed in it.
    Killed,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    /// As processes see it.
    cached: Vec<u8>,
    /// As it is on the disk.
    synced: Vec<u8>,
}

/// A directory with two files, whose steps fail or are the last ones, and which can lose its power.
#[derive(Clone, Debug, Default)]
struct Model {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    steps: usize,
    /// At this step, of a write so many bytes.
    fault: Option<(usize, Fault, usize)>,
    is_over: bool,
}

impl Model {
    /// Counts a step. How much of a write is done, and what comes of the step.
    fn step(&mut self) -> (usize, Result<(), Errno>) {
        self.steps += 1;
        if self.is_over {
            return (0, Err(Errno::IO));
        }
        match self.fault {
            Some((at, fault, bytes)) if at + 1 == self.steps => {
                self.is_over = fault == Fault::Killed;
                (bytes, Err(if let Fault::Errno(errno) = fault { errno } else { Errno::IO }))
            }
            _ => (usize::MAX, Ok(())),
        }
    }

    /// What another process finds.
    fn killed(mut self) -> Self {
        (self.fault, self.is_over, self.steps) = (None, false, 0);
        self
    }

    /// What is found when the power went: of what was not synced, whatever `luck` says, in blocks.
    fn without_power(self, luck: u64) -> Self {
        const BLOCK: usize = 16;
        let mut now = self.killed();
        for (number, inode) in now.inodes.iter_mut().enumerate() {
            let is_there = |block: usize| luck.rotate_right(u32::try_from(number * 7 + block).unwrap_or(0)) & 1 == 1;
            let mut mixed = inode.synced.clone();
            for (block, bytes) in inode.cached.chunks(BLOCK).enumerate().filter(|(block, _)| is_there(*block)) {
                let at = block * BLOCK;
                mixed.resize(mixed.len().max(at + bytes.len()), 0);
                mixed[at..at + bytes.len()].copy_from_slice(bytes);
            }
            (inode.cached, inode.synced) = (mixed.clone(), mixed);
        }
        if luck & 1 == 0 {
            now.names = now.synced_names.clone();
        }
        now.synced_names = now.names.clone();
        now
    }
}

impl Disk for Model {
    type File = usize;

    fn path(&self, slot: usize) -> PathBuf {
        slot.to_string().into()
    }

    fn read(&self, slot: usize) -> Result<Option<Vec<u8>>, String> {
        Ok(self.names.get(&slot.to_string()).map(|inode| self.inodes[*inode].cached.clone()))
    }

    fn set_aside(&mut self, slot: usize, aside: Aside) -> Result<(), Errno> {
        self.step().1?;
        if let Some(inode) = self.names.remove(&slot.to_string()) {
            self.names.insert(format!("{slot}.{aside:?}"), inode);
        }
        Ok(())
    }

    fn open(&mut self, slot: usize) -> Result<usize, Errno> {
        self.step().1?;
        let next = self.inodes.len();
        let inode = *self.names.entry(slot.to_string()).or_insert(next);
        if inode == next {
            self.inodes.push(Inode::default());
        }
        Ok(inode)
    }

    fn reserve(&mut self, _file: &usize, _bytes: usize) {
        let _ = self.step();
    }

    fn write(&mut self, file: &usize, bytes: &[u8]) -> Result<(), Errno> {
        let (done, result) = self.step();
        let done = &bytes[..bytes.len().min(done)];
        let cached = &mut self.inodes[*file].cached;
        cached.resize(cached.len().max(done.len()), 0);
        cached[..done.len()].copy_from_slice(done);
        result
    }

    fn sync(&mut self, file: &usize) -> Result<(), Errno> {
        self.step().1?;
        let inode = &mut self.inodes[*file];
        inode.synced.clone_from(&inode.cached);
        Ok(())
    }

    fn sync_names(&mut self) -> Result<(), Errno> {
        self.step().1?;
        self.synced_names.clone_from(&self.names);
        Ok(())
    }
}

/// Content of another length each.
fn content(number: u32) -> Content {
    let mut content = Content::default();
    let text = format!("{number} {}", "x".repeat((number as usize * 37) % 90));
    content.put(&Entry::Facts(Facts { uid: "u".into(), text })).expect("there is room");
    content
}

fn body(number: u32) -> Vec<u8> {
    content(number).lines().flatten().copied().collect()
}

fn restored(disk: Model) -> (Option<Vec<u8>>, Vec<Problem>) {
    let (_, restored, problems) = Slots::open(disk, BOOT);
    (restored.map(|restored| restored.body), problems)
}

/// Writes these contents. Each is tried twice: only a kill is not overcome. What was acknowledged last, and tried
/// last.
fn write_all(slots: &mut Slots<Model>, numbers: std::ops::Range<u32>) -> (Option<u32>, Option<u32>) {
    let (mut acknowledged, mut tried) = (None, None);
    for number in numbers {
        tried = Some(number);
        if slots.write(&content(number)).is_ok() || !slots.disk.is_over && slots.write(&content(number)).is_ok() {
            acknowledged = Some(number);
        }
        if slots.disk.is_over {
            break;
        }
    }
    (acknowledged, tried)
}

/// How many steps there are in four writes.
fn all_steps() -> usize {
    let (mut slots, ..) = Slots::open(Model::default(), BOOT);
    assert_eq!(write_all(&mut slots, 0..4), (Some(3), Some(3)));
    slots.disk.steps
}

fn check(disk: Model, acknowledged: Option<u32>, tried: Option<u32>, what: &str) {
    let (found, problems) = restored(disk.clone());
    let allowed = [acknowledged.map(body), tried.map(body)];
    assert!(allowed.contains(&found), "{what}: {found:?} of {acknowledged:?}, {tried:?}: {problems:?}");
    // And the store works on: what is written next is found next.
    let (mut slots, ..) = Slots::open(disk, BOOT);
    for number in 17..19 {
        slots.write(&content(number)).expect("the disk works again");
        assert_eq!(restored(slots.disk.clone()), (Some(body(number)), problems_after(&slots)), "{what}");
    }
    assert_eq!(restored(slots.disk).1, [], "{what}");
}

/// What is still said of the file that was not written yet.
fn problems_after(slots: &Slots<Model>) -> Vec<Problem> {
    restored(slots.disk.clone()).1.into_iter().filter(|_| slots.aside[slots.target].is_some()).collect()
}

#[test]
fn killed_at_any_step_and_after_any_byte_old_or_new_is_found() {
    for written_before in 0..3 {
        let (mut earlier, ..) = Slots::open(Model::default(), BOOT);
        let (before, _) = write_all(&mut earlier, 0..written_before);
        for step in 0..all_steps() {
            for bytes in (0..200).step_by(3) {
                let fault = Some((step, Fault::Killed, bytes));
                let (mut slots, ..) = Slots::open(Model { fault, ..earlier.disk.clone().killed() }, BOOT);
                let (acknowledged, tried) = write_all(&mut slots, 3..7);
                assert!(slots.disk.is_over);
                let what = format!("after {written_before}, step {step}, {bytes} bytes");
                check(slots.disk.killed(), acknowledged.or(before), tried, &what);
            }
        }
    }
}

#[test]
fn any_step_may_fail_and_nothing_that_was_durable_is_lost() {
    for step in 0..all_steps() {
        for errno in [Errno::NOSPC, Errno::ROFS, Errno::IO, Errno::DQUOT, Errno::ACCESS] {
            for bytes in [0, 20, 100] {
                let fault = Some((step, Fault::Errno(errno), bytes));
                let (mut slots, ..) = Slots::open(Model { fault, ..Model::default() }, BOOT);
                assert_eq!(write_all(&mut slots, 0..4), (Some(3), Some(3)), "{errno} at step {step}");
                assert_eq!(restored(slots.disk), (Some(body(3)), Vec::new()), "{errno} at step {step}");
            }
        }
    }
}

#[test]
fn what_a_failed_step_says_is_named() {
    let seen: Vec<String> = (0..5)
        .map(|step| {
            let fault = Some((step, Fault::Errno(Errno::NOSPC), 0));
            let (mut slots, ..) = Slots::open(Model { fault, ..Model::default() }, BOOT);
            slots.write(&content(0)).err().map_or(String::new(), |error| error.what.to_owned())
        })
        .collect();
    assert_eq!(seen, ["open", "", "write", "sync", "sync the directory of"]);
}

#[test]
fn a_damaged_newest_file_leaves_the_one_before_it_and_is_kept_aside() {
    let (mut slots, ..) = Slots::open(Model::default(), BOOT);
    write_all(&mut slots, 0..3);
    let mut disk = slots.disk.killed();
    let damaged = &mut disk.inodes[0].cached;
    damaged[60] ^= 4;
    let damaged = damaged.clone();
    let (found, problems) = restored(disk.clone());
    assert_eq!(found, Some(body(1)));
    assert!(matches!(&problems[..], [Problem::NotUsed { path, .. }] if path == std::path::Path::new("0")));
    let (mut slots, ..) = Slots::open(disk, BOOT);
    slots.write(&content(5)).expect("it works");
    assert_eq!(restored(slots.disk.clone()), (Some(body(5)), Vec::new()));
    assert_eq!(slots.disk.inodes[slots.disk.names["0.Broken"]].cached, damaged);
}

/// A directory in which these versions wrote the two files, the second one last.
fn written_by(first: [u32; 2], second: [u32; 2]) -> Model {
    let mut disk = Model::default();
    for (slot, versions) in [first, second].into_iter().enumerate() {
        let sequence = 40 + slot as u64;
        let cached = image::encode_as(versions, BOOT, sequence, content(u32::try_from(slot).expect("small")).lines());
        disk.inodes.push(Inode { synced: cached.clone(), cached });
        disk.names.insert(slot.to_string(), slot);
    }
    disk.synced_names.clone_from(&disk.names);
    disk
}

#[test]
fn a_newer_file_is_read_where_it_may_be_and_never_lost() {
    for (versions, found, problem) in
        [([1, 1], 1, None), ([3, 1], 1, Some("is of version 3")), ([3, 3], 0, Some("it is of version 3"))]
    {
        let disk = written_by([1, 1], versions);
        let newer = disk.inodes[1].cached.clone();
        let (mut slots, restored, problems) = Slots::open(disk, BOOT);
        assert_eq!(restored.expect("one can be read").body, body(found), "{versions:?}");
        assert_eq!(problems.len(), usize::from(problem.is_some()), "{problems:?}");
        assert!(
            problems.iter().all(|said| problem.is_some_and(|text| said.to_string().contains(text))),
            "{problems:?}"
        );
        for number in 5..8 {
            slots.write(&content(number)).expect("it works");
            let all: Vec<&Vec<u8>> = slots.disk.names.values().map(|inode| &slots.disk.inodes[*inode].cached).collect();
            // Of two of this version the older one is written over.
            assert!(problem.is_none() || all.contains(&&newer), "{versions:?}");
            // The newer version comes back, and finds what was written since.
            let (_, restored, _) = Slots::open(slots.disk.clone(), BOOT);
            assert_eq!(restored.expect("it was written").body, body(number), "{versions:?}");
            assert!(slots.sequence > 41, "{versions:?}");
        }
        assert_eq!(slots.disk.names.contains_key("1.Newer"), problem.is_some(), "{versions:?}");
    }
}

proptest! {
    /// Power fails at any step, with any part of what was not synced on the disk.
    #[test]
    fn without_power_old_or_new_is_found(step in 0..40_usize, bytes in 0..200_usize, luck: u64) {
        let fault = Some((step, Fault::Killed, bytes));
        let (mut slots, ..) = Slots::open(Model { fault, ..Model::default() }, BOOT);
        let (acknowledged, tried) = write_all(&mut slots, 0..4);
        check(slots.disk.without_power(luck), acknowledged, tried, "without power");
    }

    /// A step fails, then power does.
    #[test]
    fn a_failed_sync_is_not_believed(step in 0..40_usize, kill in 0..40_usize, bytes in 0..200_usize, luck: u64) {
        let fault = Some((step, Fault::Errno(Errno::IO), bytes));
        let (mut slots, ..) = Slots::open(Model { fault, ..Model::default() }, BOOT);
        let first = write_all(&mut slots, 0..2);
        slots.disk.fault = Some((slots.disk.steps + kill, Fault::Killed, bytes));
        let second = write_all(&mut slots, 2..4);
        check(slots.disk.without_power(luck), second.0.or(first.0), second.1, "after a failure");
    }

    /// A bit flips anywhere in either file: what is found was written, and if it is not the newest, that is said.
    #[test]
    fn a_flipped_bit_costs_one_generation_and_is_said(slot in 0..2_usize, at: usize, bit in 0..8_u32) {
        let (mut slots, ..) = Slots::open(Model::default(), BOOT);
        write_all(&mut slots, 0..4);
        let mut disk = slots.disk.killed();
        let cached = &mut disk.inodes[slot].cached;
        let at = at % cached.len();
        cached[at] ^= 1 << bit;
        let (found, problems) = restored(disk);
        prop_assert!(found == Some(body(3)) || found == Some(body(2)) && !problems.is_empty());
    }
}
