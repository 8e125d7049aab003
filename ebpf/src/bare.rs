//! The barest wake there is on the same hook: armed by exchange, one record, forced wake-up. What the real threshold's
//! latency is measured against.

#![no_std]
#![no_main]
#![allow(internal_features, reason = "the target has no read-modify-write on core's atomics, only the intrinsics")]
#![feature(core_intrinsics)]

use core::intrinsics::{AtomicOrdering, atomic_xchg};

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_RB_FORCE_WAKEUP},
    helpers::bpf_ktime_get_ns,
    macros::{fentry, kprobe, map},
    maps::{Array, RingBuf},
    programs::{FEntryContext, ProbeContext},
};
use plimsoll_abi::{BareRecord, kind};

#[map(name = "bare_armed")]
static ARMED: Array<u64> = Array::with_max_entries(1, BPF_F_MMAPABLE);

#[map(name = "bare_ring")]
static RING: RingBuf = RingBuf::with_byte_size(1 << 16, 0);

#[fentry(function = "page_counter_try_charge")]
pub fn bare_fentry(_ctx: FEntryContext) -> i32 {
    charge();
    0
}

#[kprobe]
pub fn bare_kprobe(_ctx: ProbeContext) -> u32 {
    charge();
    0
}

#[inline(always)]
fn charge() {
    let Some(armed) = ARMED.get_ptr_mut(0) else { return };
    // SAFETY: the value of a map.
    if unsafe { core::ptr::read_volatile(armed) } == 0 {
        return;
    }
    let Some(mut entry) = RING.reserve::<BareRecord>(0) else { return };
    // SAFETY: the value of a map.
    if unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(armed, 0) } == 0 {
        entry.discard(0);
        return;
    }
    // SAFETY: reads the clock.
    let at_ns = unsafe { bpf_ktime_get_ns() };
    entry.write(BareRecord { kind: kind::BARE, reserved: 0, at_ns });
    entry.submit(u64::from(BPF_RB_FORCE_WAKEUP));
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
