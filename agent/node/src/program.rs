//! Parts of this program that need not stay in memory: what a panic's backtrace reads, and what the start has read.
#![expect(unsafe_code, reason = "the program's own headers are behind pointers of the C library")]

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::{ptr, slice};
use libc::{Elf64_Phdr, PF_R, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD, dl_phdr_info};
use rustix::mm::{Advice, madvise, munlock};
use rustix::param::page_size;

/// An entry of the dynamic section, as ELF lays it out (System V ABI, chapter 5).
#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

/// Tags of the entries that end the section, and name the address and the size in bytes of the relocations.
const DT_NULL: usize = 0;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;

/// Addresses in this process.
type Part = Range<usize>;

/// Unlocks what a panic's backtrace reads (the tables for unwinding) and what the start has read (relocations), and gives
/// its pages back. All of it is unchanged parts of the file: a read brings it in again.
pub(crate) fn let_go_of_tables() {
    for part in tables().into_iter().flatten() {
        let part = whole_pages(&part, page_size());
        let start = ptr::with_exposed_provenance_mut::<c_void>(part.start);
        // SAFETY: the part is mapped as long as the program runs, and unlocking changes no byte of it.
        let unlocked = unsafe { munlock(start, part.len()) };
        if unlocked.is_ok() {
            // SAFETY: the part is mapped from a file, not writable, and thus reads the same when it is brought in again.
            let _ = unsafe { madvise(start, part.len(), Advice::LinuxDontNeed) };
        }
    }
}

/// The pages that are in the part as a whole.
fn whole_pages(part: &Part, page: usize) -> Part {
    let (start, end) = (part.start.next_multiple_of(page), part.end / page * page);
    start..end.max(start)
}

/// Where the tables for unwinding and the relocations are.
fn tables() -> [Option<Part>; 2] {
    let mut found = [None, None];
    // SAFETY: the callback is given what `found` is, and is called before this returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Looks at the first object, which is the program, and ends the iteration.
unsafe extern "C" fn look(info: *mut dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the C library gives what is valid while this runs.
    let info = unsafe { &*info };
    // SAFETY: it is what `tables` gave.
    let found = unsafe { &mut *found.cast::<[Option<Part>; 2]>() };
    let count = usize::from(info.dlpi_phnum);
    // SAFETY: the program's headers are mapped as long as it runs.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, count) };
    let base = address(info.dlpi_addr);
    *found = [unwinding(headers, base), relocations(headers, base)];
    1
}

/// From the index of the tables for unwinding, which linkers put in front of them, to the end of what is mapped with it,
/// where that is read alone. Code and constants stand before them.
fn unwinding(headers: &[Elf64_Phdr], base: usize) -> Option<Part> {
    let index = headers.iter().find(|header| header.p_type == PT_GNU_EH_FRAME)?;
    let start = base + address(index.p_vaddr);
    let holds = |part: &Part| part.contains(&start);
    let read_only = headers.iter().filter(|header| header.p_type == PT_LOAD && header.p_flags == PF_R);
    let mapped = read_only.map(|header| mapped(header, base)).find(holds)?;
    Some(start..mapped.end)
}

/// The relocations that the start applies, where the program has any.
fn relocations(headers: &[Elf64_Phdr], base: usize) -> Option<Part> {
    let section = mapped(headers.iter().find(|header| header.p_type == PT_DYNAMIC)?, base);
    let first = ptr::with_exposed_provenance::<Dynamic>(section.start);
    // SAFETY: the dynamic section is mapped and aligned as its entries are, and nothing changes it after the start.
    let entries = unsafe { slice::from_raw_parts(first, section.len() / size_of::<Dynamic>()) };
    let entries = entries.iter().take_while(|entry| entry.tag != DT_NULL);
    let value = |tag| entries.clone().find(|entry| entry.tag == tag).map(|entry| entry.value);
    // A C library with a loader of its own writes the address into the entry, musl's start leaves the offset there.
    let table = value(DT_RELA).map(|table| if table < base { base + table } else { table })?;
    Some(table..table + value(DT_RELASZ)?)
}

/// Where a segment is in memory.
fn mapped(header: &Elf64_Phdr, base: usize) -> Part {
    let start = base + address(header.p_vaddr);
    start..start + address(header.p_memsz)
}

/// Addresses of the ELF class that this program has are pointers' size.
fn address(value: u64) -> usize {
    usize::try_from(value).expect("Plimsoll is built for processors of 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::process::{MemoryPageFlags, PageInfo};

    #[test]
    fn pages_that_hold_anything_else_stay() {
        assert_eq!(whole_pages(&(0x1001..0x4fff), 0x1000), 0x2000..0x4000);
        assert_eq!(whole_pages(&(0x1000..0x2000), 0x1000), 0x1000..0x2000);
        assert_eq!(whole_pages(&(0x1001..0x1fff), 0x1000), 0x2000..0x2000);
    }

    #[test]
    fn tables_are_in_what_is_mapped_from_the_program_and_is_read_alone() {
        let maps = procfs::process::Process::myself().and_then(|process| process.maps()).expect("readable");
        let program = std::env::current_exe().expect("it has a path");
        let [unwinding, relocations] = tables();
        for part in [unwinding.expect("a panic's backtrace needs them"), relocations.expect("it can be anywhere")] {
            let holds =
                |map: &&procfs::process::MemoryMap| (map.address.0..map.address.1).contains(&(part.start as u64));
            let map = maps.iter().find(holds).expect("it is mapped");
            assert_eq!(map.pathname, procfs::process::MMapPath::Path(program.clone()));
            assert_eq!(map.perms, procfs::process::MMPermissions::READ | procfs::process::MMPermissions::PRIVATE);
            assert!(part.end as u64 <= map.address.1, "{part:x?} in {map:x?}");
            assert!(part.len() > page_size(), "{part:x?}");
        }
    }

    #[test]
    fn what_is_given_back_is_not_in_memory_until_it_is_read_and_then_as_before() {
        let part = tables()[0].clone().expect("a panic's backtrace needs them");
        let read = || {
            // SAFETY: it is mapped, and read alone.
            unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(part.start), part.len()) }.to_vec()
        };
        let page = page_size();
        let pages = whole_pages(&part, page);
        let present = || {
            let mut map = procfs::process::Process::myself().and_then(|process| process.pagemap()).expect("readable");
            let infos = map.get_range_info(pages.start / page..pages.end / page).expect("readable");
            infos
                .into_iter()
                .filter(|info| matches!(info, PageInfo::MemoryPage(flags) if flags.contains(MemoryPageFlags::PRESENT)))
                .count()
        };
        let before = read();
        assert_eq!(present(), pages.len() / page);
        let_go_of_tables();
        // Another test's panic may read some of it meanwhile.
        assert!(present() < pages.len() / page / 2);
        assert_eq!(read(), before);
    }
}
