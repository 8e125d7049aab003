use super::facts::is_locked;
use super::node::NodeFacts;
use super::*;
use crate::kill_switch::Ignored;
use crate::state_directory::StateDirectory;
use plimsoll_node::capabilities::Capability;
use plimsoll_node::process;
use std::path::Path;

/// A machine on which the agent can use everything.
fn good() -> Facts {
    let targets = |typed: bool| {
        hooks::FAMILIES
            .iter()
            .flat_map(|family| family.choices.iter().copied().flatten())
            .filter(move |it| (it.attach_type == hooks::AttachType::Tracepoint) == typed)
            .map(|it| (it.target, true))
            .collect()
    };
    let kernel = KernelFacts {
        release: "6.12".into(),
        btf: Ok(()),
        functions: targets(false),
        tracepoints: targets(true),
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
    };
    Facts {
        kernel,
        mode: CgroupMode::Unified,
        files: Some((true, true)),
        release: Ok(()),
        held: CAPABILITIES.iter().map(|(capability, _)| *capability).collect(),
        is_root: true,
        lockable: Some(Bytes::mib(8)),
        real_time: Some(0),
        swap: Some((Bytes::ZERO, Bytes::ZERO)),
        zswap: None,
        drift: Some((Bytes::mib(99), Bytes::mib(50))),
        lowest_threshold: Some(Bytes::mib(100)),
        peers: Vec::new(),
        other_acts: Some(false),
        state: StateDirectory { path: "/run/plimsoll".into(), read_only: None },
        kill_switch: Some(("/etc/switch".into(), Found::Absent)),
        kill_switch_distrust: None,
        wish: SourceChoice::Auto,
        in_kernel: 0,
        hidden_processes: None,
        workloads: None,
        node: NodeFacts::none(),
        known_pods: None,
        statics: None,
        journal: None,
        cluster: None,
        slices: Vec::new(),
        pods: None,
    }
}

/// The rows that are not as they should be.
fn troubles(facts: &Facts) -> Vec<String> {
    let rows = rows(facts);
    assert!(rows.iter().all(|row| (row.state == State::Ok) == row.advice.is_empty()), "{rows:?}");
    rows.into_iter().filter(|row| row.state != State::Ok).map(|row| row.name).collect()
}

fn without(facts: &mut Facts, capability: Capability) {
    facts.held.retain(|held| *held != capability);
}

#[test]
fn a_machine_in_order_has_no_advice() {
    assert_eq!(troubles(&good()), [""; 0]);
    assert_eq!(code(&rows(&good())), 0);
    let brake = Facts { in_kernel: 2, ..good() };
    assert_eq!(troubles(&brake), [""; 0]);
}

#[test]
fn each_thing_that_is_missing_is_a_row_with_advice() {
    type Break = fn(&mut Facts);
    let lower: &[&str] = &["in-kernel brake", "source"];
    let table: [(&[&str], Break); 32] = [
        (&["memory controller"], |facts| facts.kernel.memory_controller = false),
        (&["cgroup.kill"], |facts| facts.files = Some((false, true))),
        (&["cgroup.freeze"], |facts| facts.files = Some((true, false))),
        (&["process_mrelease"], |facts| facts.release = Err("ENOSYS".into())),
        (&["hook stall", "pressure (PSI)"], |facts| facts.kernel.psi = false),
        (&["kernel symbols", "hook threshold", "hook tasks"], |facts| {
            facts.kernel.symbols_visible = false;
            facts.kernel.kptr_restrict = Some(2);
            facts.kernel.threshold_blind = Some("hidden".into());
            facts.kernel.task_count = false;
        }),
        (&["lockdown"], |facts| facts.kernel.lockdown = Some("confidentiality".into())),
        (&["in-kernel brake"], |facts| facts.hidden_processes = Some("hidepid".into())),
        (&["bpffs", "in-kernel brake"], |facts| facts.kernel.bpffs = false),
        (&["hook oom"], |facts| facts.kernel.missing_members.push("OC_CHOSEN")),
        (&["cgroups"], |facts| facts.mode = CgroupMode::Hybrid { unified: "/sys/fs/cgroup/unified".into() }),
        (&["CAP_BPF"], |facts| without(facts, capabilities::BPF)),
        (&["CAP_PERFMON"], |facts| without(facts, capabilities::PERFMON)),
        (&["CAP_KILL"], |facts| without(facts, capabilities::KILL)),
        (&["CAP_SYS_RESOURCE", "locked memory"], |facts| without(facts, capabilities::SYS_RESOURCE)),
        (&["CAP_SYS_NICE", "real-time priority"], |facts| without(facts, capabilities::SYS_NICE)),
        (&["swap"], |facts| facts.swap = None),
        (&["memory counters"], |facts| facts.drift = None),
        (&["memory counters"], |facts| facts.drift = Some((Bytes::mib(751), Bytes::mib(50)))),
        (&["memory counters"], |facts| facts.drift = Some((Bytes::mib(50), Bytes::mib(100)))),
        (&["other OOM daemon"], |facts| {
            let pid = process::Pid::from_raw(7).expect("not zero");
            facts.peers = vec![Peer { name: "earlyoom", pid }];
        }),
        (&["other agent"], |facts| facts.other_acts = Some(true)),
        (&["other agent"], |facts| facts.other_acts = None),
        (&["state directory"], |facts| facts.state.read_only = Some("/configured".into())),
        (&["kill switch"], |facts| facts.kill_switch = Some(("/etc/switch".into(), Found::Thrown))),
        (&["kill switch"], |facts| {
            facts.kill_switch = Some(("/etc/switch".into(), Found::Ignored(Ignored::FileOf(7))));
        }),
        (&["kill switch"], |facts| facts.kill_switch_distrust = Some(Ignored::Writable("/etc".into()))),
        (&["in-kernel brake", "source"], |facts| facts.wish = SourceChoice::Psi),
        (&["fentry programs", "hook stall"], |facts| facts.kernel.trampolines = Ok(false)),
        (&["hook threshold", "in-kernel brake", "source"], |facts| {
            facts.kernel.refused = Ok(["charge_fentry", "charge_kprobe"].map(|name| (name, "why".into())).into());
        }),
        (&["hook stall"], |facts| facts.kernel.refused = Ok(vec![("stall_enter", "why".into())])),
        (&["tracepoint programs", "hook kswapd", "hook direct reclaim", "hook tasks", "hook cgroups"], |facts| {
            facts.kernel.raw_tracepoints = Ok(false);
        }),
    ];
    let without_ebpf = ["kernel symbols", "lockdown", "CAP_BPF", "CAP_PERFMON"];
    for (expected, spoil) in table {
        let mut facts = good();
        spoil(&mut facts);
        let mut expected = expected.to_vec();
        if without_ebpf.contains(&expected[0]) {
            expected.extend(lower);
        }
        let (mut expected, mut found) = (expected, troubles(&facts));
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(code(&rows(&facts)), DEGRADED, "{expected:?}");
    }
}

#[test]
fn without_type_information_or_programs_there_is_no_hook() {
    let mut facts = good();
    facts.kernel.btf = plimsoll_sense::btf::Btf::parse(Vec::new()).map(drop);
    let no_types = troubles(&facts);
    let mut facts = good();
    facts.kernel.trampolines = Err("not permitted".into());
    facts.kernel.raw_tracepoints = Err("not permitted".into());
    facts.kernel.kprobe_programs = Err("not permitted".into());
    let no_programs = troubles(&facts);
    let mut facts = good();
    facts.kernel.refused = Err("no memory for maps".into());
    let no_maps = troubles(&facts);
    for found in [no_types, no_programs, no_maps] {
        for family in hooks::FAMILIES {
            assert!(found.contains(&format!("hook {}", family.name)), "{found:?}");
        }
        assert!(found.contains(&"source".to_owned()), "{found:?}");
    }
}

#[test]
fn the_source_is_the_best_that_works_or_the_only_one_that_is_allowed() {
    for (ebpf, psi, wish, expected) in [
        (true, true, SourceChoice::Auto, Some(Kind::Ebpf)),
        (false, true, SourceChoice::Auto, Some(Kind::PsiTrigger)),
        (false, false, SourceChoice::Auto, Some(Kind::Polling)),
        (true, true, SourceChoice::Psi, Some(Kind::PsiTrigger)),
        (true, true, SourceChoice::Poll, Some(Kind::Polling)),
        (true, false, SourceChoice::Psi, None),
        (false, true, SourceChoice::Ebpf, None),
    ] {
        let mut facts = Facts { wish, ..good() };
        if !ebpf {
            without(&mut facts, capabilities::BPF);
        }
        facts.kernel.psi = psi;
        assert_eq!(source(&facts), expected, "{ebpf} {psi} {wish:?}");
        assert_eq!(code(&rows(&facts)) == CANNOT, expected.is_none(), "{ebpf} {psi} {wish:?}");
    }
    // A kprobe is the hook of the threshold where there are no trampolines.
    let mut facts = good();
    facts.kernel.trampolines = Ok(false);
    assert_eq!(source(&facts), Some(Kind::Ebpf));
}

#[test]
fn a_machine_that_cannot_be_served_is_named() {
    for (mode, says) in [(CgroupMode::Legacy, "version 1 only"), (CgroupMode::Absent, "not mounted")] {
        let rows = rows(&Facts { mode, ..good() });
        assert_eq!(code(&rows), CANNOT);
        let text = text(&rows);
        assert!(text.lines().any(|line| line.starts_with("cannot    cgroups ") && line.ends_with(says)), "{text}");
    }
}

#[test]
fn root_is_not_advised_to_run_as_root() {
    for (is_root, advises) in [(true, false), (false, true)] {
        let mut facts = Facts { is_root, other_acts: None, ..good() };
        without(&mut facts, capabilities::KILL);
        let advice: Vec<String> = rows(&facts).into_iter().map(|row| row.advice).filter(|it| !it.is_empty()).collect();
        assert_eq!(advice.len(), 2, "{advice:?}");
        assert!(advice.iter().all(|advice| advice.contains("run as root") == advises), "{advice:?}");
    }
}

#[test]
fn symbols_that_are_not_listed_are_not_a_matter_of_rights() {
    for (listed, found, advice) in [
        (true, "hidden, kernel.kptr_restrict 1", "kernel.kptr_restrict"),
        (false, "not listed, ", "CONFIG_KALLSYMS_ALL"),
    ] {
        let mut facts = good();
        (facts.kernel.symbols_listed, facts.kernel.symbols_visible) = (listed, false);
        facts.kernel.kptr_restrict = Some(1);
        let rows = rows(&facts);
        let row = rows.iter().find(|row| row.name == "kernel symbols").expect("a row");
        assert!(row.found.starts_with(found) && row.advice.contains(advice), "{row:?}");
    }
}

#[test]
fn a_lock_is_seen_without_being_tried() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    assert_eq!(is_locked(file.path()), Some(false));
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("no other process knows it");
    assert_eq!(is_locked(file.path()), Some(true));
    let other = tempfile::NamedTempFile::new().expect("a temporary file");
    assert_eq!(is_locked(other.path()), Some(false));
    assert_eq!(is_locked(Path::new("/proc/self/none/lock")), Some(false));
}
