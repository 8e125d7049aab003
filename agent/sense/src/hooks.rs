//! The hook families: which programs attach where, with their alternatives. Whether this kernel has room for them is in
//! [`crate::rules`].

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachType {
    /// At a function's entry, with typed arguments.
    Fentry,
    /// At a function's exit, with its arguments.
    Fexit,
    /// At a tracepoint, with typed arguments.
    Tracepoint,
    /// At a function's entry, by a breakpoint or through ftrace.
    Kprobe,
}

impl AttachType {
    /// The name in the kernel's and libbpf's documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Fexit => "fexit",
            Self::Tracepoint => "tp_btf",
            Self::Kprobe => "kprobe",
        }
    }
}

/// One program and where it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The program in the embedded object.
    pub program: &'static str,
    /// How.
    pub attach_type: AttachType,
    /// The function or tracepoint.
    pub target: &'static str,
}

/// A hook family: alternatives, best first. All programs of an alternative are attached, or none.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What is lost without it.
    pub degrades: &'static str,
    /// Members of kernel structs that it needs, by the programs' names.
    pub members: &'static [&'static str],
    /// The alternatives.
    pub choices: &'static [&'static [Attachment]],
}

const fn at(program: &'static str, attach_type: AttachType, target: &'static str) -> Attachment {
    Attachment { program, attach_type, target }
}

/// The name of the family without which the eBPF source does not start.
pub const THRESHOLD: &str = "threshold";

/// The name of the family that counts how long tasks wait for memory, where the kernel measures pressure.
pub(crate) const STALL: &str = "stall";

/// The name of the family that needs the address of `nr_threads`.
pub(crate) const TASKS: &str = "tasks";

/// The name of the family that names cgroups as they come and go.
pub const CGROUPS: &str = "cgroups";

/// All hook families. The next hook is a file of `ebpf/src`, a row here and a variant of [`Wake`](crate::Wake).
pub const FAMILIES: &[Family] = &[
    Family {
        name: THRESHOLD,
        degrades: "no threshold is watched in the kernel; the next source is used instead",
        members: &["COUNTER_USAGE", "COUNTER_PARENT", "MEMCG_COUNTER", "MEMCG_CGROUP", "CGROUP_KN", "KN_ID"],
        choices: &[
            &[at("charge_fentry", AttachType::Fentry, "page_counter_try_charge")],
            &[at("charge_kprobe", AttachType::Kprobe, "page_counter_try_charge")],
        ],
    },
    Family {
        name: "kswapd",
        degrades: "memory taken in the root cgroup or by huge page pools is seen later: by direct reclaim or the timer",
        members: &[],
        choices: &[&[at("kswapd_wake", AttachType::Tracepoint, "mm_vmscan_wakeup_kswapd")]],
    },
    Family {
        name: "direct reclaim",
        degrades: "memory taken in the root cgroup or by huge page pools is seen later: by kswapd's wake or the timer",
        members: &[],
        choices: &[&[at("direct_reclaim", AttachType::Tracepoint, "mm_vmscan_direct_reclaim_begin")]],
    },
    Family {
        name: STALL,
        degrades: "a cgroup whose tasks stall causes no sample: the next one comes with a crossing, with reclaim or by the timer",
        members: &[],
        choices: &[&[
            at("stall_enter", AttachType::Fexit, "psi_memstall_enter"),
            at("stall_leave", AttachType::Fentry, "psi_memstall_leave"),
        ]],
    },
    Family {
        name: "oom",
        degrades: "OOM kills cause no sample, and are neither counted nor logged",
        members: &["OC_CHOSEN"],
        choices: &[
            &[at("oom_fentry", AttachType::Fentry, "oom_kill_process")],
            &[at("oom_kprobe", AttachType::Kprobe, "oom_kill_process")],
        ],
    },
    Family {
        name: TASKS,
        degrades: "the number of tasks is read from time to time, the more often the nearer it is to a threshold",
        members: &[],
        choices: &[&[at("fork", AttachType::Tracepoint, "sched_process_fork")]],
    },
    Family {
        name: CGROUPS,
        degrades: "cgroups that are created and removed are found by walking the tree",
        members: &["CGROUP_KN", "KN_ID"],
        choices: &[&[
            at("cgroup_made", AttachType::Tracepoint, "cgroup_mkdir"),
            at("cgroup_removed", AttachType::Tracepoint, "cgroup_rmdir"),
            at("cgroup_populated", AttachType::Tracepoint, "cgroup_notify_populated"),
        ]],
    },
];

/// Every attachment of every alternative.
pub fn attachments() -> impl Iterator<Item = &'static Attachment> {
    FAMILIES.iter().flat_map(|family| family.choices).copied().flatten()
}

/// Every function that a family attaches to.
pub(crate) fn functions() -> impl Iterator<Item = &'static str> {
    attachments().filter(|it| matches!(it.attach_type, AttachType::Fentry | AttachType::Fexit)).map(|it| it.target)
}

/// Every tracepoint that a family attaches to.
pub(crate) fn tracepoints() -> impl Iterator<Item = &'static str> {
    attachments().filter(|it| it.attach_type == AttachType::Tracepoint).map(|it| it.target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_named_as_read_in_place_of_a_hook() {
        for Family { name, degrades, .. } in FAMILIES {
            assert!(!["/proc", "/sys", "memory.", "cgroup."].iter().any(|file| degrades.contains(file)), "{name}");
        }
    }
}
