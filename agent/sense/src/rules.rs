//! What follows from the facts: which hook family runs how, which is left out and why, and what is lost with it.

use crate::probe::KernelFacts;

/// How a program is hung into the kernel.
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
    /// The name that people know it by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Fexit => "fexit",
            Self::Tracepoint => "tp_btf",
            Self::Kprobe => "kprobe",
        }
    }

    /// Whether this kernel takes such programs at all, or why it cannot be said.
    pub const fn programs(self, facts: &KernelFacts) -> &Result<bool, String> {
        match self {
            Self::Fentry | Self::Fexit => &facts.trampolines,
            Self::Tracepoint => &facts.raw_tracepoints,
            Self::Kprobe => &facts.kprobe_programs,
        }
    }
}

/// One program and where it hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The program in the embedded object.
    pub program: &'static str,
    /// How.
    pub attach_type: AttachType,
    /// The function or tracepoint.
    pub target: &'static str,
}

/// A hook family: alternatives, best first; all programs of an alternative hang, or none.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What is lost without it.
    pub degrades: &'static str,
    /// Members of kernel structs that it cannot do without, by the programs' names.
    pub members: &'static [&'static str],
    /// The alternatives.
    pub choices: &'static [&'static [Attachment]],
}

const fn at(program: &'static str, attach_type: AttachType, target: &'static str) -> Attachment {
    Attachment { program, attach_type, target }
}

/// The line family's name, without which the eBPF source does not stand.
pub const LINE: &str = "line";

/// The task family's name, which needs one symbol more.
const TASKS: &str = "tasks";

/// All families.
pub const FAMILIES: &[Family] = &[
    Family {
        name: LINE,
        degrades: "no line is watched in the kernel; the next source below is used",
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
        name: "stall",
        degrades: "who waits for memory is known only from memory.pressure, every two seconds",
        members: &[],
        choices: &[&[
            at("stall_enter", AttachType::Fexit, "psi_memstall_enter"),
            at("stall_leave", AttachType::Fentry, "psi_memstall_leave"),
        ]],
    },
    Family {
        name: "oom",
        degrades: "a lost race is counted from /proc/vmstat, without its victim",
        members: &["OC_CHOSEN"],
        choices: &[
            &[at("oom_fentry", AttachType::Fentry, "oom_kill_process")],
            &[at("oom_kprobe", AttachType::Kprobe, "oom_kill_process")],
        ],
    },
    Family {
        name: TASKS,
        degrades: "the number of tasks is looked at by the slow timer only",
        members: &[],
        choices: &[&[at("fork", AttachType::Tracepoint, "sched_process_fork")]],
    },
    Family {
        name: "cgroups",
        degrades: "cgroups that come and go are found by looking",
        members: &["CGROUP_KN", "KN_ID"],
        choices: &[&[
            at("cgroup_made", AttachType::Tracepoint, "cgroup_mkdir"),
            at("cgroup_removed", AttachType::Tracepoint, "cgroup_rmdir"),
            at("cgroup_populated", AttachType::Tracepoint, "cgroup_notify_populated"),
        ]],
    },
];

fn attachments() -> impl Iterator<Item = &'static Attachment> {
    FAMILIES.iter().flat_map(|family| family.choices).copied().flatten()
}

/// Every function that a family may hang on, once.
pub(crate) fn functions() -> impl Iterator<Item = &'static str> {
    attachments().filter(|it| matches!(it.attach_type, AttachType::Fentry | AttachType::Fexit)).map(|it| it.target)
}

/// Every tracepoint that a family may hang on, once.
pub(crate) fn tracepoints() -> impl Iterator<Item = &'static str> {
    attachments().filter(|it| it.attach_type == AttachType::Tracepoint).map(|it| it.target)
}

/// What is to be tried for one family.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The family.
    pub family: &'static Family,
    /// The alternatives that the facts allow, best first.
    pub choices: Vec<&'static [Attachment]>,
    /// Why the first alternative is not among them, or why there is none.
    pub reason: Option<String>,
}

/// Plans every family.
pub fn plan(facts: &KernelFacts) -> Vec<Planned> {
    FAMILIES.iter().map(|family| plan_one(family, facts)).collect()
}

fn plan_one(family: &'static Family, facts: &KernelFacts) -> Planned {
    let none = |reason: String| Planned { family, choices: Vec::new(), reason: Some(reason) };
    if let Err(error) = &facts.btf {
        return none(error.to_string());
    }
    if let Some(member) = family.members.iter().find(|member| facts.missing_members.contains(member)) {
        return none(format!("this kernel has no member for {member}"));
    }
    if family.name == LINE
        && let Some(why) = &facts.threshold_blind
    {
        return none(why.clone());
    }
    if family.name == TASKS && !facts.task_count {
        return none("/proc/kallsyms hides the address of nr_threads".into());
    }
    let (mut choices, mut reason) = (Vec::new(), None);
    for attach_type in family.choices {
        match attach_type.iter().find_map(|attachment| refusal(attachment, facts)) {
            None => choices.push(*attach_type),
            Some(why) => {
                reason.get_or_insert(why);
            }
        }
    }
    Planned { family, choices, reason }
}

/// Why an attachment cannot be; `None` where nothing speaks against trying.
fn refusal(attachment: &Attachment, facts: &KernelFacts) -> Option<String> {
    let Attachment { program: _, attach_type, target } = attachment;
    let there = match attach_type {
        AttachType::Fentry | AttachType::Fexit | AttachType::Kprobe => facts.has_function(target),
        AttachType::Tracepoint => facts.has_tracepoint(target),
    };
    if !there {
        return Some(format!("this kernel has no {target}"));
    }
    (*attach_type.programs(facts) == Ok(false))
        .then(|| format!("this kernel cannot attach {} programs", attach_type.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::BtfError;

    /// A kernel that has everything.
    fn full() -> KernelFacts {
        KernelFacts {
            release: String::new(),
            btf: Ok(()),
            functions: functions().map(|name| (name, true)).collect(),
            tracepoints: tracepoints().map(|name| (name, true)).collect(),
            missing_members: Vec::new(),
            threshold_blind: None,
            task_count: true,
            symbols_visible: true,
            kptr_restrict: Some(0),
            lockdown: None,
            psi: true,
            memory_controller: true,
            bpffs: true,
            trampolines: Ok(true),
            raw_tracepoints: Ok(true),
            kprobe_programs: Ok(true),
        }
    }

    fn first_choice(facts: &KernelFacts, family: &str) -> Option<AttachType> {
        let planned = plan(facts).into_iter().find(|planned| planned.family.name == family).expect("family");
        assert!(!planned.choices.is_empty() || planned.reason.is_some(), "{family} is left out without a reason");
        planned.choices.first().map(|attach_type| attach_type[0].attach_type)
    }

    #[test]
    fn what_is_missing_costs_only_what_it_carries() {
        type Change = fn(&mut KernelFacts);
        let lose_function = |facts: &mut KernelFacts| facts.functions.retain(|(name, _)| *name != "psi_memstall_leave");
        let rows: [(Change, [Option<AttachType>; 4]); 10] = [
            (
                |_| {},
                [
                    Some(AttachType::Fentry),
                    Some(AttachType::Fexit),
                    Some(AttachType::Fentry),
                    Some(AttachType::Tracepoint),
                ],
            ),
            (
                |facts| facts.trampolines = Ok(false),
                [Some(AttachType::Kprobe), None, Some(AttachType::Kprobe), Some(AttachType::Tracepoint)],
            ),
            (
                |facts| facts.raw_tracepoints = Ok(false),
                [Some(AttachType::Fentry), Some(AttachType::Fexit), Some(AttachType::Fentry), None],
            ),
            (
                |facts| facts.tracepoints.clear(),
                [Some(AttachType::Fentry), Some(AttachType::Fexit), Some(AttachType::Fentry), None],
            ),
            (
                |facts| (facts.trampolines, facts.raw_tracepoints) = (Err("EPERM".into()), Err("EPERM".into())),
                [
                    Some(AttachType::Fentry),
                    Some(AttachType::Fexit),
                    Some(AttachType::Fentry),
                    Some(AttachType::Tracepoint),
                ],
            ),
            (lose_function, [Some(AttachType::Fentry), None, Some(AttachType::Fentry), Some(AttachType::Tracepoint)]),
            (
                |facts| facts.missing_members.push("OC_CHOSEN"),
                [Some(AttachType::Fentry), Some(AttachType::Fexit), None, Some(AttachType::Tracepoint)],
            ),
            (
                |facts| facts.threshold_blind = Some("hidden".into()),
                [None, Some(AttachType::Fexit), Some(AttachType::Fentry), Some(AttachType::Tracepoint)],
            ),
            (
                |facts| facts.task_count = false,
                [Some(AttachType::Fentry), Some(AttachType::Fexit), Some(AttachType::Fentry), None],
            ),
            (
                |facts| facts.btf = Err(BtfError::Unreadable { path: "x".into(), error: "y".into() }),
                [None, None, None, None],
            ),
        ];
        for (index, (change, expected)) in rows.into_iter().enumerate() {
            let mut facts = full();
            change(&mut facts);
            let found = [LINE, "stall", "oom", TASKS].map(|family| first_choice(&facts, family));
            assert_eq!(found, expected, "row {index}");
        }
    }
}
