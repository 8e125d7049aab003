//! What was read once is read again the same, even if the files have changed.

use plimsoll_config::{Overrides, RunningKubelet, Snapshot, Sources, examine_and_keep, examine_anew, load_kept};
use std::fs;

/// Kubernetes' own head of a file.
const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

#[test]
fn a_snapshot_gives_the_same_configuration_when_the_files_are_gone() {
    let place = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = place.path().join(name);
        fs::create_dir_all(path.parent().expect("below it")).expect("writable");
        fs::write(&path, text).expect("writable");
        path
    };
    let named = file("named.yaml", &format!("{HEAD}evictionHard: {{memory.available: 300Mi}}\n"));
    let sources = Sources {
        own: Some(file("own.yaml", "machine: {workloads: [{match: work.slice/*}]}\n")),
        kubelet_config_dir: Some(file("drop-ins/10.conf", HEAD).parent().expect("below it").to_owned()),
        // A file that it names, and one that is not there.
        kubelet_command_line: vec![file("flags.env", &format!("KUBELET_ARGS=\"--config {}\"", named.display()))],
        ..Sources::default()
    };
    let overrides = Overrides::default();
    let (report, kept) = examine_and_keep(&sources, &overrides);
    assert_eq!(report.errors, []);
    assert_eq!(report.configuration.machine.workloads.len(), 1);
    let text = serde_json::to_string(&kept).expect("text and maps");
    drop(place);
    let kept: Snapshot = serde_json::from_str(&text).expect("it was just written");
    let again = load_kept(&kept, &sources, &overrides).expect("as it was");
    assert_eq!(format!("{again:?}"), format!("{:?}", report.configuration));
    assert!(load_kept(&Snapshot::default(), &sources, &overrides).is_err(), "what was not kept is not there");
}

/// This process stands for the kubelet: its command line has no flag of one.
#[test]
fn a_kubelet_that_runs_is_read_anew_and_the_own_file_is_not() {
    let place = tempfile::tempdir().expect("a directory");
    let own = place.path().join("own.yaml");
    fs::write(&own, "evictionHard: {memory.available: 300Mi}\n").expect("writable");
    let process = std::process::id();
    let running = |found| Sources { own: Some(own.clone()), running_kubelet: Some(found), ..Sources::default() };
    let sources = running(RunningKubelet::Process(process));
    let overrides = Overrides::default();
    let (report, kept) = examine_and_keep(&sources, &overrides);
    assert_eq!(report.errors, []);
    fs::write(&own, "no configuration").expect("writable");
    let (again, read) = examine_anew(&kept, &sources, &overrides);
    assert_eq!((again.errors, again.configuration.policy), (Vec::new(), report.configuration.policy));
    assert!(
        read.is_the_same_of(Some(process), &kept, Some(process)) && !read.is_the_same_of(Some(process), &kept, None)
    );
    let missing = RunningKubelet::NotFound("nothing listens".to_owned());
    let (report, _) = examine_anew(&kept, &running(missing), &overrides);
    let warning =
        "the kubelet that runs: --running-kubelet: nothing listens; a kubelet's defaults hold until one is found";
    assert!(report.warnings.iter().any(|problem| problem.to_string() == warning), "{:?}", report.warnings);
    let (report, _) = examine_and_keep(&running(RunningKubelet::Process(u32::MAX)), &overrides);
    assert!(
        report.errors.iter().any(|problem| problem.to_string().contains("/proc/4294967295/cmdline")),
        "{:?}",
        report.errors
    );
}
