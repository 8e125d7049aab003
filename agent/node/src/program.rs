//! Parts of this program that need not stay in memory: what a panic's backtrace reads, and what the start alone has used.
#![expect(unsafe_code, reason = "the program's own headers are behind pointers of the C library")]

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::{ptr, slice};
use libc::{Elf64_Phdr, PF_W, PF_X, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD, dl_phdr_info};
use rustix::mm::{Advice, MlockFlags, madvise, mlock_with, munlock};

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

/// Gives all of this program's code and constants back, once the start is over or something rare was done: what is used from
/// then on is mapped again as it is used, and what that alone has used can be reclaimed. For a process that may wait for a disk;
/// locked parts stay.
pub fn let_go() {
    if let Some(program) = Program::find() {
        program.mapped_without(PF_W).for_each(|part| give_back(&part));
    }
}

/// Unlocks what a panic's backtrace reads (the tables for unwinding) and what the start has read (relocations), and gives
/// its pages back.
pub(crate) fn let_go_of_tables() {
    tables().iter().flatten().for_each(let_go_of);
}

/// The same of this part of its code or constants, of which what is used after all stays from then on, with pages beside it
/// that the kernel maps with the same fault: a linker knows what is used by names alone. What is none of it is left alone.
pub(crate) fn let_go_of_part(part: &Part) {
    let holds_it = |mapped: Part| mapped.start <= part.start && part.end <= mapped.end;
    if Program::find().is_some_and(|program| program.mapped_without(PF_W).any(holds_it)) {
        let_go_of(part);
        let part = whole_pages(part, page_size());
        // Refused, such pages can be reclaimed, as they could be before.
        // SAFETY: the part is mapped as long as the program runs, and locking changes no byte of it.
        let _ = unsafe { mlock_with(ptr::with_exposed_provenance_mut(part.start), part.len(), MlockFlags::ONFAULT) };
    }
}

/// Unlocks a part that is never written, and gives its pages back.
fn let_go_of(part: &Part) {
    let part = whole_pages(part, page_size());
    // SAFETY: the part is mapped as long as the program runs, and unlocking changes no byte of it.
    let unlocked = unsafe { munlock(ptr::with_exposed_provenance_mut(part.start), part.len()) };
    if unlocked.is_ok() {
        give_back(&part);
    }
}

/// Gives the pages of a part back that is never written, thus unchanged in the file: a read brings it in again.
fn give_back(part: &Part) {
    let part = whole_pages(part, page_size());
    // SAFETY: the part is mapped from a file, not writable, and thus reads the same when it is brought in again.
    let _ = unsafe { madvise(ptr::with_exposed_provenance_mut(part.start), part.len(), Advice::LinuxDontNeed) };
}

/// Bytes. A confined process may not ask the kernel for what the C library knows.
fn page_size() -> usize {
    // SAFETY: it takes no pointer.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("pages have a size")
}

/// The pages that are in the part as a whole.
fn whole_pages(part: &Part, page: usize) -> Part {
    let (start, end) = (part.start.next_multiple_of(page), part.end / page * page);
    start..end.max(start)
}

/// Where the tables for unwinding and the relocations are.
fn tables() -> [Option<Part>; 2] {
    Program::find().map_or([None, None], |program| [program.unwinding(), program.relocations()])
}

/// This program in memory.
#[derive(Clone, Copy)]
struct Program {
    headers: &'static [Elf64_Phdr],
    base: usize,
}

impl Program {
    /// Absent where the C library does not know its headers.
    fn find() -> Option<Self> {
        let mut found = None;
        // SAFETY: the callback is given what `found` is, and is called before this returns.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
        found
    }

    /// What is mapped of it with none of these flags. Without `PF_W` it is never written, by the start neither.
    fn mapped_without(self, flags: u32) -> impl Iterator<Item = Part> {
        let is_without = move |header: &&Elf64_Phdr| header.p_type == PT_LOAD && header.p_flags & flags == 0;
        self.headers.iter().filter(is_without).map(move |header| mapped(header, self.base))
    }

    /// From the index of the tables for unwinding, which linkers put in front of them, to the end of what is mapped with
    /// it. Code and constants stand before them.
    fn unwinding(self) -> Option<Part> {
        let index = self.headers.iter().find(|header| header.p_type == PT_GNU_EH_FRAME)?;
        let start = self.base + address(index.p_vaddr);
        let mapped = self.mapped_without(PF_W | PF_X).find(|part| part.contains(&start))?;
        Some(start..mapped.end)
    }

    /// The relocations that the start applies, where the program has any.
    fn relocations(self) -> Option<Part> {
        let section = mapped(self.headers.iter().find(|header| header.p_type == PT_DYNAMIC)?, self.base);
        let first = ptr::with_exposed_provenance::<Dynamic>(section.start);
        // SAFETY: the dynamic section is mapped and aligned as its entries are, and nothing changes it after the start.
        let entries = unsafe { slice::from_raw_parts(first, section.len() / size_of::<Dynamic>()) };
        let entries = entries.iter().take_while(|entry| entry.tag != DT_NULL);
        let value = |tag| entries.clone().find(|entry| entry.tag == tag).map(|entry| entry.value);
        // A C library with a loader of its own writes the address into the entry, musl's start leaves the offset there.
        let start = value(DT_RELA).map(|table| if table < self.base { self.base + table } else { table })?;
        let end = start + value(DT_RELASZ)?;
        self.mapped_without(PF_W).any(|part| part.start <= start && end <= part.end).then_some(start..end)
    }
}

/// Looks at the first object, which is the program, and ends the iteration.
unsafe extern "C" fn look(info: *mut dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the C library gives what is valid while this runs.
    let info = unsafe { &*info };
    // SAFETY: the program's headers are mapped as long as it runs.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    // SAFETY: it is what `Program::find` gave.
    unsafe { *found.cast::<Option<Program>>() = Some(Program { headers, base: address(info.dlpi_addr) }) };
    1
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
    use procfs::process::{MemoryPageFlags, PageInfo, VmFlags};

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
        assert!(present() > pages.len() / page / 2);
        let_go();
        assert!(present() < pages.len() / page / 2);
        assert_eq!(read(), before);

        let is_locked = || {
            let maps = procfs::process::Process::myself().and_then(|process| process.smaps()).expect("readable");
            let map = maps.iter().find(|map| (map.address.0..map.address.1).contains(&(pages.start as u64)));
            map.expect("it is mapped").extension.vm_flags.contains(VmFlags::LO)
        };
        assert!(!is_locked());
        let_go_of_part(&part);
        assert!(is_locked() && present() < pages.len() / page / 2, "it is brought in as it is used");
        assert_eq!(read(), before);
    }
}
