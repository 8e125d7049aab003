//! What follows from the facts: which hook family runs how, which is left out and why, and what is lost with it.

use crate::{
    hooks::{AttachType, Attachment, FAMILIES, Family, STALL, TASKS, THRESHOLD},
    probe::KernelFacts,
};

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
    if family.name == THRESHOLD
        && let Some(why) = &facts.threshold_blind
    {
        return none(why.clone());
    }
    if family.name == TASKS && !facts.task_count {
        return none(if facts.symbols_listed {
            "/proc/kallsyms hides the address of nr_threads".into()
        } else {
            "/proc/kallsyms does not list nr_threads: the kernel lacks CONFIG_KALLSYMS_ALL".into()
        });
    }
    if family.name == STALL && !facts.psi {
        // The functions are there and write no flags, which the programs read.
        return none("pressure is not measured (psi=0, or CONFIG_PSI_DEFAULT_DISABLED without psi=1)".into());
    }
    let (mut choices, mut reason) = (Vec::new(), None);
    for choice in family.choices {
        match choice.iter().find_map(|attachment| refusal(attachment, facts)) {
            None => choices.push(*choice),
            Some(why) => {
                reason.get_or_insert(why);
            }
        }
    }
    Planned { family, choices, reason }
}

/// Why an attachment is impossible; `None` where it can be tried.
fn refusal(attachment: &Attachment, facts: &KernelFacts) -> Option<String> {
    let Attachment { program, attach_type, target } = attachment;
    let there = match attach_type {
        AttachType::Fentry | AttachType::Fexit | AttachType::Kprobe => facts.has_function(target),
        AttachType::Tracepoint => facts.has_tracepoint(target),
    };
    if !there {
        return Some(format!("this kernel has no {target}"));
    }
    if *facts.programs(*attach_type) == Ok(false) {
        return Some(format!("this kernel cannot attach {} programs", attach_type.name()));
    }
    let (_, why) = facts.refused.iter().flatten().find(|(name, _)| name == program)?;
    Some(format!("{} {target}: {why}", attach_type.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{btf::BtfError, hooks};

    /// A kernel that has everything.
    fn full() -> KernelFacts {
        KernelFacts {
            release: String::new(),
            btf: Ok(()),
            functions: hooks::functions().map(|name| (name, true)).collect(),
            tracepoints: hooks::tracepoints().map(|name| (name, true)).collect(),
            missing_members: Vec::new(),
            threshold_blind: None,
            task_count: true,
            symbols_listed: true,
            symbols_visible: true,
            kptr_restrict: Some(0),
            lockdown: None,
            psi: true,
            memory_controller: true,
            bpffs: true,
            trampolines: Ok(true),
            raw_tracepoints: Ok(true),
            kprobe_programs: Ok(true),
            refused: Ok(Vec::new()),
        }
    }

    fn first_choice(facts: &KernelFacts, family: &str) -> Option<AttachType> {
        let planned = plan(facts).into_iter().find(|planned| planned.family.name == family).expect("family");
        assert!(!planned.choices.is_empty() || planned.reason.is_some(), "{family} is left out without a reason");
        planned.choices.first().map(|choice| choice[0].attach_type)
    }

    #[test]
    fn what_is_missing_costs_only_what_it_carries() {
        type Change = fn(&mut KernelFacts);
        fn refusal(name: &'static str) -> (&'static str, String) {
            (name, "reserved fields".into())
        }
        let lose_function = |facts: &mut KernelFacts| facts.functions.retain(|(name, _)| *name != "psi_memstall_leave");
        let rows: [(Change, [Option<AttachType>; 4]); 13] = [
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
                |facts| facts.psi = false,
                [Some(AttachType::Fentry), None, Some(AttachType::Fentry), Some(AttachType::Tracepoint)],
            ),
            (
                |facts| facts.missing_members.push("OC_CHOSEN"),
                [Some(AttachType::Fentry), Some(AttachType::Fexit), None, Some(AttachType::Tracepoint)],
            ),
            (
                |facts| facts.refused = Ok(["charge_fentry", "stall_leave", "fork"].map(refusal).into()),
                [Some(AttachType::Kprobe), None, Some(AttachType::Fentry), None],
            ),
            (
                |facts| facts.refused = Ok(["charge_fentry", "charge_kprobe"].map(refusal).into()),
                [None, Some(AttachType::Fexit), Some(AttachType::Fentry), Some(AttachType::Tracepoint)],
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
            let found = [THRESHOLD, STALL, "oom", TASKS].map(|family| first_choice(&facts, family));
            assert_eq!(found, expected, "row {index}");
        }
    }
}
