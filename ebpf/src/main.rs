//! The kernel side of Plimsoll: small programs that compare, count and submit events. What an event means is decided by
//! the agent.
//!
//! One module for the hooks of one kind. Nothing here walks more than a fixed number of steps, and nothing is written outside these
//! maps; the one thing that acts on a task is [`brake`], which is off unless configured.

#![no_std]
#![no_main]
#![allow(internal_features, reason = "the target has no read-modify-write on core's atomics, only the intrinsics")]
#![feature(core_intrinsics)]

mod allowance;
mod brake;
mod cgroup;
mod kernel;
mod maps;
mod oom;
mod packet_rings;
mod reclaim;
mod stall;
mod tasks;
mod threshold;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
