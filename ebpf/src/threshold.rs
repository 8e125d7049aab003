//! The thresholds: the node's available memory and the slices' charges against the armed levels, as memory is charged.
//!
//! `page_counter_try_charge` runs for every task in a cgroup, and for nothing in the root cgroup: [`crate::reclaim`]
//! compares for those. It runs once for a batch of 64 pages, and in a cgroup at its own limit twice for each page: for a
//! batch, which fails, and for the page. [`crate::allowance`] has which of its calls are compared.

use aya_ebpf::{
    helpers::{
        bpf_get_current_ancestor_cgroup_id, bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_ktime_get_ns,
    },
    macros::{fentry, kprobe},
    programs::{FEntryContext, ProbeContext},
};
use plimsoll_abi::{ABSENT, LINEAGE, NO_OFFSET, SLICES as SLOTS, ThresholdRecord, ThresholdTable, counter, kind};

use crate::allowance::Charge;
use crate::{allowance, brake, kernel, maps};

/// Where the memory goes that crosses a threshold.
#[derive(Clone, Copy)]
pub enum Allocation {
    /// To the memory cgroup of the page counter at this address. The running task may be another's: a charge can be made
    /// in an interrupt, or for the owner of what is shared.
    Charged(u64),
    /// To the running task.
    Task,
    /// Not known: memory is allocated in an interrupt.
    Unknown,
}

/// In place of a page counter's address: [`Allocation::Task`].
const OF_TASK: u64 = 1;

impl Allocation {
    /// The page counter's address; [`OF_TASK`], or zero where there is none. One word, for a call of a subprogram.
    #[inline(always)]
    fn word(self) -> u64 {
        match self {
            Self::Charged(counter) => counter,
            Self::Task => OF_TASK,
            Self::Unknown => 0,
        }
    }
}

/// Available memory in pages.
#[derive(Clone, Copy)]
pub struct Readings {
    pub kubelet: u64,
    pub mem_available: u64,
}

#[fentry(function = "page_counter_try_charge")]
pub fn charge_fentry(ctx: FEntryContext) -> i32 {
    charge(ctx.arg(0), ctx.arg(1));
    0
}

#[kprobe]
pub fn charge_kprobe(ctx: ProbeContext) -> u32 {
    if let (Some(counter), Some(pages)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) {
        charge(counter, pages);
    }
    0
}

#[inline(always)]
fn charge(counter: u64, pages: u64) {
    let Some(table) = maps::TABLE.get_ptr_mut(0) else { return };
    // SAFETY: `table` is the value of a map; only the address of a field is taken.
    let ran = unsafe { &raw mut (*table).charge_ran };
    // Written once for each time that the agent clears it: the other words beside it are read by all CPUs.
    if maps::peek(ran) == 0 {
        // SAFETY: a word of a map's value, aligned and alive as long as the program runs.
        unsafe { ran.write_volatile(1) };
    }
    let Some(charge) = allowance::exceeded(table, counter, pages) else { return };
    node(table, Allocation::Charged(charge.counter));
    slices(table, charge);
}

/// Compares the node's readings with its threshold, and with the brakes' thresholds where there are any.
#[inline(always)]
pub fn node(table: *mut ThresholdTable, allocation: Allocation) {
    // SAFETY: `table` is the value of a map; only addresses of its fields are taken.
    let (generation, marks) =
        unsafe { (maps::peek(&raw const (*table).node_generation), maps::peek(&raw const (*table).brake_count)) };
    let braking = kernel::KERNEL_BRAKE.load() != 0 && marks != 0;
    if generation == 0 && !braking {
        return;
    }
    let now = readings(table);
    if let Allocation::Charged(_) = allocation {
        // SAFETY: as above.
        let (kubelet, mem_available) = unsafe {
            (maps::peek(&raw const (*table).near_kubelet), maps::peek(&raw const (*table).near_mem_available))
        };
        allowance::bound(now.kubelet.saturating_sub(kubelet).min(now.mem_available.saturating_sub(mem_available)));
    }
    if generation != 0 {
        // SAFETY: as above.
        let (kubelet, mem_available) = unsafe {
            (maps::peek(&raw const (*table).node_kubelet), maps::peek(&raw const (*table).node_mem_available))
        };
        if now.kubelet < kubelet || now.mem_available < mem_available {
            submit(table, 0, allocation.word(), ABSENT);
        }
    }
    if braking && let Allocation::Charged(counter) = allocation {
        brake::apply(table, now, counter);
    }
}

#[inline(always)]
fn readings(table: *const ThresholdTable) -> Readings {
    // SAFETY: `table` is the value of a map; only addresses of its fields are taken.
    let (total, reserve, low) = unsafe {
        (
            maps::peek(&raw const (*table).total),
            maps::peek(&raw const (*table).reserve),
            maps::peek(&raw const (*table).low_watermark),
        )
    };
    let free = kernel::pages(kernel::FREE_PAGES.load());
    let file = kernel::pages(kernel::FILE_PAGES.load());
    let anon = kernel::pages(kernel::ANON_MAPPED.load());
    let inactive_file = kernel::pages(kernel::INACTIVE_FILE.load());
    let active_file = kernel::pages(kernel::ACTIVE_FILE.load());
    let reclaimable = kernel::pages(kernel::SLAB_RECLAIMABLE.load()) + kernel::pages(kernel::MISC_RECLAIMABLE.load());
    let working_set = (anon + file).saturating_sub(inactive_file);
    let reclaimable_part = |pages: u64| pages - (pages / 2).min(low);
    let mem_available = free + reclaimable_part(active_file + inactive_file) + reclaimable_part(reclaimable);
    Readings { kubelet: total.saturating_sub(working_set), mem_available: mem_available.saturating_sub(reserve) }
}

/// Compares what is charged to each slice above the charged cgroup, at the slice's own level: it does not matter how deep
/// below the slice the charged cgroup is.
#[inline(always)]
fn slices(table: *mut ThresholdTable, Charge { counter, pages, compared }: Charge) {
    // SAFETY: `table` is the value of a map; only the address of a field is taken.
    let count = maps::peek(unsafe { &raw const (*table).slice_count });
    if count == 0 {
        return;
    }
    let charged = kernel::or_zero(kernel::cgroup_of(counter));
    if charged == 0 {
        return;
    }
    // The ancestor at the level of the last slot: most slices are siblings. No slice is the root cgroup, at level 0.
    let (mut level, mut ancestor, mut id) = (0, 0, 0);
    for slot in 0..SLOTS {
        if slot as u64 >= count {
            return;
        }
        // SAFETY: `table` is the value of a map and the index is within the slots; only addresses of fields are taken.
        let (generation, usage, cgroup, own_level) = unsafe {
            let slice = (&raw const (*table).slices).cast::<plimsoll_abi::SliceSlot>().add(slot);
            (
                maps::peek(&raw const (*slice).generation),
                maps::peek(&raw const (*slice).usage),
                maps::peek(&raw const (*slice).cgroup),
                maps::peek(&raw const (*slice).level),
            )
        };
        if generation == 0 {
            continue;
        }
        if own_level != level {
            level = own_level;
            ancestor = kernel::or_zero(kernel::ancestor(charged, level));
            id = kernel::or_zero(kernel::cgroup_id(ancestor));
        }
        if id == 0 || id != cgroup {
            continue;
        }
        let Some(charged_pages) = kernel::usage(ancestor) else { continue };
        let after = charged_pages + compared;
        if after >= usage {
            submit(table, slot as u64 + 1, counter, charged_pages + pages);
        }
        allowance::bound(usage.saturating_sub(after));
    }
}

/// Writes the charged cgroup and its ancestors, or those of the running task ([`OF_TASK`]). As a rule the task charges its
/// own cgroup or one above it: what is read of the task costs next to nothing, and of another cgroup a read for each
/// pointer.
///
/// # Safety
/// `lineage` has room for [`LINEAGE`] words.
#[inline(always)]
pub unsafe fn lineage(lineage: *mut u64, allocation: u64) {
    let charged = if allocation == OF_TASK { 0 } else { kernel::or_zero(kernel::cgroup_of(allocation)) };
    let own = kernel::half_member(charged, &kernel::CGROUP_LEVEL).unwrap_or_default();
    // SAFETY: helpers that take no pointer.
    let (id, own, is_of_task) = unsafe {
        if allocation == OF_TASK {
            (bpf_get_current_cgroup_id(), u32::MAX, true)
        } else {
            let id = kernel::or_zero(kernel::cgroup_id(charged));
            (id, own, own > 0 && bpf_get_current_ancestor_cgroup_id(own.cast_signed()) == id)
        }
    };
    let lists_ancestors = kernel::CGROUP_ANCESTORS.load() != NO_OFFSET;
    let mut counter = allocation;
    for (place, level) in (0..LINEAGE).zip(0_u32..) {
        let id = if level == 0 {
            id
        } else if level > own {
            0
        } else if is_of_task {
            // SAFETY: a helper that takes no pointer.
            unsafe { bpf_get_current_ancestor_cgroup_id(level.cast_signed()) }
        } else if lists_ancestors {
            kernel::or_zero(kernel::cgroup_id(kernel::or_zero(kernel::ancestor(charged, level.into()))))
        } else {
            counter = kernel::or_zero(kernel::member(counter, &kernel::COUNTER_PARENT));
            kernel::or_zero(kernel::counter_cgroup(counter))
        };
        // SAFETY: as the caller promises.
        unsafe { lineage.add(place).write(id) };
    }
}

/// Reserves a record, takes the generation, submits: in this order, so that a full ring buffer leaves the threshold
/// armed.
#[inline(never)]
fn submit(table: *mut ThresholdTable, threshold: u64, allocation: u64, usage: u64) -> i32 {
    if table.is_null() {
        return 0;
    }
    let Some(mut entry) = maps::THRESHOLD_RING.reserve::<ThresholdRecord>(0) else {
        maps::count(counter::LOST_THRESHOLD_EVENTS);
        return 0;
    };
    let generation = if threshold == 0 {
        // SAFETY: `table` is the value of a map; only the address of a field is taken.
        maps::take(unsafe { &raw mut (*table).node_generation })
    } else {
        let slot = (threshold - 1) & (SLOTS as u64 - 1);
        // SAFETY: as above; the mask keeps the index within the slots.
        maps::take(unsafe {
            &raw mut (*(&raw mut (*table).slices).cast::<plimsoll_abi::SliceSlot>().add(slot as usize)).generation
        })
    };
    if generation == 0 {
        entry.discard(0);
        return 0;
    }
    let now = readings(table);
    let pid_tgid = bpf_get_current_pid_tgid();
    let record = entry.as_mut_ptr();
    // SAFETY: `record` is the reserved memory, as long as the record and aligned for it; every field is written.
    unsafe {
        (&raw mut (*record).kind).write(kind::THRESHOLD);
        (&raw mut (*record).threshold).write(threshold as u32);
        (&raw mut (*record).generation).write(generation);
        (&raw mut (*record).at_ns).write(bpf_ktime_get_ns());
        (&raw mut (*record).kubelet).write(now.kubelet);
        (&raw mut (*record).mem_available).write(now.mem_available);
        (&raw mut (*record).usage).write(usage);
        lineage((&raw mut (*record).lineage).cast::<u64>(), allocation);
        (&raw mut (*record).pid).write(pid_tgid as u32);
        (&raw mut (*record).tgid).write((pid_tgid >> 32) as u32);
    }
    entry.submit(maps::WAKE);
    0
}
