//! From this kernel's facts to programs that are loaded and attached.

use std::{
    fs,
    os::fd::AsFd as _,
    panic::resume_unwind,
    path::Path,
    sync::{Arc, atomic::AtomicU64},
    thread,
};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{HashMap, Map, PerCpuArray, RingBuf},
    programs::{Program, ProgramError},
    util::nr_cpus,
};

use super::{
    EbpfSource, Near,
    counts::{Counts, loaded_programs},
    table::{Table, WORDS},
};
use crate::{
    config::Config,
    error::SenseError,
    hooks::{AttachType, Attachment, THRESHOLD},
    layout::{ANCESTORS, Layout},
    mapped::MappedWords,
    packet_rings::PacketRings,
    probe::{self, Found, with_sources},
    rules::{self, Planned},
    source::{Hook, HookState, ReadHealth as _},
    thresholds::Generation,
};

pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/plimsoll.bpf.o"));

fn failed(what: &'static str) -> impl Fn(&dyn std::error::Error) -> SenseError {
    move |error| SenseError::Ebpf { what, why: with_sources(error) }
}

impl EbpfSource {
    /// Probes this kernel, loads the programs and attaches what it allows. Fails without the threshold hook.
    pub fn new(config: &Config) -> Result<Self, SenseError> {
        // The library reads the kernel's type information for itself too, for relocations that these programs do not
        // have: some 10 MiB that are given back at once.
        let (mut loader, types, Found { mut facts, layout }) = thread::scope(|scope| {
            let library = scope.spawn(|| {
                let mut loader = EbpfLoader::new();
                loader.btf(None);
                (loader, Btf::from_sys_fs())
            });
            let found = probe::gather(Path::new("/"));
            let (loader, types) = library.join().unwrap_or_else(|panic| resume_unwind(panic));
            (loader, types, found)
        });
        if config.no_trampolines {
            facts.trampolines = Ok(false);
        }
        let plan = rules::plan(&facts);
        let unusable = plan.iter().find(|planned| planned.family.name == THRESHOLD && planned.choices.is_empty());
        let reason = unusable.map(|planned| planned.reason.clone().unwrap_or_default());
        let (Some(layout), None) = (layout, &reason) else {
            let why = reason.unwrap_or_else(|| "no type information".into());
            return Err(SenseError::Ebpf { what: "the threshold hook", why });
        };

        let slices = slices_possible(&layout);
        let can_brake = brake_possible(config, facts.bpffs).and(slices.clone());
        let braking = u32::from(can_brake.is_ok());
        let burst = u64::try_from(config.stall_burst.as_nanos()).unwrap_or(u64::MAX);
        set_layout(&mut loader, &layout);
        let parts = allowance_parts();
        loader.override_global("STALL_BURST", &burst, true).override_global("KERNEL_BRAKE", &braking, true);
        loader.override_global("ALLOWANCE_PARTS", &parts, true);
        if can_brake.is_ok() {
            loader.map_pin_path("stopped", config.stopped_pin.as_path());
        }
        let mut ebpf = loader.load(OBJECT).map_err(|error| failed("the kernel programs")(&error))?;
        drop(loader);

        let types = types.map_err(|error| failed("the kernel's type information")(&error))?;
        let mut hooks = attach_all(&mut ebpf, &plan, &types)?;
        let by_level = |()| HookState::Attached("with the threshold hook, by the slice's level".into());
        hooks.push(Hook { name: "slices", state: slices.map_or_else(HookState::Missing, by_level) });
        if config.kernel_brake {
            let brake = match &can_brake {
                Ok(()) => {
                    HookState::Attached(format!("with the threshold hook, record in {}", config.stopped_pin.display()))
                }
                Err(why) => HookState::Missing(why.clone()),
            };
            hooks.push(Hook { name: "brake", state: brake });
        }
        let directory = config.stopped_pin.parent().unwrap_or(Path::new("/sys/fs/bpf"));
        let rings = PacketRings::load(&mut ebpf, &layout, &types, directory);
        hooks.push(Hook {
            name: "packet rings",
            state: match &rings {
                Ok(_) => HookState::Attached("iterator task_file".into()),
                Err(why) => HookState::Missing(why.clone()),
            },
        });
        let source = Self::assemble(ebpf, hooks, can_brake, rings.unwrap_or_default())?;
        if !source.counts.runs() {
            let why = "it is attached and does not run; the kernel runs no program at a function while \
                       kernel.ftrace_enabled is 0";
            return Err(SenseError::Ebpf { what: "the threshold hook", why: why.into() });
        }
        Ok(source)
    }

    fn assemble(
        mut ebpf: Ebpf,
        hooks: Vec<Hook>,
        can_brake: Result<(), String>,
        packet_rings: PacketRings,
    ) -> Result<Self, SenseError> {
        // The programs may have been built without logging: then there is nothing to forward.
        #[cfg(feature = "log")]
        let log = aya_log::EbpfLogger::init(&mut ebpf).ok();
        let mut take = |name: &'static str| ebpf.take_map(name).ok_or_else(|| no_map(name));
        let map_failed = failed("a map of the kernel programs");
        let Map::Array(table) = take("thresholds")? else { return Err(no_map("thresholds")) };
        let words = MappedWords::new(table.fd().as_fd(), WORDS)
            .map_err(|error| SenseError::System { action: "map the table of thresholds", error })?;
        let words = Arc::new(words);
        let source = Self {
            thresholds: RingBuf::try_from(take("threshold_ring")?).map_err(|error| map_failed(&error))?,
            events: RingBuf::try_from(take("event_ring")?).map_err(|error| map_failed(&error))?,
            table: Table::new(Arc::clone(&words)),
            stopped: HashMap::try_from(take("stopped")?).map_err(|error| map_failed(&error))?,
            counts: Arc::new(Counts {
                sums: PerCpuArray::try_from(take("counts")?).map_err(|error| map_failed(&error))?,
                malformed: AtomicU64::new(0),
                hooks,
                programs: loaded_programs(&ebpf),
                table: words,
            }),
            packet_rings,
            can_brake,
            generation: Generation(0),
            arming: 0,
            near_node: Near::default(),
            near_marks: Near::default(),
            page_bytes: rustix::param::page_size() as u64,
            #[cfg(feature = "log")]
            log,
            _ebpf: ebpf,
        };
        Ok(source)
    }
}

/// Gives the programs the kernel's addresses and offsets.
pub(crate) fn set_layout<'a>(loader: &mut EbpfLoader<'a>, layout: &'a Layout) {
    for (name, address) in &layout.addresses {
        loader.override_global(name, address, true);
    }
    for (name, offset) in &layout.offsets {
        loader.override_global(name, offset, true);
    }
}

/// Of how many parts of the distance to a threshold a CPU may charge one without a comparison. Where it is not known how
/// many CPUs there can be it is zero, and every charge is compared.
fn allowance_parts() -> u64 {
    /// All CPUs together may charge one of so many parts.
    const ALL: u64 = 8;
    nr_cpus().map_or(0, |possible| ALL * possible as u64)
}

fn no_map(name: &'static str) -> SenseError {
    SenseError::Ebpf { what: "the embedded object", why: format!("it has no map `{name}`") }
}

/// The programs see the machine's process numbers. The first PID namespace has a number that is part of the kernel's
/// interface (`PROC_PID_INIT_INO`).
fn is_initial_pid_namespace(link: &Path) -> bool {
    fs::read_link(link).is_ok_and(|to| to.as_os_str() == "pid:[4026531836]")
}

/// A slice's charges are found by the array of a cgroup's ancestors.
fn slices_possible(layout: &Layout) -> Result<(), String> {
    let needed = [ANCESTORS, "CGROUP_LEVEL", "CGROUP_MEMORY"];
    match needed.into_iter().find(|name| layout.offset(name).is_none()) {
        None => Ok(()),
        Some(name) => Err(format!("this kernel has no member for {name}; Linux 6.1 and later have")),
    }
}

/// The brake needs its record on bpffs; without one it must not stop anything.
fn brake_possible(config: &Config, bpffs: bool) -> Result<(), String> {
    if !config.kernel_brake {
        return Err("not configured".into());
    }
    if !bpffs {
        return Err("bpffs is not mounted at /sys/fs/bpf, so that what it stops could not be undone".into());
    }
    if !is_initial_pid_namespace(Path::new("/proc/self/ns/pid")) {
        return Err("this is not the machine's own PID namespace (hostPID), so what it stops could not be found".into());
    }
    let directory = config.stopped_pin.parent().unwrap_or(Path::new("/sys/fs/bpf"));
    fs::create_dir_all(directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))
}

fn attach_all(ebpf: &mut Ebpf, plan: &[Planned], btf: &Btf) -> Result<Vec<Hook>, SenseError> {
    let mut hooks = Vec::with_capacity(plan.len());
    for Planned { family, choices, reason } in plan {
        let mut why = reason.clone();
        let mut state = None;
        for choice in choices {
            match attach_choice(ebpf, choice, btf) {
                Ok(()) => {
                    let attached: Vec<String> =
                        choice.iter().map(|it| format!("{} {}", it.attach_type.name(), it.target)).collect();
                    state = Some(HookState::Attached(attached.join(", ")));
                    break;
                }
                Err(error) => {
                    why.get_or_insert(error);
                }
            }
        }
        if state.is_none() && family.name == THRESHOLD {
            return Err(SenseError::Ebpf { what: "the threshold hook", why: why.unwrap_or_default() });
        }
        let state = state.unwrap_or_else(|| HookState::Missing(why.unwrap_or_default()));
        hooks.push(Hook { name: family.name, state });
    }
    Ok(hooks)
}

/// Loads and attaches all programs of an alternative, or none of them.
fn attach_choice(ebpf: &mut Ebpf, choice: &[Attachment], btf: &Btf) -> Result<(), String> {
    for (index, attachment) in choice.iter().enumerate() {
        if let Err(error) = load(ebpf, attachment, btf).and_then(|()| attach(ebpf, attachment)) {
            for done in &choice[..=index] {
                // Unloading detaches; a program that never loaded returns an error, which does not matter here.
                let _ = ebpf.program_mut(done.program).map(unload);
            }
            return Err(format!("{} {}: {error}", attachment.attach_type.name(), attachment.target));
        }
    }
    Ok(())
}

/// Attaches a program that is loaded.
pub(crate) fn attach(ebpf: &mut Ebpf, attachment: &Attachment) -> Result<(), String> {
    let Attachment { program, target, .. } = attachment;
    let result = match ebpf.program_mut(program) {
        Some(Program::FEntry(program)) => program.attach().map(drop),
        Some(Program::FExit(program)) => program.attach().map(drop),
        Some(Program::BtfTracePoint(program)) => program.attach().map(drop),
        Some(Program::KProbe(program)) => program.attach(target, 0).map(drop),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    result.map_err(|error| with_sources(&error))
}

/// Loads a program: the kernel's verifier takes it or refuses it.
pub(crate) fn load(ebpf: &mut Ebpf, attachment: &Attachment, btf: &Btf) -> Result<(), String> {
    let Attachment { program, attach_type, target } = attachment;
    let program = ebpf.program_mut(program).ok_or_else(|| format!("the embedded object has no program `{program}`"))?;
    let result = match (attach_type, program) {
        (AttachType::Fentry, Program::FEntry(program)) => program.load(target, btf),
        (AttachType::Fexit, Program::FExit(program)) => program.load(target, btf),
        (AttachType::Tracepoint, Program::BtfTracePoint(program)) => program.load(target, btf),
        (AttachType::Kprobe, Program::KProbe(program)) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    result.map_err(|error| match error {
        ProgramError::LoadError { io_error, verifier_log } => refusal(&io_error, &verifier_log.to_string()),
        error => with_sources(&error),
    })
}

/// How lines begin that the verifier's log ends with, whatever came of the program.
const COUNTED: [&str; 3] = ["verification time ", "stack depth ", "processed "];

/// Why a program was not loaded, in one line: what the verifier's log ends with, before what it counted.
fn refusal(error: &std::io::Error, log: &str) -> String {
    let is_reason = |line: &&str| !line.is_empty() && !COUNTED.iter().any(|begin| line.starts_with(begin));
    match log.lines().map(str::trim).rfind(is_reason) {
        Some(line) => format!("the verifier refuses it: {line}"),
        None => format!("the kernel refuses it: {error}"),
    }
}

fn unload(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::FEntry(program) => program.unload(),
        Program::FExit(program) => program.unload(),
        Program::BtfTracePoint(program) => program.unload(),
        Program::KProbe(program) => program.unload(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks;
    use object::{Object as _, ObjectSymbol as _, SymbolKind};

    #[test]
    fn the_embedded_object_has_every_program_map_and_global() {
        let object = object::File::parse(OBJECT).expect("an ELF file");
        let defined = |name: &str, kind| {
            let is_it = |symbol: &object::Symbol<'_, '_>| symbol.name() == Ok(name) && symbol.kind() == kind;
            object.symbols().any(|symbol| symbol.is_definition() && is_it(&symbol))
        };
        for attachment in hooks::attachments() {
            assert!(defined(attachment.program, SymbolKind::Text), "{}", attachment.program);
        }
        for map in ["thresholds", "threshold_ring", "event_ring", "counts", "stopped"] {
            assert!(defined(map, SymbolKind::Data), "{map}");
        }
        for global in ["STALL_BURST", "KERNEL_BRAKE", "ALLOWANCE_PARTS"].into_iter().chain(Layout::globals()) {
            assert!(defined(global, SymbolKind::Data), "{global}");
        }
    }

    #[test]
    fn a_refusal_is_the_last_line_of_the_verifiers_log_before_its_counts() {
        let error = std::io::Error::from_raw_os_error(22);
        let log = "0: (bf) r6 = r1\nBPF_STX uses reserved fields\nverification time 30 usec\nstack depth 0+0\n\
                   processed 0 insns (limit 1000000)\n\n";
        assert_eq!(refusal(&error, log), "the verifier refuses it: BPF_STX uses reserved fields");
        assert!(refusal(&error, "").contains("os error 22"));
    }

    #[test]
    fn the_brake_is_never_loaded_without_a_place_for_its_record() {
        let directory = tempfile::tempdir().expect("tempdir");
        let config = |kernel_brake| Config {
            kernel_brake,
            stopped_pin: directory.path().join("deep/stopped"),
            ..Config::default()
        };
        assert!(brake_possible(&config(false), true).is_err());
        assert!(brake_possible(&config(true), false).is_err());
        assert_eq!(brake_possible(&config(true), true), Ok(()));
    }
}
