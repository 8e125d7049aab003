//! A dry run beside a kubelet that is left to itself.

use crate::turn::Turn;
use crate::view::{self, pod_that_takes};
use crate::{NODE, PATIENCE};

/// Nothing is done to the pod that grows, and what ends it is reported with how much sooner it would have been evicted.
#[test]
fn a_dry_run_is_compared_with_what_ends_the_pod_instead() {
    let turn = Turn::with_dry_run().expect("it is installed");
    let mut console = turn.console(NODE).expect("it is there");
    let mut grower = pod_that_takes("grower", 4096, 0);
    grower["spec"]["restartPolicy"] = "Never".into();
    turn.create(&grower).expect("it is accepted");
    let line =
        console.wait(&["pod default/grower was ended by the", "after the dry run would have evicted it"], PATIENCE);
    let line = line.expect("it is compared");
    println!("{line}");
    let report = view::of_agent(&turn, "shadow").expect("it is served");
    let row = report.lines().find(|row| row.starts_with("default/grower ")).expect("the pod has a row");
    let ended_by = ["oom_killer", "kubelet"].into_iter().find(|by| row.contains(by)).expect("by one of both");
    let has_times = row.ends_with(" s") && row.contains(" s ago ");
    assert!(line.contains(&format!("ended_by=\"{ended_by}\"")) && has_times, "{line}\n{row}");
    let grower = view::stored(&turn, "grower").expect("it is there");
    assert!(
        view::events(&turn, &grower, "Evicted")
            .expect("a list")
            .iter()
            .all(|it| it["source"]["component"] != "plimsoll")
    );
    assert_eq!(view::conditions_of_ours(&turn).expect("the node is there"), [""; 0]);
    turn.remove_agent().expect("it is removed");
}
