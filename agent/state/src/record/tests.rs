use super::*;
use std::path::PathBuf;

const BOOT_A: BootId = BootId([7; 16]);

fn intent(step: Step, cgroup: u64, path: &[u8]) -> Intent<'_> {
    Intent { step, cgroup: CgroupId(cgroup), path, since: MonotonicNs(5), by_parts: cgroup == 2 }
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
    for cgroup in 0..LAYOUT.rows as u64 {
        record.write(intent(Step::Freezing, cgroup, b"a")).expect("room");
    }
    assert_eq!(record.write(intent(Step::Freezing, 999, b"a")), Err(JournalFull));
    record.write(intent(Step::Frozen, 3, b"a")).expect("its place is there");
    record.clear(CgroupId(0), Action::Brake);
    record.write(intent(Step::Freezing, 999, b"a")).expect("room again");
    assert_eq!(record.entries().len(), LAYOUT.rows);
}

/// The file by which a later build takes over what an earlier one wrote.
#[test]
fn its_layout_is_as_it_was() {
    let (_dir, path) = home();
    open(&path).0.write(intent(Step::Frozen, 9, b"a/b")).expect("room");
    let bytes = std::fs::read(&path).expect("readable");
    let words: Vec<u64> = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("whole"))).collect();
    assert_eq!(words.len(), 2 * (6 + 64 * 35));
    let header = [u64::from_le_bytes(*b"PLIMSOLL"), 2, 0x0707_0707_0707_0707, 0x0707_0707_0707_0707, 1];
    assert_eq!(words[..5], header, "the second write is in the first slot");
    assert_eq!(words[6..10], [2 << 32 | 3, 9, 5, u64::from_le_bytes(*b"a/b\0\0\0\0\0")]);
}
