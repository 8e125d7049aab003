//! Facts about this kernel. Facts only: what follows from them is in [`rules`](crate::rules). No fact is derived from a
//! version number.

use std::{fs, panic::resume_unwind, path::Path, thread};

use aya::{programs::ProgramType, sys::is_program_supported};

use crate::{
    btf::{Btf, BtfError},
    ebpf::refusals,
    hooks::{self, AttachType},
    layout::Layout,
    symbols::Symbols,
};

/// What this kernel is and shows. An unread fact is `None`.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, none excludes another")]
pub struct KernelFacts {
    /// The kernel's release, for people to read; no rule depends on it.
    pub release: String,
    /// Its type information, or why there is none.
    pub btf: Result<(), BtfError>,
    /// Functions that hooks ask for, and whether they are there.
    pub functions: Vec<(&'static str, bool)>,
    /// Tracepoints with typed arguments that hooks ask for, likewise.
    pub tracepoints: Vec<(&'static str, bool)>,
    /// Members that hooks read and this kernel lacks, by the programs' names.
    pub missing_members: Vec<&'static str>,
    /// Why the node's threshold cannot be computed in the kernel, if so.
    pub threshold_blind: Option<String>,
    /// Whether the number of tasks can be read in the kernel.
    pub task_count: bool,
    /// Whether `/proc/kallsyms` lists the kernel's variables.
    pub symbols_listed: bool,
    /// Whether it shows their addresses.
    pub symbols_visible: bool,
    /// `kernel.kptr_restrict`.
    pub kptr_restrict: Option<u8>,
    /// The active lockdown mode: `none`, `integrity`, `confidentiality`; `None` without that security module.
    pub lockdown: Option<String>,
    /// Whether pressure is measured.
    pub psi: bool,
    /// Whether the memory controller is on the unified hierarchy.
    pub memory_controller: bool,
    /// Whether bpffs is mounted at `/sys/fs/bpf`.
    pub bpffs: bool,
    /// Whether programs can be attached to functions by trampolines (fentry, fexit), or why that is not known.
    pub trampolines: Result<bool, String>,
    /// Whether programs on raw tracepoints can be loaded, likewise. Those with typed arguments need the kernel's type
    /// information besides, and no trampoline.
    pub raw_tracepoints: Result<bool, String>,
    /// Whether kprobe programs can be loaded, likewise.
    pub kprobe_programs: Result<bool, String>,
    /// The agent's programs that the kernel's verifier refuses, each with why; an error where that is not known.
    pub refused: Result<Vec<(&'static str, String)>, String>,
}

/// The facts, and the layout for the programs, which comes from the same reading.
pub(crate) struct Found {
    pub(crate) facts: KernelFacts,
    pub(crate) layout: Option<Layout>,
}

impl KernelFacts {
    /// Gathers all facts of this kernel, also by loading a program of each type, and the agent's own.
    pub fn gather() -> Self {
        let Found { mut facts, layout } = gather(Path::new("/"));
        let usable = |kind| is_program_supported(kind).map_err(|error| with_sources(&error));
        // Attached to a function for a moment, the others only loaded.
        facts.trampolines = usable(ProgramType::Tracing);
        facts.raw_tracepoints = usable(ProgramType::RawTracePoint);
        facts.kprobe_programs = usable(ProgramType::KProbe);
        if let Some(layout) = &layout {
            facts.refused = refusals(layout);
        }
        facts
    }

    /// Whether this kernel takes programs of a type at all, or why that is not known.
    pub const fn programs(&self, attach_type: AttachType) -> &Result<bool, String> {
        match attach_type {
            AttachType::Fentry | AttachType::Fexit => &self.trampolines,
            AttachType::Tracepoint => &self.raw_tracepoints,
            AttachType::Kprobe => &self.kprobe_programs,
        }
    }

    /// Whether the kernel has this function.
    pub fn has_function(&self, name: &str) -> bool {
        self.functions.iter().any(|(function, there)| *function == name && *there)
    }

    /// Whether the kernel has this tracepoint.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoints.iter().any(|(tracepoint, there)| *tracepoint == name && *there)
    }
}

/// An error and what caused it, in one line.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Reads the facts of the kernel whose `/proc` and `/sys` are under `root`; loads nothing.
pub(crate) fn gather(root: &Path) -> Found {
    let text = |path: &str| fs::read_to_string(root.join(path)).ok();
    // The kernel writes each of some hundred thousand symbols as text, which takes as long as all else at a start.
    let (symbols, btf) = thread::scope(|scope| {
        let symbols = scope.spawn(|| Symbols::read(&root.join("proc/kallsyms")).unwrap_or_default());
        let btf = Btf::read(&root.join("sys/kernel/btf/vmlinux"));
        (symbols.join().unwrap_or_else(|panic| resume_unwind(panic)), btf)
    });
    let layout = btf.as_ref().ok().map(|btf| Layout::resolve(btf, &symbols));
    let btf_says =
        |there: fn(&Btf, &str) -> bool, name: &'static str| (name, btf.as_ref().is_ok_and(|btf| there(btf, name)));
    let facts = KernelFacts {
        release: text("proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
        functions: hooks::functions().map(|name| btf_says(Btf::has_function, name)).collect(),
        tracepoints: hooks::tracepoints().map(|name| btf_says(Btf::has_tracepoint, name)).collect(),
        missing_members: layout.as_ref().map_or(Vec::new(), |layout| {
            layout.offsets.iter().map(|(name, _)| *name).filter(|name| layout.offset(name).is_none()).collect()
        }),
        threshold_blind: text("proc/cmdline")
            .filter(|line| memory_disabled(line))
            .map(|_| "cgroup_disable=memory is on the kernel's command line, so nothing is charged to a cgroup".into())
            .or_else(|| layout.as_ref().and_then(|layout| layout.blind.clone())),
        task_count: layout.as_ref().is_some_and(|layout| layout.address("NR_THREADS").is_some()),
        symbols_listed: symbols.listed(),
        symbols_visible: symbols.visible(),
        kptr_restrict: text("proc/sys/kernel/kptr_restrict").and_then(|value| value.trim().parse().ok()),
        lockdown: text("sys/kernel/security/lockdown").and_then(|modes| chosen(&modes)),
        psi: root.join("proc/pressure/memory").exists() && text("proc/pressure/memory").is_some(),
        memory_controller: text("sys/fs/cgroup/cgroup.controllers")
            .is_some_and(|controllers| controllers.split_whitespace().any(|controller| controller == "memory")),
        bpffs: text("proc/self/mounts")
            .is_some_and(|mounts| mounts.lines().any(|line| is_mount(line, "/sys/fs/bpf", "bpf"))),
        trampolines: Err("not probed".into()),
        raw_tracepoints: Err("not probed".into()),
        kprobe_programs: Err("not probed".into()),
        refused: Err("not probed".into()),
        btf: btf.map(drop),
    };
    Found { facts, layout }
}

/// Whether the kernel's command line disables the memory controller: `cgroup_disable=` takes a list.
fn memory_disabled(command_line: &str) -> bool {
    let lists = command_line.split_whitespace().filter_map(|word| word.strip_prefix("cgroup_disable="));
    lists.flat_map(|list| list.split(',')).any(|controller| controller == "memory")
}

/// The bracketed word of `none [integrity] confidentiality`.
fn chosen(modes: &str) -> Option<String> {
    let (_, rest) = modes.split_once('[')?;
    rest.split_once(']').map(|(mode, _)| mode.into())
}

/// Whether a line of the mount table is a mount of this type at this place.
fn is_mount(line: &str, at: &str, kind: &str) -> bool {
    let mut words = line.split(' ').skip(1);
    words.next() == Some(at) && words.next() == Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_lockdown_mode_is_in_brackets() {
        assert_eq!(chosen("none [integrity] confidentiality\n").as_deref(), Some("integrity"));
        assert_eq!(chosen("none\n"), None);
    }

    #[test]
    fn a_memory_controller_that_is_left_out_is_known() {
        for (line, disabled) in [
            ("quiet cgroup_disable=memory panic=1\n", true),
            ("cgroup_disable=cpu,memory", true),
            ("cgroup_disable=cpu cgroup_enable=memory", false),
            ("xcgroup_disable=memory cgroup_disable=memory_recursiveprot", false),
        ] {
            assert_eq!(memory_disabled(line), disabled, "{line}");
        }
    }

    #[test]
    fn an_empty_machine_has_no_facts_and_no_panic() {
        let directory = tempfile::tempdir().expect("tempdir");
        let Found { facts, layout } = gather(directory.path());
        assert!(facts.btf.is_err() && layout.is_none());
        assert!(!facts.psi && !facts.bpffs && !facts.symbols_visible && !facts.memory_controller);
        assert!(!facts.has_function("page_counter_try_charge"));
    }
}
