//! What the programs cost, for the benchmarks and the tests: what the verifier takes for each, how often the kernel ran
//! them and how long, and how long it takes to load them and nothing else.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use aya::{
    Btf, EbpfLoader,
    programs::{Program, ProgramError, ProgramInfo, loaded_programs},
};

use crate::{
    ebpf::{OBJECT, attach, load, set_layout},
    error::SenseError,
    hooks,
    packet_rings::PacketRings,
    probe::{self, Found, with_sources},
    rules,
};

/// How long the kernel's name of a program is at most (`BPF_OBJ_NAME_LEN` less the end of the text).
const NAME_BYTES: usize = 15;

/// A program that is loaded, whatever loaded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedProgram {
    /// Its name: the whole one where it is one of the agent's, of which the kernel keeps 15 bytes.
    pub name: String,
    /// Instructions that the verifier went through, over all paths. Absent before Linux 5.16.
    pub verified_instructions: Option<u32>,
    /// Its size after the verifier changed it, in bytes of eBPF.
    pub translated_bytes: Option<u32>,
    /// Its size as the processor runs it, in bytes; zero where it is interpreted.
    pub machine_code_bytes: u32,
    /// How often it ran, while the kernel counted that.
    pub runs: u64,
    /// For how long, over all CPUs, in nanoseconds, likewise.
    pub run_time_ns: u64,
}

/// Every program that is loaded on this machine. Needs CAP_SYS_ADMIN.
pub fn loaded() -> Result<Vec<LoadedProgram>, SenseError> {
    let failed = |error: &dyn std::error::Error| SenseError::Ebpf { what: "what is loaded", why: with_sources(error) };
    let program = |info: Result<ProgramInfo, ProgramError>| {
        let info = info.map_err(|error| failed(&error))?;
        Ok(LoadedProgram {
            name: whole_name(info.name_as_str().unwrap_or_default()),
            verified_instructions: info.verified_instruction_count(),
            translated_bytes: info.size_translated(),
            machine_code_bytes: info.size_jitted(),
            runs: info.run_count(),
            run_time_ns: u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX),
        })
    };
    loaded_programs().map(program).collect()
}

/// The agent's name of a program that the kernel may have cut.
fn whole_name(name: &str) -> String {
    let is_it = |program: &&str| program.len() > NAME_BYTES && program.get(..NAME_BYTES) == Some(name);
    hooks::attachments().map(|it| it.program).find(is_it).unwrap_or(name).to_owned()
}

/// What the verifier goes through for each program of every alternative, with the in-kernel brake, without which parts of
/// them are taken out. They are loaded for that, and attached to nothing.
pub fn verified() -> Result<Vec<(&'static str, u32)>, SenseError> {
    let failed = |why: String| SenseError::Ebpf { what: "the kernel programs", why };
    let Found { layout, .. } = probe::gather(Path::new("/"));
    let layout = layout.ok_or_else(|| failed("no type information".into()))?;
    let types = Btf::from_sys_fs().map_err(|error| failed(with_sources(&error)))?;
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    set_layout(&mut loader, &layout);
    loader.override_global("KERNEL_BRAKE", &1_u32, true).override_global("ALLOWANCE_PARTS", &1_u64, true);
    let mut ebpf = loader.load(OBJECT).map_err(|error| failed(with_sources(&error)))?;
    let mut all = Vec::new();
    for attachment in hooks::attachments() {
        let name = attachment.program;
        load(&mut ebpf, attachment, &types).map_err(|why| failed(format!("{name}: {why}")))?;
        let info = match ebpf.program(name) {
            Some(Program::FEntry(program)) => program.info(),
            Some(Program::FExit(program)) => program.info(),
            Some(Program::BtfTracePoint(program)) => program.info(),
            Some(Program::KProbe(program)) => program.info(),
            _ => Err(ProgramError::UnexpectedProgramType),
        };
        let info = info.map_err(|error| failed(with_sources(&error)))?;
        let count = info.verified_instruction_count();
        all.push((name, count.ok_or_else(|| failed("this kernel does not count what it verifies".into()))?));
    }
    Ok(all)
}

/// How long it took to load and attach the programs that the agent would attach, and nothing else, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareLoad {
    /// What finding the kernel's addresses and offsets takes, which the programs need and any loader of programs that
    /// are built for one kernel does without. No part of the load.
    pub layout: Duration,
    /// The library reads the kernel's type information, to find what programs attach to.
    pub types: Duration,
    /// The object is read and its maps are made.
    pub maps: Duration,
    /// The kernel verifies and compiles the programs.
    pub verify: Duration,
    /// They are attached.
    pub attach: Duration,
}

impl BareLoad {
    /// All of the load.
    pub fn total(&self) -> Duration {
        let Self { layout: _, types, maps, verify, attach } = *self;
        types + maps + verify + attach
    }
}

/// Loads and attaches them, and takes them away again.
pub fn bare_load() -> Result<BareLoad, SenseError> {
    let failed = |why: String| SenseError::Ebpf { what: "a bare load", why };
    let mut last = Instant::now();
    let mut lap = || {
        let now = Instant::now();
        now - std::mem::replace(&mut last, now)
    };
    let Found { facts, layout: found } = probe::gather(Path::new("/"));
    let found = found.ok_or_else(|| failed("no type information".into()))?;
    let layout = lap();
    let btf = Btf::from_sys_fs().map_err(|error| failed(with_sources(&error)))?;
    let types = lap();
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    set_layout(&mut loader, &found);
    let mut ebpf = loader.load(OBJECT).map_err(|error| failed(with_sources(&error)))?;
    let maps = lap();
    let plan = rules::plan(&facts);
    let chosen: Vec<_> = plan.iter().filter_map(|planned| planned.choices.first()).copied().flatten().collect();
    for attachment in &chosen {
        load(&mut ebpf, attachment, &btf).map_err(failed)?;
    }
    let verify = lap();
    for attachment in &chosen {
        attach(&mut ebpf, attachment).map_err(failed)?;
    }
    // Its program is verified and attached at once, and opened by name.
    PacketRings::load(&mut ebpf, &found, &btf, Path::new("/sys/fs/bpf")).map_err(failed)?;
    Ok(BareLoad { layout, types, maps, verify, attach: lap() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_kernel_cut_is_whole_again() {
        for (cut, whole) in
            [("cgroup_populate", "cgroup_populated"), ("charge_fentry", "charge_fentry"), ("other", "other"), ("", "")]
        {
            assert_eq!(whole_name(cut), whole);
        }
        let names: Vec<&str> = hooks::attachments().map(|it| it.program).collect();
        let cut = |name: &&str| whole_name(name.get(..NAME_BYTES).unwrap_or(name)) == **name;
        assert!(names.iter().all(cut), "{names:?}");
    }

    #[test]
    fn what_finds_the_layout_is_no_part_of_a_load() {
        let ms = Duration::from_millis;
        let load = BareLoad { layout: ms(1000), types: ms(1), maps: ms(10), verify: ms(100), attach: ms(5) };
        assert_eq!(load.total(), ms(116));
    }
}
