//! What was read once is read again the same, even if the files have changed.

use plimsoll_config::{Overrides, Snapshot, Sources, examine_and_keep, load_kept};
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
