use super::*;
use proptest::prelude::*;
use std::fs;

const BOOT_A: BootId = BootId([7; 16]);

fn intent(step: Step, cgroup: u64, path: &[u8]) -> Intent<'_> {
    Intent { step, cgroup: CgroupId(cgroup), path, since: MonotonicNs(5) }
}

fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("record");
    (dir, path)
}

fn open(path: &Path) -> (Record, Found) {
    Record::open(path, BOOT_A).expect("the directory is writable")
}

#[test]
fn entries_are_found_by_the_next_process() {
    let (_dir, path) = home();
    let (mut record, found) = open(&path);
    assert!(matches!(found, Found::New));
    record.write(intent(Step::Freezing, 1, b"a/\xff\n")).expect("room");
    record.write(intent(Step::Frozen, 1, b"a/\xff\n")).expect("room");
    record.write(intent(Step::Killing, 1, b"a/\xff\n")).expect("room");
    record.write(intent(Step::Freezing, 2, &[b'x'; 300])).expect("room");
    let entries = record.entries();
    assert_eq!(
        entries.iter().map(|entry| entry.step).collect::<Vec<_>>(),
        [Step::Frozen, Step::Killing, Step::Freezing]
    );
    assert_eq!(entries[0].path.as_deref(), Some(&b"a/\xff\n"[..]));
    assert_eq!(entries[2].path, None);
    drop(record);
    let (mut record, found) = open(&path);
    assert!(matches!(found, Found::Continued));
    assert_eq!(record.entries(), entries);
    record.clear(CgroupId(1), Action::Brake);
    record.clear(CgroupId(9), Action::Brake);
    assert_eq!(record.entries(), entries[1..]);
}

#[test]
fn another_boot_begins_anew() {
    let (_dir, path) = home();
    open(&path).0.write(intent(Step::Frozen, 1, b"a")).expect("room");
    let (record, found) = Record::open(&path, BootId([8; 16])).expect("writable");
    assert!(matches!(found, Found::OtherBoot));
    assert_eq!(record.entries(), []);
}

#[test]
fn the_number_of_entries_is_bounded() {
    let (_dir, path) = home();
    let (mut record, _) = open(&path);
    for cgroup in 0..ROWS as u64 {
        record.write(intent(Step::Freezing, cgroup, b"a")).expect("room");
    }
    assert_eq!(record.write(intent(Step::Freezing, 999, b"a")), Err(JournalFull));
    record.write(intent(Step::Frozen, 3, b"a")).expect("its place is there");
    record.clear(CgroupId(0), Action::Brake);
    record.write(intent(Step::Freezing, 999, b"a")).expect("room again");
    assert_eq!(record.entries().len(), ROWS);
}

#[test]
fn a_file_that_is_no_record_is_moved_aside_and_named() {
    let whole = usize::try_from(FILE_BYTES).expect("small");
    for (bytes, why) in
        [(vec![1; 100], "length"), (vec![1; whole], "not a run record"), (vec![0xff; whole + 1], "length")]
    {
        let (dir, path) = home();
        fs::write(&path, &bytes).expect("writable");
        let (record, found) = open(&path);
        let Found::Broken { aside, why: said } = found else { panic!("{found:?}") };
        assert!(said.contains(why), "{said}");
        assert_eq!(fs::read(&aside).expect("readable"), bytes);
        assert_eq!(aside, dir.path().join("record.broken"));
        assert_eq!(record.entries(), []);
    }
}

#[test]
fn a_file_of_zeros_is_a_new_record() {
    let (_dir, path) = home();
    fs::write(&path, vec![0; usize::try_from(FILE_BYTES).expect("small")]).expect("writable");
    assert!(matches!(open(&path).1, Found::New));
}

/// The words of a file, and the image of a record with these rows.
fn image(sequence: u64, cgroups: &[u64]) -> Vec<u64> {
    let mut image = vec![0; SLOT];
    image[0] = MAGIC;
    image[SEQUENCE] = sequence;
    image[COUNT] = cgroups.len() as u64;
    for (index, cgroup) in cgroups.iter().enumerate() {
        let start = HEADER + index * ROW;
        fill(&mut image[start..start + ROW], &intent(Step::Frozen, *cgroup, b"a/b"));
    }
    let used = used(&image);
    image[CHECKSUM] = checksum(&image[..used]);
    image.truncate(used);
    image
}

proptest! {
    /// However much of a write has happened, in whatever order the words came, one whole slot is found: the new one
    /// only if it is complete.
    #[test]
    fn a_torn_write_leaves_the_slot_before_it(
        before in proptest::collection::vec(1_u64..99, 0..5),
        older in proptest::collection::vec(1_u64..99, 0..5),
        after in proptest::collection::vec(1_u64..99, 0..5),
        sequence in 2_u64..99,
        arrived: u64,
        prefix in 0_usize..400,
        in_order: bool,
    ) {
        let words: Vec<AtomicU64> = (0..2 * SLOT).map(|_| AtomicU64::new(0)).collect();
        store(slot(&words, sequence - 1), &image(sequence - 1, &older));
        store(slot(&words, sequence), &image(sequence, &before));
        let next = image(sequence + 1, &after);
        let target = slot(&words, sequence + 1);
        for (index, word) in next.iter().enumerate() {
            let here = if in_order { index < prefix } else { arrived >> (index % 64) & 1 == 1 };
            if here {
                target[index].store(*word, Ordering::Relaxed);
            }
        }
        let complete = target.iter().zip(&next).all(|(have, want)| have.load(Ordering::Relaxed) == *want);
        let found = newest(&words).expect("one slot is whole").expect("it was written");
        let expected = if complete { sequence + 1 } else { sequence };
        // With nothing of it written yet, or all of it, the slots are whole; in between the new one does not check.
        prop_assert_eq!(found[SEQUENCE], expected);
        let rows = if complete { &after } else { &before };
        let cgroups: Vec<u64> = (0..count(&found)).map(|index| row(&found, index)[1]).collect();
        prop_assert_eq!(&cgroups, rows);
    }

    /// Any damage is noticed or harmless: no panic, and never a row that was not written.
    #[test]
    fn damage_never_panics(at in 0_usize..2 * SLOT, value: u64, cgroups in proptest::collection::vec(1_u64..99, 0..5)) {
        let words: Vec<AtomicU64> = (0..2 * SLOT).map(|_| AtomicU64::new(0)).collect();
        store(slot(&words, 4), &image(4, &cgroups));
        words[at].store(value, Ordering::Relaxed);
        if let Ok(Some(found)) = newest(&words) {
            let rows: Vec<u64> = (0..count(&found)).map(|index| row(&found, index)[1]).collect();
            prop_assert_eq!(rows, cgroups);
        }
    }
}
