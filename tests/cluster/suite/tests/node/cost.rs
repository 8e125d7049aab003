//! What the agent costs at rest, as the node's kernel counts it.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::Console;

use crate::NODE;
use crate::race::figures;
use crate::turn::Turn;

/// Functions of a shell on the node. `container` prints the cgroup of the agent's container, and `cost WHEN COUNT` prints on
/// the console what its processes have taken so far, beside so many pods.
const FUNCTIONS: &str = r#"
container() {
    for scope in $(find /sys/fs/cgroup/kubepods.slice -path '*-pod@AGENT@.slice/*.scope'); do
        # The container of the sandbox is not the agent.
        if read -r pid < $scope/cgroup.procs && [ $(cat /proc/$pid/comm) != plimsoll-guest ]; then echo $scope; fi
    done
}
cost() {
    agent=$(container)
    pids=$(cat $agent/cgroup.procs)
    wakes=$(for pid in $pids; do cat /proc/$pid/task/*/status; done | awk '/^voluntary/ { n += $2 } END { print n }')
    pss=$(for pid in $pids; do cat /proc/$pid/smaps_rollup; done | awk '/^Pss:/ { n += $2 } END { print n }')
    cpu=$(awk '/^usage_usec/ { print $2 }' $agent/cpu.stat)
    echo "NODE $1 pods=$2 at=$(awk '{ print int($1 * 1000) }' /proc/uptime) cpu=$cpu wakes=$wakes pss=$pss" > /dev/console
}
"#;

/// A script that has these functions for the agent that runs now.
pub(crate) fn script(turn: &Turn, script: &str) -> Result<String> {
    let agent = turn.agent_on(NODE)?["metadata"]["uid"].as_str().context("a UID")?.replace('-', "_");
    Ok(format!("{}{script}", FUNCTIONS.replace("@AGENT@", &agent)))
}

/// What all processes of the agent together take in a minute, and hold.
pub(crate) struct Cost {
    pub(crate) wakes: u64,
    /// KiB.
    pub(crate) pss: u64,
}

impl Cost {
    /// From `cost before` to `cost after`, where the console has them last, printed as a figure.
    pub(crate) fn last(console: &Console, pods: u64) -> Result<Self> {
        let taken = |key: &str| {
            let [before, after] = ["before", "after"].map(|what| figures(&console.lines, what, key).last().copied());
            before.zip(after).map(|(before, after)| after - before).with_context(|| format!("no {key}"))
        };
        let pss = *figures(&console.lines, "after", "pss").last().context("no pss")?;
        let cost = Self { wakes: taken("wakes")? * 60_000 / taken("at")?, pss };
        // Past the test harness, which keeps to itself what a test prints that passes.
        let _ = writeln!(
            std::io::stdout(),
            "FIGURE {pods} pods: {} ms of a processor and {} wake-ups in a minute, {} KiB (PSS)",
            taken("cpu")? * 60 / taken("at")?,
            cost.wakes,
            cost.pss
        );
        Ok(cost)
    }
}
