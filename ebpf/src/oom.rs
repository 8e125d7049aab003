//! The OOM killer's choice, so that a lost race is counted as one, and only as one.

use aya_ebpf::{
    EbpfContext as _,
    helpers::bpf_ktime_get_ns,
    macros::{fentry, kprobe},
    programs::{FEntryContext, ProbeContext},
};
use plimsoll_abi::{ABSENT, NO_OFFSET, OomRecord, counter, kind, scope};

use crate::{kernel, maps, threshold};

/// A whole process is exiting, of `signal_struct.flags`.
const SIGNAL_GROUP_EXIT: u32 = 4;

#[fentry(function = "oom_kill_process")]
pub fn oom_fentry(ctx: FEntryContext) -> i32 {
    #[cfg(feature = "log")]
    aya_log_ebpf::debug!(&ctx, "the OOM killer kills");
    if let Some(control) = kernel::word(ctx.as_ptr() as u64) {
        killed(control);
    }
    0
}

#[kprobe]
pub fn oom_kprobe(ctx: ProbeContext) -> u32 {
    if let Some(control) = ctx.arg::<u64>(0) {
        killed(control);
    }
    0
}

#[inline(always)]
fn killed(control: u64) {
    // Plain words with a value for "absent", not options: an older verifier refuses the payload of an empty one, which
    // the compiler copies along unwritten.
    let victim = kernel::or_zero(kernel::member(control, &kernel::OC_CHOSEN));
    if victim == 0 {
        return;
    }
    // A process that is dying already is only helped along: none is killed, and the kernel does not count it. One that is
    // dumping core is killed all the same. So is one that shares its memory with a process that lives on, which is not
    // detected here.
    let signal = kernel::or_zero(kernel::member(victim, &kernel::TASK_SIGNAL));
    let dumps = kernel::or_zero(kernel::member(signal, &kernel::SIGNAL_CORE)) != 0;
    if let Some(flags) = kernel::half_member(signal, &kernel::SIGNAL_FLAGS)
        && flags & SIGNAL_GROUP_EXIT != 0
        && !dumps
    {
        return;
    }
    let set = kernel::or_zero(kernel::member(victim, &kernel::TASK_CSS_SET));
    let cgroup = kernel::or_zero(kernel::member(set, &kernel::CSS_SET_CGROUP));
    let mm = kernel::or_zero(kernel::member(victim, &kernel::TASK_MM));
    let Some(mut entry) = maps::EVENT_RING.reserve::<OomRecord>(0) else {
        maps::count(counter::LOST_EVENTS);
        return;
    };
    let tgid = match kernel::half_member(victim, &kernel::TASK_TGID) {
        Some(tgid) => u64::from(tgid),
        None => ABSENT,
    };
    let record = entry.as_mut_ptr();
    // SAFETY: `record` is the reserved memory, as long as the record and aligned for it; every field is written. What is
    // written there is forgotten by the verifier, which would go through what follows for each of the values that it knows of
    // words on the stack.
    unsafe {
        (&raw mut (*record).kind).write(kind::OOM);
        (&raw mut (*record).scope).write(scope_of(control));
        (&raw mut (*record).at_ns).write(bpf_ktime_get_ns());
        (&raw mut (*record).victim).write(tgid);
        (&raw mut (*record).cgroup).write(kernel::or_absent(kernel::cgroup_id(cgroup)));
        (&raw mut (*record).mapped).write(kernel::or_absent(kernel::member(mm, &kernel::MM_TOTAL_VM)));
        (&raw mut (*record).resident).write(resident(mm));
        (&raw mut (*record).limit).write(limit(control));
        (&raw mut (*record).name).write(name(victim));
        let counter = kernel::or_zero(kernel::counter_of(cgroup));
        threshold::lineage((&raw mut (*record).lineage).cast::<u64>(), counter);
    }
    entry.submit(maps::WAKE);
}

#[inline(always)]
fn scope_of(control: u64) -> u32 {
    if let Some(constraint) = kernel::half_member(control, &kernel::OC_CONSTRAINT) {
        if constraint == kernel::CONSTRAINT_MEMCG.load() {
            return scope::CGROUP;
        }
        if constraint == kernel::CONSTRAINT_CPUSET.load() {
            return scope::CPUSET;
        }
        if constraint == kernel::CONSTRAINT_MEMORY_POLICY.load() {
            return scope::NUMA_NODE;
        }
    }
    if kernel::or_zero(kernel::member(control, &kernel::OC_MEMCG)) != 0 { scope::CGROUP } else { scope::GLOBAL }
}

/// The memory cgroup whose limit was reached.
#[inline(always)]
fn limit(control: u64) -> u64 {
    let memcg = kernel::or_zero(kernel::member(control, &kernel::OC_MEMCG));
    kernel::or_absent(kernel::cgroup_id(kernel::or_zero(kernel::member(memcg, &kernel::MEMCG_CGROUP))))
}

/// The command name of the task at this address, in two words.
#[inline(always)]
fn name(task: u64) -> [u64; 2] {
    let offset = kernel::TASK_COMM.load();
    if offset == NO_OFFSET {
        return [0; 2];
    }
    let at = task + u64::from(offset);
    [kernel::or_zero(kernel::word(at)), kernel::or_zero(kernel::word(at + 8))]
}

/// File, anonymous and shared pages: the first, second and fourth of the kernel's counters (the third counts swap).
#[inline(always)]
fn resident(mm: u64) -> u64 {
    let (first, stride) = (kernel::MM_RSS.load(), kernel::MM_RSS_STRIDE.load());
    if mm == 0 || first == NO_OFFSET || stride == NO_OFFSET {
        return ABSENT;
    }
    let counter = |index: u64| kernel::pages(mm + u64::from(first) + index * u64::from(stride));
    counter(0) + counter(1) + counter(3)
}
