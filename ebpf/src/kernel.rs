//! The running kernel as these programs see it: addresses and member offsets that the agent resolved before loading, and
//! reads through them. A member that this kernel lacks is [`NO_OFFSET`], a symbol that is hidden has address zero.

use aya_ebpf::{Global, helpers::bpf_probe_read_kernel};
use plimsoll_abi::{ABSENT, NO_OFFSET};

/// Addresses, in kallsyms or an element of an array found there.
macro_rules! addresses {
    ($($name:ident),* $(,)?) => { $( #[unsafe(no_mangle)] pub static $name: Global<u64> = Global::new(0); )* };
}

/// Byte offsets of members.
macro_rules! offsets {
    ($($name:ident),* $(,)?) => { $( #[unsafe(no_mangle)] pub static $name: Global<u32> = Global::new(NO_OFFSET); )* };
}

addresses! {
    FREE_PAGES, FILE_PAGES, ANON_MAPPED, INACTIVE_FILE, ACTIVE_FILE, SLAB_RECLAIMABLE, MISC_RECLAIMABLE,
    NR_THREADS, MEMORY_SUBSYS,
}

offsets! {
    COUNTER_USAGE, COUNTER_PARENT, MEMCG_COUNTER, MEMCG_CSS, MEMCG_CGROUP, MEMCG_SUBSYS,
    CGROUP_KN, KN_ID, CGROUP_LEVEL, CGROUP_ANCESTORS, CGROUP_MEMORY,
    TASK_LEADER, TASK_START, TASK_TGID, TASK_CSS_SET, CSS_SET_CGROUP, TASK_MM, MM_TOTAL_VM, MM_RSS, MM_RSS_STRIDE,
    TASK_COMM, TASK_SIGNAL, SIGNAL_FLAGS, SIGNAL_CORE,
    SOCKET_SK, SOCK_FAMILY, RX_RING_LENGTH, RX_RING_ORDER, TX_RING_LENGTH, TX_RING_ORDER,
    OC_CHOSEN, OC_CONSTRAINT, OC_MEMCG, CONSTRAINT_CPUSET, CONSTRAINT_MEMORY_POLICY, CONSTRAINT_MEMCG,
}

/// How long a cgroup may stall within a second before an event is submitted, in nanoseconds.
#[unsafe(no_mangle)]
pub static STALL_BURST: Global<u64> = Global::new(u64::MAX);

/// Not zero where the in-kernel brake is configured; otherwise the verifier drops its code.
#[unsafe(no_mangle)]
pub static KERNEL_BRAKE: Global<u32> = Global::new(0);

/// The word at `address`; `None` where the address is zero or cannot be read.
#[inline(always)]
pub fn word(address: u64) -> Option<u64> {
    if address == 0 {
        return None;
    }
    // SAFETY: the helper copies from any kernel address and fails where it cannot.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.ok()
}

/// The 32 bits at `address`, likewise.
#[inline(always)]
pub fn half(address: u64) -> Option<u32> {
    if address == 0 {
        return None;
    }
    // SAFETY: the helper copies from any kernel address and fails where it cannot.
    unsafe { bpf_probe_read_kernel(address as *const u32) }.ok()
}

/// A page count of the kernel's own: signed there, and briefly below zero while CPUs fold their parts in.
#[inline(always)]
pub fn pages(address: u64) -> u64 {
    match word(address) {
        Some(pages) if pages.cast_signed() > 0 => pages,
        _ => 0,
    }
}

/// The word in the member at `offset` of the struct at `base`.
#[inline(always)]
pub fn member(base: u64, offset: &Global<u32>) -> Option<u64> {
    let offset = offset.load();
    if base == 0 || offset == NO_OFFSET { None } else { word(base + u64::from(offset)) }
}

/// The 32 bits in the member at `offset` of the struct at `base`.
#[inline(always)]
pub fn half_member(base: u64, offset: &Global<u32>) -> Option<u32> {
    let offset = offset.load();
    if base == 0 || offset == NO_OFFSET { None } else { half(base + u64::from(offset)) }
}

/// The id of the cgroup at this address.
#[inline(always)]
pub fn cgroup_id(cgroup: u64) -> Option<u64> {
    member(member(cgroup, &CGROUP_KN)?, &KN_ID)
}

/// The id of the cgroup that a memory cgroup's page counter belongs to; `None` for counters of anything else.
#[inline(always)]
pub fn counter_cgroup(counter: u64) -> Option<u64> {
    cgroup_id(cgroup_of(counter)?)
}

/// The address of that cgroup.
#[inline(always)]
pub fn cgroup_of(counter: u64) -> Option<u64> {
    let inside = MEMCG_COUNTER.load();
    if counter == 0 || inside == NO_OFFSET {
        return None;
    }
    let memcg = counter - u64::from(inside);
    // A swap or hugetlb counter sits elsewhere in its struct: what would be the subsystem is not.
    let subsystem = MEMORY_SUBSYS.load();
    if subsystem != 0 && member(memcg, &MEMCG_SUBSYS)? != subsystem {
        return None;
    }
    member(memcg, &MEMCG_CGROUP)
}

/// The address of the ancestor `level` levels below the root cgroup, or of the cgroup itself if that is its own level.
/// However deep it is, this takes two reads: each cgroup has all of its ancestors in an array.
#[inline(always)]
pub fn ancestor(cgroup: u64, level: u64) -> Option<u64> {
    let (ancestors, own) = (CGROUP_ANCESTORS.load(), half_member(cgroup, &CGROUP_LEVEL)?);
    if ancestors == NO_OFFSET || level > u64::from(own) {
        return None;
    }
    word(cgroup + u64::from(ancestors) + 8 * level)
}

/// The pages that are charged to the memory cgroup of the cgroup at this address.
#[inline(always)]
pub fn usage(cgroup: u64) -> Option<u64> {
    member(counter_of(cgroup)?, &COUNTER_USAGE)
}

/// The address of that memory cgroup's page counter; `None` where the cgroup has none of its own.
#[inline(always)]
pub fn counter_of(cgroup: u64) -> Option<u64> {
    let (state, memcg, inside) = (member(cgroup, &CGROUP_MEMORY)?, MEMCG_CSS.load(), MEMCG_COUNTER.load());
    if state == 0 || memcg == NO_OFFSET || inside == NO_OFFSET {
        return None;
    }
    Some(state - u64::from(memcg) + u64::from(inside))
}

/// `None` in the wire format.
#[inline(always)]
pub fn or_absent(value: Option<u64>) -> u64 {
    match value {
        Some(value) => value,
        None => ABSENT,
    }
}

/// Zero for what could not be read, where zero means the same: a pointer to nothing.
#[inline(always)]
pub fn or_zero(value: Option<u64>) -> u64 {
    value.unwrap_or_default()
}
