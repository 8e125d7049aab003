//! The agent's token: which of its processes can read it, and one that the API server does not accept any more.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use plimsoll_cluster_suite::wait_for;
use serde_json::json;

use crate::eviction::{SETTLED, never_restarted, recorded};
use crate::turn::Turn;
use crate::view::{self, IDLE, pod, pod_that_takes};
use crate::{NODE, cost, overlay, service_manager};

/// The user and the group of the process that speaks to the API server (`agent/src/confine.rs`).
const SERVICES: u32 = 65525;
/// The user of the scanner, and CAP_DAC_READ_SEARCH.
const SCANNER: &str = "Uid: 65524 65524 65524 65524 Gid: 65524 65524 65524 65524 Groups: CapEff: 0000000000000004 ";

/// The API server issues none for a shorter time, and accepts one for a minute longer.
const ISSUED_FOR: Duration = Duration::from_mins(10);
const EXPIRES_WITHIN: Duration = Duration::from_mins(13);
/// Seconds for which the agent has the token that has expired.
const LASTS: &str = "150";
/// How long the kill, and then what is logged of a refusal, may take: together less than that.
const SOON: Duration = Duration::from_mins(1);
/// MiB in a second at which the pod grows.
const RATE: u32 = 60;

/// The kubelet did not give the agent the next token in time: the kill waits for none, and is recorded with the one that
/// comes.
#[test]
fn a_pod_is_killed_while_the_token_has_expired_and_recorded_once_with_the_next_one() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    turn.create(&pod("bystander", &IDLE)).expect("it is accepted");
    turn.runs("bystander").expect("it runs");
    let expired = expired(&turn).expect("it is issued, and expires");
    let mut console = turn.console(NODE).expect("it has a console");
    service_manager::start(&turn, "expires", &["/usr/bin/sh", "-c", &replaced(&turn, &expired).expect("it has a UID")])
        .expect("it is started");
    turn.create(&pod_that_takes("late", 2600, RATE)).expect("it is accepted");
    console.wait(&["\"kill\":\"emptied\"", "\"pod\":\"default/late\""], SOON).expect("it is killed without a token");
    console.wait(&["401 Unauthorized"], SOON).expect("what is refused is reported");
    let before = view::stored(&turn, "late").expect("it is there");
    assert_ne!(before["status"]["reason"], "Evicted", "the token was accepted: {before}");
    turn.is_evicted("late").expect("it is evicted");
    turn.pressure_ends().expect("there is room");
    thread::sleep(SETTLED);
    recorded(&turn, "late").expect("once, and it stays evicted");
    never_restarted(&turn, "late").expect("it stays dead");
    turn.runs("bystander").expect("it runs on");
}

/// Its file is root's, and of the users that the agent's processes take it is readable by that of `services` alone. The scanner may
/// read any file by its capability, and is barred from all by Landlock (`hostile-*` in the virtual machines try that).
#[test]
fn the_token_is_readable_by_services_alone() {
    let turn = Turn::with_agent(overlay::SENSITIVE).expect("it is installed");
    let mut console = turn.console(NODE).expect("it has a console");
    let folder = token_folder(&turn).expect("it has a UID");
    let script = cost::script(
        &turn,
        &format!(
            "for pid in $(cat $(container)/cgroup.procs); do
    echo NODE process $(awk '/^(Uid|Gid|Groups|CapEff):/ {{ $1 = $1; print }}' /proc/$pid/status) end > /dev/console
done
echo NODE token $(stat --dereference --format='%a %u %g' {folder}/token) > /dev/console"
        ),
    );
    let script = script.expect("there is an agent");
    service_manager::start(&turn, "reads", &["/usr/bin/sh", "-c", &script]).expect("it is started");
    let file = console.wait(&["NODE token "], SOON).expect("it is looked at");
    assert!(file.trim_end().ends_with(&format!("NODE token 640 0 {SERVICES}")), "{file}");
    let processes: Vec<&String> = console.lines.iter().filter(|line| line.contains("NODE process ")).collect();
    let id = SERVICES.to_string();
    let (root, others): (Vec<&String>, Vec<&String>) = processes.iter().partition(|it| it.contains("Uid: 0 0 0 0 "));
    let readers: Vec<_> = others.iter().filter(|it| it.split(' ').any(|word| word == id)).collect();
    let services = format!("Uid: {id} {id} {id} {id} Gid: {id} {id} {id} {id} Groups: CapEff: {:016x} end", 0);
    let capable: Vec<_> = others.iter().filter(|it| !it.contains(&format!("CapEff: {:016x} ", 0))).collect();
    assert!(root.len() == 2 && others.len() == 4, "the supervisor, the core, and the others: {processes:#?}");
    assert!(readers.len() == 1 && readers[0].contains(&services), "{processes:#?}");
    assert!(capable.len() == 1 && capable[0].contains(SCANNER), "{processes:#?}");
}

/// A token of the agent's service account that has expired.
fn expired(turn: &Turn) -> Result<String> {
    let token = turn.token("plimsoll", &json!({"expirationSeconds": ISSUED_FOR.as_secs()}))?;
    let by_it = turn.api.by_token(&token)?;
    wait_for("the token has expired", EXPIRES_WITHIN, || Ok((by_it.get("/api")?.status == 401).then_some(())))?;
    Ok(token)
}

/// A script that puts this token where the agent reads its own, and keeps the kubelet from putting that back for a while.
fn replaced(turn: &Turn, token: &str) -> Result<String> {
    Ok(format!(
        "set -e; PATH=/usr/bin; cd {}
echo {token} > ..data/token
mount -o remount,ro .
sleep {LASTS}
mount -o remount,rw .",
        token_folder(turn)?
    ))
}

/// Where the kubelet puts the agent's token.
fn token_folder(turn: &Turn) -> Result<String> {
    let agent = turn.agent_on(NODE)?;
    let uid = agent["metadata"]["uid"].as_str().context("each pod has one")?;
    Ok(format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected/token"))
}
