//! How much a CPU may charge before it compares again.
//!
//! A comparison takes about a thousand instructions, and a cgroup at its own limit would have two of them for each page.
//! So one that finds the thresholds far away allows its CPU a part of that distance, until the next tick of the kernel's
//! clock. All CPUs together may then charge an eighth of it: to cross a threshold without a comparison, seven eighths must
//! be taken in the same tick by CPUs that used up what they were allowed.

use aya_ebpf::{Global, helpers::bpf_jiffies64};
use plimsoll_abi::{CHARGE_BATCH, ThresholdTable};

use crate::maps;

/// Of how many parts of a distance a CPU may charge one: eight for each CPU that there can be. Zero: none, so that every
/// charge is compared.
#[unsafe(no_mangle)]
pub static ALLOWANCE_PARTS: Global<u64> = Global::new(0);

/// What a CPU may still charge.
#[repr(C)]
pub struct Allowance {
    /// The arming under which it was allowed.
    arming: u64,
    /// The tick in which it was: memory is taken without charges, too, so that not only charges end it.
    tick: u64,
    /// The page counter for which it was: where there are slices, another one may be nearer to its threshold.
    counter: u64,
    pages: u64,
    /// Of the charge that was not covered: what counts of it beside a slice's threshold.
    compared: u64,
}

/// A charge that is to be compared.
#[derive(Clone, Copy)]
pub struct Charge {
    /// The page counter's address.
    pub counter: u64,
    pub pages: u64,
    /// Pages of it that count beside a slice's threshold, a batch at most: an attempt to charge a huge page may fail, again
    /// and again, and each would submit an event, while a threshold is armed down to a batch. One that succeeds is seen by
    /// the next charge that is compared.
    pub compared: u64,
}

/// Takes the pages from what this CPU may charge. If that does not cover them, gives the charge: it is to be compared, with
/// [`bound`] for each threshold.
#[inline(always)]
pub fn exceeded(table: *const ThresholdTable, counter: u64, pages: u64) -> Option<Charge> {
    let own = maps::ALLOWANCES.get_ptr_mut(0)?;
    // SAFETY: `table` and `own` are values of maps, and the latter is this CPU's own: the kernel runs no program again on a
    // CPU on which it runs already. The helper takes no pointer.
    unsafe {
        let (arming, tick) = (maps::peek(&raw const (*table).arming), bpf_jiffies64());
        let is_for = (*own).counter == counter || maps::peek(&raw const (*table).slice_count) == 0;
        if is_for && (*own).arming == arming && (*own).tick == tick && (*own).pages >= pages {
            (*own).pages -= pages;
            return None;
        }
        own.write(Allowance { arming, tick, counter, pages: u64::MAX, compared: pages.min(CHARGE_BATCH) });
        // A hook's argument is a typed pointer, which forbids the arithmetic that finds the struct around the counter.
        // Read back from the map it is a number; and the verifier does not go through all slices once for each side of the
        // minimum.
        let (counter, compared) = (maps::peek(&raw const (*own).counter), maps::peek(&raw const (*own).compared));
        Some(Charge { counter, pages, compared })
    }
}

/// Bounds what this CPU may charge by the distance to a threshold, in pages.
#[inline(never)]
pub fn bound(distance: u64) -> i32 {
    let Some(own) = maps::ALLOWANCES.get_ptr_mut(0) else { return 0 };
    let part = distance.checked_div(ALLOWANCE_PARTS.load()).unwrap_or(0);
    // SAFETY: the value of a map, of this CPU's own.
    unsafe {
        if part < (*own).pages {
            (*own).pages = part;
        }
    }
    0
}
