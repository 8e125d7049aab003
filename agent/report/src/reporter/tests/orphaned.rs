//! Directories of pods that are gone.

use super::*;
use plimsoll_inventory::OrphanedPods;
use plimsoll_policy::Uid;

/// The series of them.
fn series(reporter: &Reporter) -> Vec<String> {
    let text = reporter.answers().metrics();
    text.lines().filter(|line| line.starts_with("plimsoll_orphaned_pods")).map(str::to_owned).collect()
}

#[test]
fn what_is_left_of_pods_that_are_gone_is_a_line_once_and_a_metric_each_time() {
    let mut reporter = reporter("", None);
    let record = |pods, is_new| Record::from(DiskRecord::Orphaned { pods, is_new });
    assert_eq!(series(&reporter), [] as [&str; 0], "what is not known is no series");
    let first = Some(Uid::of("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"));
    let some = OrphanedPods { measured: 2, unmeasured: 1, logs: Bytes::mib(1), volumes: Bytes::mib(3), first };
    let more = OrphanedPods { volumes: Bytes::mib(4), ..some };
    let said = lines(&mut reporter, &[record(some, true), record(more, false)]);
    assert_eq!(
        said.iter().map(text_of).collect::<Vec<_>>(),
        [
            "directories of 3 pods that are gone for good are left: logs take 1.0 MiB and volumes 3.0 MiB, and what those of 1 \
          take is not known; the first is 0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
        ]
    );
    let mut found = series(&reporter);
    found.sort();
    assert_eq!(
        found,
        [
            "plimsoll_orphaned_pods_bytes{part=\"logs\"} 1048576",
            "plimsoll_orphaned_pods_bytes{part=\"volumes\"} 4194304",
            "plimsoll_orphaned_pods{measured=\"false\"} 1",
            "plimsoll_orphaned_pods{measured=\"true\"} 2",
        ]
    );
    let said = lines(&mut reporter, &[record(OrphanedPods::default(), true)]);
    assert_eq!(
        said.iter().map(text_of).collect::<Vec<_>>(),
        ["no directories of pods that are gone for good are left"]
    );
}
