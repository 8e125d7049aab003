//! `plimsoll config` as a process: exit codes, and what goes where.

use std::path::Path;
use std::process::{Command, Output};

/// The program of this checkout: by what cargo says at run time, as a test may have been copied after it was built.
fn program() -> std::ffi::OsString {
    std::env::var_os("CARGO_BIN_EXE_plimsoll").expect("cargo sets it")
}

fn plimsoll(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.arg("config").args(arguments).current_dir(directory);
    // The caller's environment is not under test.
    for name in [
        "PLIMSOLL_CONFIG",
        "PLIMSOLL_KUBELET_CONFIG",
        "PLIMSOLL_KUBELET_CONFIG_DIR",
        "PLIMSOLL_NODE_CONFIG",
        "PLIMSOLL_RUNNING_KUBELET",
    ] {
        command.env_remove(name);
    }
    command.output().expect("it runs")
}

#[test]
fn exit_codes_are_the_documented_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    for (name, text) in [
        (
            "good.yaml",
            "evictionHard: {memory.available: 5%}\nsystemReserved: {memory: 2Gi}\nmachine: {workloads: [{match: 'a.slice/*'}]}\n"
                .to_owned(),
        ),
        ("idle-machine.yaml", "evictionHard: {memory.available: 5%}\nsystemReserved: {memory: 2Gi}\n".to_owned()),
        (
            "idle.yaml",
            "evictionHard: {memory.available: 5%, allocatableMemory.available: 1Gi}\nsystemReserved: {memory: 2Gi}\n"
                .to_owned(),
        ),
        ("bad.yaml", "evictionHard: {memory.available: lots}\ncolour: red\n".to_owned()),
        (
            "kubelet.yaml",
            format!("{kubelet}evictionHard: {{memory.available: 500Mi}}\nsystemReserved: {{memory: 2Gi}}\n"),
        ),
        (
            "node-config.yaml",
            "kubeletArguments: {system-reserved: ['1.5Gi'], maximum-dead-containers: ['9']}\n".to_owned(),
        ),
        ("pods.json", "[]".to_owned()),
        ("static.yaml", "kind: Pod\nmetadata: {name: a}\nspec: {priorityClassName: high}\n".to_owned()),
    ] {
        std::fs::write(directory.path().join(name), text).expect("written");
    }
    for (arguments, code, stdout, stderr) in [
        (&["show"][..], 0, "evictionHard.memory.available", ""),
        (&["show", "--config", "good.yaml"], 0, "good.yaml:1", ""),
        (&["show", "--config", "good.yaml", "--output", "json"], 0, "\"used\":true", ""),
        (
            &["show", "--config", "idle.yaml"],
            0,
            "idle.yaml:1 (replay and explain only)",
            "allocatableMemory.available: \"1Gi\": no effect in `run`",
        ),
        (
            &["check", "--capacity", "10Gi", "--config", "idle.yaml"],
            4,
            "allocatableMemory.available: \"1Gi\": no effect in `run`",
            "",
        ),
        (&["show", "--config", "bad.yaml"], 2, "", "colour: unknown key"),
        (&["show", "--config", "none.yaml"], 2, "", "none.yaml: it cannot be read"),
        (&["convert", "--config", "good.yaml", "--to", "flags"], 0, "--eviction-hard=memory.available<5%", ""),
        (
            &["convert", "--node-config", "node-config.yaml", "--to", "kubelet"],
            0,
            "systemReserved:\n  memory: '1.5Gi'\n",
            "left out: maximum-dead-containers",
        ),
        (&["convert", "--config", "good.yaml"], 2, "", "--to"),
        (&["check", "--capacity", "10Gi", "--config", "good.yaml"], 0, "in order", ""),
        (
            &["check", "--capacity", "10Gi", "--config", "idle-machine.yaml"],
            4,
            "warning  idle-machine.yaml: machine.workloads: missing, and neither machine.podFacts nor machine.cluster is set",
            "",
        ),
        (
            &["check", "--capacity", "10Gi", "--config", "idle-machine.yaml", "--pod-facts", "/run/pods/pods.json"],
            0,
            "in order",
            "",
        ),
        (&["check", "--kubelet-config", "kubelet.yaml", "--capacity", "10Gi"], 0, "in order", ""),
        (
            &["check", "--kubelet-config", "kubelet.yaml", "--capacity", "10Gi", "--system-uses", "3Gi"],
            4,
            "can reach the threshold of 500Mi",
            "",
        ),
        (
            &["check", "--kubelet-config", "kubelet.yaml", "--capacity", "10Gi", "--huge-pages", "1Gi"],
            0,
            "allocatable             6668Mi",
            "",
        ),
        (&["check", "--node-config", "node-config.yaml", "--capacity", "10Gi"], 4, "a resource is missing", ""),
        (
            &["check", "--capacity", "10Gi", "--config", "good.yaml", "--manifests", "static.yaml"],
            4,
            "static.yaml:3: static pod a",
            "",
        ),
        (&["check", "--config", "bad.yaml"], 2, "colour: unknown key", ""),
        (
            &["check", "--capacity", "10Gi", "--config", "good.yaml", "--pods", "pods.json"],
            2,
            "expected a list of pods",
            "",
        ),
        (&["check", "--capacity", "10Gi", "--config", "good.yaml", "--output", "json"], 0, "{\"code\":0,", ""),
        (&["check", "--capacity", "much"], 2, "", "--capacity"),
    ] {
        let output = plimsoll(directory.path(), arguments);
        let (said, reported) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}{reported}");
        assert!(said.contains(stdout), "{arguments:?}: {said}");
        assert!(reported.contains(stderr), "{arguments:?}: {reported}");
    }
}

#[test]
fn a_misspelt_key_gets_no_second_warning_for_its_absence() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("own.yaml"), "evictionHrd: {memory.available: 1Gi}\n").expect("written");
    let output =
        plimsoll(directory.path(), &["check", "--config", "own.yaml", "--capacity", "10Gi", "--system-uses", "1Gi"]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "error    own.yaml:1: evictionHrd: unknown key; did you mean evictionHard?\n");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_misspelt_variable_is_warned_of_by_each_command_that_reads_the_configuration() {
    let directory = tempfile::tempdir().expect("a directory");
    for arguments in [&["config", "check", "--capacity", "10Gi"][..], &["config", "show"], &["check"]] {
        let mut command = Command::new(program());
        command.args(arguments).current_dir(directory.path()).env("PLIMSOLL_SHADW", "true");
        let output = command.output().expect("it runs");
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        let expected = "PLIMSOLL_SHADW: unknown; did you mean PLIMSOLL_SHADOW?";
        assert!(printed.lines().any(|line| line.starts_with("warning  ") || line.contains("warning: ")), "{printed}");
        assert!(printed.contains(expected), "{arguments:?}: {printed}");
        assert!(!printed.contains("PLIMSOLL_CONFIG: unknown"), "{printed}");
    }
}

#[test]
fn a_flag_and_a_variable_override_the_file_and_are_named_as_origins() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("own.yaml"), "machine: {source: psi, stallPercent: 5}\n").expect("written");
    let show = |arguments: &[&str]| {
        let mut command = Command::new(program());
        command.args(["config", "show", "--config", "own.yaml"]).args(arguments).current_dir(directory.path());
        let output = command.env("PLIMSOLL_STALL_PERCENT", "30").output().expect("it runs");
        let words = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        (words(&output.stdout), words(&output.stderr), output.status.code())
    };
    let (rows, _, code) = show(&["--source", "poll"]);
    assert_eq!(code, Some(0));
    for row in ["machine.source poll --source", "machine.stallPercent 30 PLIMSOLL_STALL_PERCENT in the environment"] {
        assert!(rows.iter().any(|found| found == row), "{row}: {rows:#?}");
    }
    let (_, errors, code) = show(&["--source", "xdp", "--brake-deadline", "3s"]);
    assert_eq!(code, Some(2));
    assert_eq!(
        errors,
        [
            "plimsoll: --brake-deadline: machine.brake.deadline: \"3s\": expected a duration from 1ms to 2s",
            "--source: machine.source: \"xdp\": expected auto, ebpf, psi or poll",
        ]
    );
}
