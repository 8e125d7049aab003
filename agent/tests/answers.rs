//! `explain` and `replay` as processes, and every command whose reader has left: it ends in order, and says so.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The program of this checkout: by what cargo says at run time, as a test may have been copied after it was built.
fn program() -> std::ffi::OsString {
    std::env::var_os("CARGO_BIN_EXE_plimsoll").expect("cargo says it")
}

fn plimsoll(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(directory);
    // What the caller's environment says is not what is tested.
    for name in [
        "PLIMSOLL_CONFIG",
        "PLIMSOLL_KUBELET_CONFIG",
        "PLIMSOLL_KUBELET_CONFIG_DIR",
        "PLIMSOLL_NODE_CONFIG",
        "PLIMSOLL_RUNNING_KUBELET",
    ] {
        command.env_remove(name);
    }
    command
}

/// Files that the tests name.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = "{\"plimsoll_trace\":4,\"agent\":\"0\"}\n\
                 {\"sample\":{\"at_ns\":1,\"memory\":{\"capacity_bytes\":1000,\"kubelet_bytes\":10,\"mem_available_bytes\":10},\
                 \"workloads\":[{\"cgroup\":\"a.slice/batch\",\"id\":7,\"usage_bytes\":600}]}}\n";
    for (name, text) in [
        ("good.yaml", "evictionHard: {memory.available: 5%, pid.available: 10%}\nswap: {free: 10%}\n"),
        ("disks.yaml", "evictionHard: {nodefs.available: 5%}\n"),
        ("bad.yaml", "colour: red\n"),
        ("pods.json", "{\"items\": []}"),
        ("no-pods.json", "[]"),
        ("pod.json", r#"{"kind": "Pod", "metadata": {"name": "a"}}"#),
        ("pods.yaml", "apiVersion: v1\nkind: List\nitems: []\n"),
        ("trace.jsonl", trace),
        ("broken.jsonl", "{\"plimsoll_trace\":4}\n"),
        ("always.yaml", "evictionHard: {memory.available: 99Pi}\n"),
    ] {
        std::fs::write(directory.path().join(name), text).expect("written");
    }
    std::fs::write(directory.path().join("trace.gz"), b"\x1f\x8b\x08\0\0").expect("written");
    directory
}

fn text(output: &Output) -> (String, String) {
    let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (of(&output.stdout), of(&output.stderr))
}

/// On this very machine, whatever cgroups it has: without version 2 it says so and reports the rest.
#[test]
fn explain_and_replay_answer_with_the_documented_exit_codes() {
    let directory = directory();
    for (arguments, code, stdout, stderr) in [
        (&["explain"][..], 0, "capacity ", ""),
        (&["explain", "--config", "good.yaml"], 0, "hard threshold of pid.available, ", ""),
        (&["explain", "--config", "good.yaml"], 0, "soft threshold of swap.free", ""),
        (&["explain", "--config", "good.yaml"], 0, "the requests of pods are not known without --pods", ""),
        (&["explain", "--pods", "pods.json"], 0, "no pod of the list runs here, ", ""),
        (&["explain", "--output", "json"], 0, "\"oom\":[{", ""),
        (&["explain", "--config", "disks.yaml"], 0, "now: no threshold on memory.available is configured", ""),
        (&["explain", "--pods", "no-pods.json"], 1, "", "no-pods.json:1"),
        (&["explain", "--pods", "pod.json"], 1, "", "pod.json:1: it is a single pod; expected a list, "),
        (&["explain", "--pods", "none.json"], 2, "", "none.json: it cannot be read: No such file"),
        (&["pods", "--pods", "none.json"], 2, "", "none.json: it cannot be read: No such file"),
        (&["replay", "trace.jsonl", "--pods", "none.json"], 2, "", "none.json: it cannot be read: No such file"),
        (&["cluster-cleanup"], 2, "", "machine.cluster: no cluster is configured"),
        (
            &["check", "--config", "always.yaml"],
            2,
            "",
            "always.yaml:1: evictionHard.memory.available: \"99Pi\": the machine has ",
        ),
        (
            &["check", "--kubelet-command-line", "/proc/self/cmdline"],
            2,
            "",
            "process self runs plimsoll, not a kubelet",
        ),
        (&["explain", "--config", "bad.yaml"], 2, "", "colour: unknown key"),
        (&["explain", "--colour"], 2, "", "--colour"),
        (&["replay", "trace.jsonl", "--config", "good.yaml"], 0, "    a.slice/batch: evicted; ", ""),
        (&["replay", "trace.jsonl", "--config", "good.yaml"], 0, "\n1 decision, 1 with an action\n", ""),
        (&["replay", "trace.jsonl", "--config", "good.yaml", "--output", "json"], 0, "\"acted\":1", ""),
        (&["replay", "broken.jsonl"], 1, "", "broken.jsonl:1"),
        (&["replay", "trace.jsonl", "--pods", "pods.json"], 0, "", "--pods has no effect on a trace"),
        (&["replay", "trace.jsonl", "--disks", "split"], 0, "", "--disks has no effect on a trace"),
        (
            &["replay", "pods.json"],
            1,
            "",
            "pods.json:1: it is a list of pods, which belongs under --pods; expected a trace",
        ),
        (&["replay", "trace.gz"], 1, "", "trace.gz:1: it is no JSON, and looks compressed (gzip); expand it first"),
        (&["replay", "trace.jsonl", "--pods", "pods.yaml"], 1, "", "pods.yaml:1: it looks like YAML; expected JSON, "),
        (&["replay", "none.jsonl"], 1, "", "cannot open none.jsonl"),
        (&["replay", "trace.jsonl", "--config", "bad.yaml"], 2, "", "colour: unknown key"),
        (&["replay"], 2, "", "<FILE>"),
    ] {
        let output = plimsoll(directory.path(), arguments).output().expect("it runs");
        let (said, reported) = text(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}{reported}");
        assert!(said.contains(stdout), "{arguments:?}: {said}");
        assert!(reported.contains(stderr), "{arguments:?}: {reported}");
    }
}

/// A pipe without a reader.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn a_reader_that_has_left_changes_no_exit_code() {
    let directory = directory();
    for arguments in [
        &["check"][..],
        &["check", "--output", "json"],
        &["config", "show"],
        &["config", "show", "--output", "json"],
        &["config", "check", "--capacity", "10Gi"],
        &["config", "check", "--capacity", "10Gi", "--output", "json"],
        &["config", "check", "--config", "bad.yaml"],
        &["config", "show", "--config", "bad.yaml"],
        &["config", "convert", "--to", "flags"],
        &["explain"],
        &["explain", "--output", "json"],
        &["replay", "trace.jsonl"],
        &["replay", "trace.jsonl", "--output", "json"],
    ] {
        let read = plimsoll(directory.path(), arguments).output().expect("it runs");
        let unread = plimsoll(directory.path(), arguments).stdout(closed()).output().expect("it runs");
        assert!(!read.stdout.is_empty() || !read.stderr.is_empty(), "{arguments:?} answers");
        assert_eq!(unread.status.code(), read.status.code(), "{arguments:?}: {}", text(&unread).1);
        assert!(!text(&unread).1.contains("panicked"), "{arguments:?}: {}", text(&unread).1);
        let silent = plimsoll(directory.path(), arguments).stdout(closed()).stderr(closed()).status().expect("it runs");
        assert_eq!(silent.code(), read.status.code(), "{arguments:?}");
    }
}
