//! Our decisions against the kubelet's own answers. `PLIMSOLL_VECTORS` names another directory with files of the same
//! shape, compressed or not, in itself or in directories of its own.

use plimsoll_vectors::{RUNNERS, find};
use std::path::{Path, PathBuf};

/// From this package's folder, in which cargo runs its tests.
const SAVED: &str = "../data/vectors";

fn directory() -> PathBuf {
    std::env::var_os("PLIMSOLL_VECTORS").unwrap_or_else(|| SAVED.into()).into()
}

/// All cases of the files of this name are decided as the kubelet decides them.
fn holds(file: &str) {
    let directory = directory();
    let found = find(&directory).expect("a directory of saved decisions");
    let mut known = 0;
    for (path, runner) in found.iter().filter_map(|found| Some((&found.path, found.runner?))) {
        if runner.file != file {
            continue;
        }
        known += 1;
        let report = runner.run(path).expect("cases of the known shape");
        let (path, differ) = (path.display(), report.differences.len());
        let few = &report.differences[..differ.min(10)];
        assert!(few.is_empty(), "{path}: {differ} of {} cases differ, the first: {few:#?}", report.cases);
    }
    assert!(known > 0, "no {file} in {}", directory.display());
}

#[test]
fn messages_are_the_kubelets() {
    holds("message.json");
}

#[test]
fn parsing_is_the_kubelets() {
    holds("parse.json");
}

#[test]
fn node_selection_is_the_schedulers() {
    holds("selector.json");
}

#[test]
fn shutdown_is_the_kubelets() {
    holds("shutdown.json");
}

#[test]
fn ranking_is_the_kubelets() {
    holds("ranking.json");
}

#[test]
fn signals_are_the_kubelets() {
    holds("signals.json");
}

#[test]
fn runs_of_the_eviction_manager_are_the_kubelets() {
    holds("traces.json");
}

#[test]
fn every_saved_file_has_a_runner_and_every_runner_two_files() {
    let saved = Path::new(SAVED);
    let files = |directory: &Path| -> Vec<&str> {
        let found = find(directory).expect("the saved decisions").into_iter();
        found.map(|found| found.runner.unwrap_or_else(|| panic!("no runner: {:?}", found.path)).file).collect()
    };
    let runners: Vec<_> = RUNNERS.iter().map(|runner| runner.file).collect();
    assert_eq!(files(&saved.join("wide")), runners);
    // Those of the directory itself, and those below it.
    assert_eq!(files(saved), [runners.clone(), runners].concat());
}

#[test]
fn what_differs_and_what_is_not_understood_is_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let node = r#"{"metadata":{"name":"n"}}"#;
    let cases = format!(
        r#"{{"cases":[
            {{"kind":"preferred","name":"right","node":{node},"preferred":null,"score":0}},
            {{"kind":"preferred","name":"wrong","node":{node},"preferred":null,"score":7}},
            {{"kind":"unheard of","name":"odd"}}]}}"#
    );
    // Its pod is in no list.
    let odd = r#"{"admission_pods":{},"thresholds":null,"pods":[],"config":{"dedicated_image_fs":false,
        "dedicated_container_fs":false,"local_storage_capacity_isolation":true,"max_pod_grace_period_seconds":0,
        "pressure_transition_period_ns":0},"steps":[{"advance_ns":1,"active":["absent"],"state":{}}]}"#;
    let odd = format!(r#"{{"cases":[{odd},{{"name":"odd too"}}]}}"#);
    let files = [("selector.json", cases.as_str()), ("else.json", "{}"), ("parse.json", r#"{"cases":[]}"#)];
    for (file, text) in files.into_iter().chain([("traces.json", odd.as_str())]) {
        std::fs::write(directory.path().join(file), text).expect("a file");
    }
    let found = find(directory.path()).expect("a directory");
    let runners: Vec<_> = found.iter().map(|found| found.runner.map(|runner| runner.file)).collect();
    assert_eq!(runners, [None, Some("parse.json"), Some("selector.json"), Some("traces.json")]);
    let run = |index: usize| found[index].runner.expect("known").run(&found[index].path);
    assert!(run(1).expect_err("an empty file").to_string().ends_with("has no cases"));
    let report = run(2).expect("cases");
    let named: Vec<_> = report.differences.iter().map(|one| one.case.as_str()).collect();
    assert_eq!((report.passed(), named), (1, vec!["preferred: wrong", "unheard of: odd"]));
    let report = run(3).expect("cases");
    let texts: Vec<_> = report.differences.iter().map(|one| one.text.as_str()).collect();
    assert!(matches!(texts[..], ["not understood: a pod of the case", _]), "{texts:?}");
}
