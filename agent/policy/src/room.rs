//! Room for rows, which is reserved as a whole and brought into memory before they come.
//!
//! Storage for the most workloads that can be watched takes some MiB, of which a node with a hundred pods uses little. The
//! caller reserves it so that it comes as it is touched, and says how many rows are to be there.

use core::mem::MaybeUninit;

/// Brings in what the first `rows` of this storage take, as far as there is room: from then on these are written without a
/// page fault.
pub fn bring_in<T>(storage: &mut Vec<T>, rows: usize) {
    let missing = rows.saturating_sub(storage.len());
    for place in storage.spare_capacity_mut().iter_mut().take(missing) {
        *place = MaybeUninit::zeroed();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const ROW: usize = 256;

    /// Whether the page that a row of this storage is in is in memory (Documentation/admin-guide/mm/pagemap.rst).
    fn is_in_memory(storage: &[MaybeUninit<[u8; ROW]>], row: usize) -> bool {
        let page = storage[row].as_ptr().addr() / rustix::param::page_size();
        let mut entry = [0; 8];
        File::open("/proc/self/pagemap")
            .and_then(|map| map.read_exact_at(&mut entry, 8 * page as u64))
            .expect("readable");
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[test]
    fn what_is_asked_for_is_in_memory_and_no_more() {
        let mut storage: Vec<[u8; ROW]> = Vec::with_capacity(1 << 14);
        storage.push([7; ROW]);
        assert!(!is_in_memory(storage.spare_capacity_mut(), 500), "it is reserved alone");
        bring_in(&mut storage, 1000);
        for (row, expected) in [(1, true), (500, true), (998, true), (5000, false)] {
            assert_eq!(is_in_memory(storage.spare_capacity_mut(), row), expected, "{row}");
        }
        assert_eq!(storage, [[7; ROW]], "what is there stays");
        bring_in(&mut storage, usize::MAX);
        assert!(is_in_memory(storage.spare_capacity_mut(), (1 << 14) - 2), "as far as there is room");
    }
}
