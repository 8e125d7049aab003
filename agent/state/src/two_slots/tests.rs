use super::*;
use proptest::prelude::*;
use std::fs;

const BOOT: BootId = BootId([7; 16]);
const MAGIC: u64 = u64::from_le_bytes(*b"PLIMTEST");
/// A row cannot begin with zero.
static LAYOUT: Layout = Layout { magic: MAGIC, row: 3, rows: 5, is_row: |row| row[0] != 0 };

fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("file");
    (dir, path)
}

fn open(path: &Path) -> (TwoSlots, Found) {
    TwoSlots::open(&LAYOUT, path, BOOT).expect("the directory is writable")
}

fn firsts(image: &Image) -> Vec<u64> {
    image.rows().map(|row| row[0]).collect()
}

fn written(path: &Path, firsts: &[u64]) -> TwoSlots {
    let (mut slots, _) = open(path);
    for first in firsts {
        slots.push().expect("room").copy_from_slice(&[*first, 1, 2]);
    }
    slots.publish();
    slots
}

#[test]
fn rows_are_found_by_the_next_process_of_this_boot_and_by_none_of_another() {
    let (_dir, path) = home();
    assert!(matches!(open(&path).1, Found::New));
    let mut slots = written(&path, &[4, 5, 6]);
    slots.remove(1);
    slots.push().expect("room").copy_from_slice(&[7, 0, 0]);
    slots.publish();
    slots.row_mut(0)[0] = 99;
    let read = TwoSlots::read(&LAYOUT, &path, BOOT).expect("readable").expect("it is of this boot");
    assert_eq!(firsts(&read), [4, 6, 7], "what was not published is not there");
    let (slots, found) = open(&path);
    assert_eq!((firsts(slots.image()), matches!(found, Found::Continued)), (vec![4, 6, 7], true));
    assert!(TwoSlots::read(&LAYOUT, &path, BootId([8; 16])).expect("readable").is_none());
    let (slots, found) = TwoSlots::open(&LAYOUT, &path, BootId([8; 16])).expect("writable");
    assert_eq!((firsts(slots.image()), matches!(found, Found::OtherBoot)), (vec![], true));
}

#[test]
fn the_number_of_rows_is_bounded() {
    let (_dir, path) = home();
    let mut slots = written(&path, &[1, 2, 3, 4, 5]);
    assert!(slots.push().is_none());
    slots.remove(0);
    assert!(slots.push().is_some());
    slots.clear();
    assert_eq!(slots.image().count(), 0);
}

#[test]
fn a_file_that_is_no_such_file_is_moved_aside_and_named() {
    let whole = usize::try_from(LAYOUT.file_bytes()).expect("small");
    // Of an older and of a newer version: each has a number less than the one before.
    let other = [MAGIC + 1, MAGIC - 1].map(|magic| {
        let (_dir, path) = home();
        written(&path, &[1]);
        let mut bytes = fs::read(&path).expect("readable");
        for slot in [0, whole / 2] {
            bytes[slot..slot + 8].copy_from_slice(&magic.to_le_bytes());
        }
        bytes
    });
    let [older, newer] = other;
    for (bytes, why) in [
        (vec![1; 100], "length"),
        (vec![1; whole], "not of this version"),
        (vec![0xff; whole + 1], "length"),
        (older, "not of this version"),
        (newer, "not of this version"),
    ] {
        let (dir, path) = home();
        fs::write(&path, &bytes).expect("writable");
        assert!(TwoSlots::read(&LAYOUT, &path, BOOT).expect("readable").is_none());
        let (slots, found) = open(&path);
        let Found::Broken { aside, why: said } = found else { panic!("{found:?}") };
        assert!(said.contains(why), "{said}");
        assert_eq!(fs::read(&aside).expect("readable"), bytes);
        assert_eq!(aside, dir.path().join("file.broken"));
        assert_eq!(slots.image().count(), 0);
    }
}

#[test]
fn a_file_of_zeros_is_a_new_one() {
    let (_dir, path) = home();
    fs::write(&path, vec![0; usize::try_from(LAYOUT.file_bytes()).expect("small")]).expect("writable");
    assert!(matches!(open(&path).1, Found::New));
}

/// An image with these rows.
fn image(sequence: u64, firsts: &[u64]) -> Image {
    let mut image = Image::empty(&LAYOUT);
    image.words[0] = MAGIC;
    image.words[SEQUENCE] = sequence;
    image.words[COUNT] = firsts.len() as u64;
    for (row, first) in image.words[HEADER..].chunks_exact_mut(LAYOUT.row).zip(firsts) {
        row.copy_from_slice(&[*first, 1, 2]);
    }
    image.words[CHECKSUM] = image.checksum();
    image
}

fn zeros() -> Vec<AtomicU64> {
    (0..2 * LAYOUT.slot()).map(|_| AtomicU64::new(0)).collect()
}

fn put(words: &[AtomicU64], image: &Image) {
    store(slot(&LAYOUT, words, image.words[SEQUENCE]), image.used());
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
        prefix in 0_usize..30,
        in_order: bool,
    ) {
        let words = zeros();
        put(&words, &image(sequence - 1, &older));
        put(&words, &image(sequence, &before));
        let next = image(sequence + 1, &after);
        let target = slot(&LAYOUT, &words, sequence + 1);
        for (index, word) in next.used().iter().enumerate() {
            let here = if in_order { index < prefix } else { arrived >> (index % 64) & 1 == 1 };
            if here {
                target[index].store(*word, Ordering::Relaxed);
            }
        }
        let complete = target.iter().zip(next.used()).all(|(have, want)| have.load(Ordering::Relaxed) == *want);
        let found = newest(&LAYOUT, &words).expect("one slot is whole").expect("it was written");
        let expected = if complete { sequence + 1 } else { sequence };
        // With nothing of it written yet, or all of it, the slots are whole; in between the new one does not check.
        prop_assert_eq!(found.words[SEQUENCE], expected);
        prop_assert_eq!(&firsts(&found), if complete { &after } else { &before });
    }

    /// Any damage is noticed or harmless: no panic, and never a row that was not written.
    #[test]
    fn damage_never_panics(
        at in 0_usize..2 * LAYOUT.slot(), value: u64, rows in proptest::collection::vec(1_u64..99, 0..5)
    ) {
        let words = zeros();
        put(&words, &image(4, &rows));
        words[at].store(value, Ordering::Relaxed);
        if let Ok(Some(found)) = newest(&LAYOUT, &words) {
            prop_assert_eq!(firsts(&found), rows);
        }
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u64>(), 2 * LAYOUT.slot()), is_named: bool) {
        let words: Vec<AtomicU64> = bytes.into_iter().map(AtomicU64::new).collect();
        if is_named {
            words[0].store(MAGIC, Ordering::Relaxed);
        }
        prop_assert!(!matches!(newest(&LAYOUT, &words), Ok(Some(_))));
    }
}
