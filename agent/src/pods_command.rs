//! `plimsoll pods`: the pods of this machine in the order in which they would be evicted, and why one never is. Changes
//! nothing.

mod growth;
pub(crate) mod runtime;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use plimsoll_config::Configuration;
use plimsoll_inventory::Containers;
use plimsoll_node::os::CgroupMode;
use plimsoll_policy::{Uid, Verdict, Workload};
use plimsoll_replay::trace::{Sample, Workload as Sampled};
use plimsoll_replay::{printable, workloads_of};
use plimsoll_units::{Bytes, counted};
use serde::Serialize;
use serde_json::json;

use crate::explain::{all_needed, may_be_evicted, uid_of, words};
use crate::observe::{Observer, Own};
use crate::options::Options;
use crate::scanner::{LocalStorage, local_storage};
use growth::{ContainerRow, Growth, OfPod, Swap, Tasks};
use runtime::OfRuntime;
use table::table;

const NOTES: &str = "\
RANK 1 would be evicted first if memory were short now, by the configured evictionPolicy over a fresh sample, which shows no \
growth. A pod without a rank would not be evicted, for the reason in VERDICT. USAGE is the working set, as the kubelet \
computes it. RATE is how fast the pod grew within a second, without page cache; FORECAST is when the OOM killer would end it \
or one of its containers at this rate, at its own memory.max, DISTANCE bytes from now; THROTTLED is the part of that second \
for which tasks waited because of memory.high; DISK is what its volumes and logs take of disks, without writable \
layers; TASKS of TASKMAX (its pids.max) are threads; RESTARTS is how often each container was started again, by the container \
runtime, which is asked for it by --output wide and json where it is configured or pods are known. - is not known, or none.

A pod's request, priority and name come from a list: --pods, else `machine.podFacts`, as `kubectl get pods -A -o json \
--field-selector spec.nodeName=NODE` prints it, else with `machine.cluster` the API server, which is asked once and waited for \
5 s at most. Of a static pod that the list does not name they come from its manifest (`machine.staticPods`), which is joined by \
the container runtime's name of the pod. A pod that neither names is shown by its UID, and is never evicted.

Exit codes: 0 done; 1 there are no pods here, or the list of --pods cannot be read; 2 wrong arguments or configuration.";

/// Which pods, and how to print them.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// What is known of the pods, in place of `machine.podFacts` and of the API server, which is not asked then.
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// How to print them.
    #[arg(long, default_value = "table")]
    output: Output,
}

/// How to print the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// A line a pod.
    Table,
    /// The same with the distance to memory.max, what is in swap, may be and is compressed there, tasks, restarts of containers,
    /// the UID and the cgroup.
    Wide,
    /// One object with each container, amounts in bytes, and with what the container runtime says: labels, annotations, images
    /// and restarts.
    Json,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    /// Its place in the order of eviction, from 1; absent where it would not be evicted.
    rank: Option<u32>,
    /// `namespace/name`, printable; absent where the list does not name it.
    pod: Option<String>,
    uid: String,
    cgroup: String,
    qos: &'static str,
    /// Absent, as its request, where the list does not name it.
    priority: Option<i32>,
    request_bytes: Option<Bytes>,
    /// Its working set.
    usage_bytes: Option<Bytes>,
    #[serde(flatten)]
    swap: Swap,
    #[serde(flatten)]
    tasks: Tasks,
    /// What its volumes and logs take of disks.
    disk_bytes: Option<Bytes>,
    #[serde(flatten)]
    growth: Growth,
    containers: Vec<ContainerRow>,
    /// What the container runtime says; absent where it was not asked, or does not name the pod.
    runtime: Option<OfRuntime>,
    /// What would become of it if memory were short and all pods were needed.
    verdict: String,
}

/// Rates are those of so long.
const INTERVAL: Duration = Duration::from_secs(1);
/// What pods take of disks is measured for so long at most.
const DISK_TIME: Duration = Duration::from_secs(5);

/// Lists, prints, and gives the exit code.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    let configuration = crate::supervisor::configuration(&arguments.options)?;
    let own = Own::read_and_enter(arguments.pods.as_deref(), &configuration)?;
    let mode = CgroupMode::detect();
    if let Some(sentence) = mode.refusal() {
        bail!("no pod can be seen: {sentence}");
    }
    let file = arguments.pods.as_deref();
    let observer = Observer::of_pods(&configuration, mode.root(), &own)?;
    let disk = local_storage(configuration.kubelet_root(), configuration.pod_logs(), DISK_TIME);
    let mut rows = rows(&configuration, &observer, &disk, INTERVAL);
    if rows.is_empty() {
        bail!("{}", nowhere(&configuration));
    }
    let of_runtime = match arguments.output {
        Output::Table => Ok(BTreeMap::new()),
        Output::Wide | Output::Json => runtime::ask(&configuration),
    };
    let unasked = of_runtime.map(|named| name(&mut rows, named)).err();
    let printed = match arguments.output {
        Output::Table => table(&rows, false),
        Output::Wide => table(&rows, true),
        Output::Json => format!("{}\n", json!({ "pods": rows })),
    };
    crate::log::print(&printed);
    let too_long = "what some pods take of disks is not shown: it was not measured within 5 s";
    let notes = notes(&configuration, &observer, file, &rows);
    let unasked =
        unasked.map(|why| format!("labels, annotations, images and restarts are not known: {}", printable(&why)));
    for note in notes.into_iter().chain(disk.is_cut_short.then(|| too_long.to_owned())).chain(unasked) {
        crate::log::complain(&note);
    }
    Ok(0)
}

/// Where pods were looked for, and what to do.
fn nowhere(configuration: &Configuration) -> String {
    format!(
        "{}. Run it on a node, with the machine's cgroups mounted; where the kubelet has another cgroupRoot, name its \
         configuration with --kubelet-config",
        none_here(configuration)
    )
}

/// That there are no pods, and where they were looked for.
pub(crate) fn none_here(configuration: &Configuration) -> String {
    let root = crate::core::pod_root(configuration).0;
    let place = if root.is_empty() {
        "at the root of the cgroups and below kubelet".to_owned()
    } else {
        format!("below {}, the kubelet's cgroupRoot", root.escape_ascii())
    };
    format!("no pod has a cgroup here: looked for kubepods.slice and kubepods {place}")
}

/// What to know when reading the answer.
fn notes(configuration: &Configuration, observer: &Observer, file: Option<&Path>, rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    let unnamed = rows.iter().filter(|row| row.pod.is_none()).count();
    let pods = counted(unnamed, "pod", "pods");
    match observer.source_of_pods() {
        // Why is said where it was read.
        None if configuration.machine.knows_pods() => {}
        None => notes.push(
            "requests, priorities and names of pods are not known: name a list of them with --pods, or in \
             machine.podFacts, or a cluster in machine.cluster"
                .to_owned(),
        ),
        Some(source) if unnamed > 0 => notes.push(format!("{source} does not name {pods}")),
        Some(_) => {}
    }
    if file.is_some() && !configuration.machine.knows_pods() {
        notes.push(
            "`plimsoll run` evicts pods only with machine.podFacts or machine.cluster, of which none is configured"
                .to_owned(),
        );
    }
    notes
}

/// Every pod, those that would be evicted first, in that order.
fn rows(configuration: &Configuration, observer: &Observer, disk: &LocalStorage, interval: Duration) -> Vec<Row> {
    let mut containers = Containers::default();
    let pods = observer.read_pods(&mut containers);
    if pods > 0 {
        std::thread::sleep(interval);
        observer.read_pods(&mut containers);
    }
    let sample = observer.sample();
    let mut rank = 0;
    let row = |(sampled, verdict): (&Sampled, Verdict)| {
        let is_evicted = may_be_evicted(verdict);
        rank += u32::from(is_evicted);
        let name = observer.pod_name(sampled);
        let OfPod { growth, swap, tasks, containers } =
            growth::of_pod(&containers, sampled.id, &printable(&sampled.cgroup));
        Some(Row {
            rank: is_evicted.then_some(rank),
            pod: name.map(printable),
            uid: uid(sampled)?,
            cgroup: printable(&sampled.cgroup),
            qos: sampled.pod.as_ref()?.qos.name(),
            priority: name.map(|_| sampled.priority),
            request_bytes: name.map(|_| sampled.reservation_bytes),
            usage_bytes: sampled.usage_bytes,
            swap,
            tasks,
            disk_bytes: uid(sampled).and_then(|uid| disk.bytes.get(&Uid::of(&uid))).copied().map(Bytes),
            growth,
            containers,
            runtime: None,
            verdict: words(verdict),
        })
    };
    let mut rows: Vec<Row> = verdicts(configuration, &sample).into_iter().filter_map(row).collect();
    rows.sort_by_key(|row| row.rank.is_none());
    rows
}

/// The pods of a sample in the order of eviction, each with what would become of it if memory were short and all were
/// needed.
pub(crate) fn verdicts<'a>(configuration: &Configuration, sample: &'a Sample) -> Vec<(&'a Sampled, Verdict)> {
    let all = sample.workloads.iter().zip(workloads_of(sample, configuration));
    let (sampled, workloads): (Vec<&Sampled>, Vec<Workload<'_>>) = all.filter(|(it, _)| it.pod.is_some()).unzip();
    let plan = all_needed(&configuration.policy, &workloads);
    let ranked = plan.ranked.iter();
    ranked.filter_map(|ranked| Some((*sampled.get(ranked.workload as usize)?, ranked.verdict))).collect()
}

/// Adds what the container runtime says of each.
fn name(rows: &mut [Row], mut named: BTreeMap<Uid, OfRuntime>) {
    for row in rows {
        row.runtime = named.remove(&Uid::of(&row.uid));
        let sandboxes = row.runtime.as_ref().map_or(&[][..], |runtime| &runtime.sandboxes);
        row.swap.limit = row.swap.limit_of_pod(&row.containers, sandboxes);
    }
}

/// As it stands in the name of its cgroup.
pub(crate) fn uid(sampled: &Sampled) -> Option<String> {
    let name = sampled.cgroup.rsplit('/').next()?;
    uid_of(name).or_else(|| Some(sampled.pod.as_ref()?.uid.clone()))
}

#[cfg(test)]
mod tests {
    use super::table::{HEAD, WIDE};
    use super::*;
    use crate::observe::tests::tree;
    use crate::replay::PodList;

    const MIB: u64 = 1 << 20;
    const HASH: &str = "0123456789abcdef0123456789abcdef";

    fn uid(last: char) -> String {
        format!("01234567-89ab-cdef-0123-456789abcde{last}")
    }

    fn path(class: &str, uid: &str) -> String {
        let uid = uid.replace('-', "_");
        match class {
            "" => format!("kubepods.slice/kubepods-pod{uid}.slice"),
            class => format!("kubepods.slice/kubepods-{class}.slice/kubepods-{class}-pod{uid}.slice"),
        }
    }

    fn pod(name: &str, uid: &str, priority: i32, memory: &str) -> String {
        format!(
            r#"{{"metadata": {{"name": "{name}", "namespace": "n", "uid": "{uid}"}}, "spec": {{"priority": {priority},
            "containers": [{{"name": "c", "resources": {{"requests": {{"memory": "{memory}"}}}}}}]}}}}"#
        )
    }

    /// Seven pods, and what is known of five of them.
    fn node(never: &str) -> (tempfile::TempDir, Configuration, PathBuf) {
        let dir = tree(&[
            ("kubepods.slice", 2000 * MIB, 0, 0, 0, 0),
            (&path("burstable", &uid('1')), 300 * MIB, 0, 100 * MIB, 0, 0),
            (&path("burstable", &uid('2')), 400 * MIB, 0, 0, 0, 0),
            (&path("burstable", &uid('3')), 50 * MIB, 0, 0, 0, 0),
            (&path("besteffort", &uid('4')), 5 * MIB, 0, 0, 0, 0),
            (&path("burstable", HASH), 60 * MIB, 0, 0, 0, 0),
            (&path("", &uid('5')), 70 * MIB, 0, 0, 0, 0),
            (&path("burstable", &uid('6')), 80 * MIB, 0, 0, 0, 0),
        ]);
        for (file, text) in [("pids.current", "40\n"), ("pids.max", "64\n")] {
            std::fs::write(dir.path().join(path("burstable", &uid('1'))).join(file), text).expect("writable");
        }
        let list = format!(
            r#"{{"items": [{}, {}, {}, {}, {}]}}"#,
            pod("within", &uid('1'), 0, "500Mi"),
            pod("over", &uid('2'), 9, "100Mi"),
            pod("critical", &uid('3'), 2_000_000_000, "10Mi"),
            pod("red\\u001b[31m\\nx\\u009b1m", &uid('5'), -7, "10Mi"),
            pod("kept", &uid('6'), 0, "1Mi"),
        );
        let file = dir.path().join("pods.json");
        std::fs::write(&file, list).expect("writable");
        let never = format!("machine: {{never: ['{}']{never}}}", path("burstable", &uid('6')));
        (dir, plimsoll_config::parse(&never, "f").expect("it is in order"), file)
    }

    fn own(file: Option<&Path>) -> Own {
        Own { list: PodList::read(file).expect("readable"), account: None }
    }

    fn listed(configuration: &Configuration, root: &Path, file: Option<&Path>) -> Vec<Row> {
        let observer = Observer::of_pods(configuration, Some(root), &own(file)).expect("the list is in order");
        let disk = LocalStorage { bytes: [(Uid::of(uid('1')), 7 * MIB)].into(), is_cut_short: false };
        rows(configuration, &observer, &disk, Duration::ZERO)
    }

    fn noted(configuration: &Configuration, root: &Path, file: Option<&Path>, rows: &[Row]) -> Vec<String> {
        let observer = Observer::of_pods(configuration, Some(root), &own(file)).expect("the list is in order");
        notes(configuration, &observer, file, rows)
    }

    /// The rank of a pod, what it is printed as, its verdict, and what is known of it.
    type Said = (Option<u32>, String, String, Option<i32>, Option<u64>);

    fn said(rows: &[Row]) -> Vec<Said> {
        let said = |row: &Row| {
            let name = row.pod.clone().unwrap_or_else(|| row.uid.clone());
            (row.rank, name, row.verdict.clone(), row.priority, row.request_bytes.map(|it| it.0 / MIB))
        };
        rows.iter().map(said).collect()
    }

    #[test]
    fn a_sandbox_without_a_limit_of_swap_is_no_part_of_what_its_pod_may_have() {
        let pod = path("burstable", &uid('1'));
        let [container, sandbox] = ["aa", "5b"].map(|id| format!("{pod}/cri-containerd-{id}.scope"));
        let used = |cgroup| (cgroup, 10 * MIB, 0, 0, 0, 0);
        let dir = tree(&["kubepods.slice", &pod, &container, &sandbox].map(used));
        for (cgroup, limit) in [(&container, "4096\n"), (&sandbox, "max\n")] {
            std::fs::write(dir.path().join(cgroup).join("memory.swap.max"), limit).expect("writable");
        }
        let configuration = plimsoll_config::parse("", "f").expect("it is in order");
        let mut rows = listed(&configuration, dir.path(), None);
        assert_eq!((rows.len(), rows[0].containers.len(), rows[0].swap.limit), (1, 2, None));
        let of_runtime = OfRuntime { sandboxes: vec!["5b".to_owned()], ..OfRuntime::default() };
        name(&mut rows, [(Uid::of(uid('1')), of_runtime)].into());
        assert_eq!(rows[0].swap.limit, Some(Bytes(4096)));
    }

    #[test]
    fn pods_stand_in_the_order_of_the_engine_and_those_that_are_never_evicted_have_a_reason() {
        let (dir, configuration, file) = node("");
        let rows = listed(&configuration, dir.path(), Some(&file));
        let ranked: Vec<_> = said(&rows).into_iter().take_while(|(rank, ..)| rank.is_some()).collect();
        let may = || "may be evicted".to_owned();
        assert_eq!(
            ranked,
            [
                (Some(1), "n/red\\u{1b}[31m\\nx\\u{9b}1m".to_owned(), may(), Some(-7), Some(10)),
                (Some(2), "n/over".to_owned(), may(), Some(9), Some(100)),
                (Some(3), "n/within".to_owned(), may(), Some(0), Some(500)),
            ]
        );
        let mut never: Vec<_> = said(&rows).split_off(3);
        never.sort();
        let never_evicted = |why: &str| format!("never evicted: {why}");
        assert_eq!(
            never,
            [
                (None, uid('4'), never_evicted("a pod of which nothing is known"), None, None),
                (None, HASH.to_owned(), never_evicted("a static pod"), None, None),
                (None, "n/critical".to_owned(), never_evicted("critical priority"), Some(2_000_000_000), Some(10)),
                (None, "n/kept".to_owned(), never_evicted("listed by the owner"), Some(0), Some(1)),
            ]
        );
        let within = rows.iter().find(|row| row.pod.as_deref() == Some("n/within")).expect("it is there");
        assert_eq!(
            (within.qos, within.usage_bytes, within.swap.used, within.disk_bytes),
            ("Burstable", Some(Bytes(200 * MIB)), Some(Bytes(9)), Some(Bytes(7 * MIB)))
        );
        assert_eq!(within.tasks, Tasks { count: Some(40), limit: Some(64) });
        assert_eq!((within.uid.clone(), within.cgroup.clone()), (uid('1'), path("burstable", &uid('1'))));
        assert_eq!(noted(&configuration, dir.path(), Some(&file), &rows).len(), 2);
        // Guaranteed pods are the last ones of that policy, though this one is over its request and its priority lowest.
        let (dir, mut configuration, file) = node("");
        configuration.policy.eviction_policy = plimsoll_policy::EvictionPolicy::OpenShift3;
        let rows = listed(&configuration, dir.path(), Some(&file));
        let last = rows.iter().rfind(|row| row.rank.is_some()).and_then(|row| row.pod.as_deref());
        assert!(last.is_some_and(|last| last.starts_with("n/red")), "{last:?}");
    }

    #[test]
    fn without_a_list_pods_are_shown_by_their_uids_and_nothing_unknown_is_zero() {
        let (dir, configuration, _) = node("");
        let rows = listed(&configuration, dir.path(), None);
        assert_eq!(rows.len(), 7);
        assert!(
            rows.iter().all(|row| (row.rank, &row.pod, row.priority, row.request_bytes) == (None, &None, None, None))
        );
        let text = table(&rows, false);
        let line = text.lines().find(|line| line.contains(&uid('4'))).expect("it is there");
        let cells: Vec<&str> = line.split_whitespace().take(6).collect();
        assert_eq!(cells, ["-", &uid('4'), "BestEffort", "-", "-", "5.0"]);
        let notes = noted(&configuration, dir.path(), None, &rows);
        assert!(notes.len() == 1 && notes[0].contains("--pods"), "{notes:?}");
        assert!(PodList::read(Some(Path::new("/none"))).is_err());
    }

    #[test]
    fn the_list_may_be_that_of_the_configuration() {
        let (dir, _, file) = node("");
        let (_, configuration, _) = node(&format!(", podFacts: {}", file.display()));
        let rows = listed(&configuration, dir.path(), None);
        assert_eq!(rows.iter().filter(|row| row.pod.is_some()).count(), 5);
        assert_eq!(
            noted(&configuration, dir.path(), None, &rows),
            [format!("{} does not name 2 pods", file.display())]
        );
    }

    #[test]
    fn a_list_in_a_file_is_read_in_place_of_asking_a_cluster_and_where_neither_answers_nothing_is_known() {
        let (dir, _, file) = node("");
        let (_, configuration, _) = node(", cluster: {kubeconfig: /nowhere/kubeconfig, nodeName: n1}");
        for (file, named) in [(Some(file.as_path()), 5), (None, 0)] {
            let rows = listed(&configuration, dir.path(), file);
            assert_eq!(rows.iter().filter(|row| row.pod.is_some()).count(), named, "{file:?}");
            let notes = noted(&configuration, dir.path(), file, &rows);
            assert_eq!(notes.len(), usize::from(file.is_some()), "what cannot be asked was printed: {notes:?}");
        }
    }

    #[test]
    fn no_name_writes_a_control_character_and_columns_are_aligned() {
        let (dir, configuration, file) = node("");
        let rows = listed(&configuration, dir.path(), Some(&file));
        let json = json!({ "pods": rows }).to_string();
        for text in [table(&rows, false), table(&rows, true), json.clone()] {
            assert!(text.chars().all(|it| it == '\n' || it.is_ascii() && !it.is_control()), "{text:?}");
        }
        assert!(json.contains(r#""task_limit":64,"tasks":40"#), "{json}");
        let wide = table(&rows, true);
        let line = wide.lines().find(|line| line.contains("n/within")).expect("it is there");
        assert!(line.contains(" 40     64 "), "{line}");
        assert!(json.starts_with(r#"{"pods":[{"#) && json.contains(r#""rank":1"#), "{json}");
        for (is_wide, head) in [(false, [&HEAD[..WIDE.start], &HEAD[WIDE.end..]].concat()), (true, HEAD.to_vec())] {
            let text = table(&rows, is_wide);
            let (first, lines) = text.split_once('\n').expect("it has a head");
            assert_eq!(first.split_whitespace().collect::<Vec<_>>(), head);
            let verdict = first.find("VERDICT").expect("it is the last column");
            assert!(
                lines.lines().all(|line| line[..verdict].ends_with("  ") && line[verdict..].starts_with(['m', 'n'])),
                "{text}"
            );
        }
    }

    #[test]
    fn where_there_are_no_pods_the_error_names_what_was_looked_for() {
        let dir = tree(&[("system.slice", MIB, 0, 0, 0, 0)]);
        let configuration = Configuration::default();
        assert!(listed(&configuration, dir.path(), None).is_empty());
        let text = nowhere(&configuration);
        assert!(text.contains("kubepods.slice") && text.contains("--kubelet-config"), "{text}");
    }
}
