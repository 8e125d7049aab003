//! What `check` reports of the pods that are here: which of them are never evicted, and why.

use std::collections::BTreeMap;
use std::iter;
use std::path::Path;

use plimsoll_config::Configuration;
use plimsoll_policy::{Protected, Verdict};
use plimsoll_units::counted;

use super::{Row, bounded, row};
use crate::explain::{may_be_evicted, words};
use crate::observe::Observer;
use crate::pods_command::{none_here, uid, verdicts};
use crate::services::{Listed, StaticFound};

/// So many pods are named for each reason; the others are counted.
const MOST_NAMED: usize = 5;
/// A pod of which nothing is known.
const UNKNOWN: Verdict = Verdict::Protected(Protected::Unknown);

/// The pods that have a cgroup here.
#[derive(Debug)]
pub(super) struct Pods {
    /// `namespace/name`, or the UID where the list does not name it, and what would become of it if memory were short. In the
    /// order of eviction.
    verdicts: Vec<(String, Verdict)>,
    /// That there are none, and where they were looked for.
    none_here: String,
    /// What says which pods are on this node.
    source: Source,
}

/// What the configuration has for what is known of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    PodFacts,
    Cluster,
    Nothing,
}

/// Absent where there are none and `run` would look for none. `root`: the cgroup tree. `listed`: what is known of pods; absent
/// where nothing is. `statics`: what manifests say of static pods.
pub(super) fn find(
    configuration: &Configuration,
    root: Option<&Path>,
    listed: Option<&Listed>,
    statics: Option<&StaticFound>,
) -> Option<Pods> {
    let machine = &configuration.machine;
    let source = match &machine.pod_facts {
        Some(_) => Source::PodFacts,
        None if machine.cluster.is_on() => Source::Cluster,
        None => Source::Nothing,
    };
    let observer = Observer::of_listed(configuration, root?, listed, statics);
    let sample = observer.sample();
    // What is left of a pod that has ended has no process, and no list names it any more.
    let here = verdicts(configuration, &sample).into_iter().filter(|(pod, verdict)| *verdict != UNKNOWN || !pod.empty);
    let named = here.filter_map(|(pod, verdict)| {
        let name = observer.pod_name(pod).map(str::to_owned);
        Some((name.or_else(|| uid(pod))?, verdict))
    });
    let verdicts: Vec<_> = named.collect();
    let is_absent = verdicts.is_empty() && source == Source::Nothing;
    (!is_absent).then(|| Pods { verdicts, none_here: none_here(configuration), source })
}

pub(super) fn pods_row(Pods { verdicts, none_here, source }: &Pods) -> Row {
    let name = "pods";
    let here = format!("{} here", counted(verdicts.len(), "pod", "pods"));
    let advice = match source {
        Source::PodFacts => {
            "a pod of which nothing is known is never evicted, as it may be a critical one: write all pods of this node to \
             the file of machine.podFacts, whenever they change"
        }
        Source::Cluster => {
            "a pod of which nothing is known is never evicted, as it may be a critical one: the API server has to list it, \
             for the node of machine.cluster.nodeName"
        }
        Source::Nothing => {
            let names: Vec<_> = verdicts.iter().map(|(name, _)| name.as_str()).collect();
            let advice = "without machine.podFacts and machine.cluster `run` knows no pods, and evicts only what \
                          machine.workloads selects: set one of the two";
            return row(name, false, bounded(&format!("{here}: {}", some_of(&names))), advice);
        }
    };
    if verdicts.is_empty() {
        return row(name, true, bounded(none_here), "");
    }
    // Those that something is to be done about are first, as a row may be cut.
    let mut kept = BTreeMap::<_, Vec<_>>::new();
    let (mut evicted, mut never) = (0_usize, 0_usize);
    for (name, verdict) in verdicts {
        let why = match *verdict {
            verdict if may_be_evicted(verdict) => {
                evicted += 1;
                continue;
            }
            Verdict::Protected(why) => {
                never += 1;
                why.to_string()
            }
            verdict => words(verdict),
        };
        kept.entry((*verdict != UNKNOWN, why)).or_default().push(name.as_str());
    }
    let is_good = kept.keys().all(|(is_known, _)| *is_known);
    let all = format!("{here}: {evicted} may be evicted, {never} never");
    let kept = kept.iter().map(|((_, why), names)| format!("{why}: {}", some_of(names)));
    let found: Vec<String> = iter::once(all).chain(kept).collect();
    row(name, is_good, bounded(&found.join("; ")), advice)
}

/// The first of these names, and how many more there are.
fn some_of(names: &[&str]) -> String {
    let (first, more) = names.split_at(names.len().min(MOST_NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("{}{more}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{ROW_CHARACTERS, State};
    use crate::observe::tests::tree;
    use crate::services::{PodReader, facts_of};
    use plimsoll_inventory::PodFacts;
    use plimsoll_policy::Uid;
    use plimsoll_policy::kubelet::Critical;

    const HASH: &str = "0123456789abcdef0123456789abcdef";
    const FACTS: &str = "machine: {podFacts: /run/pods/pods.json}";

    fn uid(number: usize) -> String {
        format!("01234567-89ab-cdef-0123-{number:012x}")
    }

    fn path(uid: &str) -> String {
        format!("kubepods.slice/kubepods-pod{}.slice", uid.replace('-', "_"))
    }

    /// A tree with these pods.
    fn node(uids: &[String]) -> tempfile::TempDir {
        let paths: Vec<String> = uids.iter().map(|uid| path(uid)).collect();
        let cgroups: Vec<_> = paths.iter().map(|path| (path.as_str(), 5 << 20, 0, 0, 0, 0)).collect();
        tree(&cgroups)
    }

    /// A list of pods by name, number and priority.
    fn list(pods: &[(&str, usize, i32)]) -> Listed {
        let pod = |(name, number, priority): &(&str, usize, i32)| {
            format!(
                r#"{{"metadata": {{"name": "{name}", "namespace": "n", "uid": "{}"}}, "spec": {{"priority": {priority},
                "containers": [{{"name": "c"}}]}}}}"#,
                uid(*number)
            )
        };
        let pods: Vec<String> = pods.iter().map(pod).collect();
        let text = format!(r#"{{"items": [{}]}}"#, pods.join(", "));
        facts_of(text.as_bytes(), &mut PodReader::default()).expect("it is a list")
    }

    fn found(text: &str, root: &Path, listed: Option<&Listed>) -> Option<Row> {
        let configuration = plimsoll_config::parse(text, "f").expect("it is in order");
        let row = find(&configuration, Some(root), listed, None).as_ref().map(pods_row);
        assert!(row.iter().all(|row| (row.state == State::Ok) == row.advice.is_empty()), "{row:?}");
        row
    }

    #[test]
    fn a_pod_that_is_never_evicted_is_named_with_the_reason_as_it_should_be() {
        let dir = node(&[uid(1), uid(2), uid(3), HASH.to_owned(), uid(4)]);
        let listed = list(&[("a", 1, 0), ("b", 2, 7), ("critical", 3, 2_000_000_000), ("kept", 4, 0)]);
        let text = format!("machine: {{podFacts: /run/pods/pods.json, never: ['{}']}}", path(&uid(4)));
        let row = found(&text, dir.path(), Some(&listed)).expect("pods are known");
        let expected = format!(
            "5 pods here: 2 may be evicted, 3 never; a static pod: {HASH}; critical priority: n/critical; listed by the \
             owner: n/kept"
        );
        assert_eq!((row.found, row.state), (expected, State::Ok));
        let dir = node(&[uid(1)]);
        let row = found(FACTS, dir.path(), Some(&listed)).expect("pods are known");
        assert_eq!((row.found.as_str(), row.state), ("1 pod here: 1 may be evicted, 0 never", State::Ok));
    }

    #[test]
    fn a_pod_that_is_not_listed_is_named_by_its_uid_and_degraded_while_it_has_a_process() {
        let dir = node(&[uid(1), uid(2), uid(3)]);
        let listed = list(&[("critical", 2, 2_000_000_000)]);
        let cluster = "machine: {cluster: {kubeconfig: /etc/kubeconfig, nodeName: n1}}";
        for (text, advice) in [(FACTS, "machine.podFacts"), (cluster, "machine.cluster.nodeName")] {
            let row = found(text, dir.path(), Some(&listed)).expect("pods are known");
            let expected = format!(
                "3 pods here: 0 may be evicted, 3 never; a pod of which nothing is known: {}, {}; critical priority: \
                 n/critical",
                uid(1),
                uid(3)
            );
            assert_eq!((row.found, row.state), (expected, State::Degraded));
            assert!(row.advice.contains(advice), "{}", row.advice);
            let row = found(text, dir.path(), None).expect("pods are known");
            assert!(row.found.starts_with("3 pods here: 0 may be evicted, 3 never; a pod of which"), "{}", row.found);
        }
        for number in [1, 3] {
            let events = dir.path().join(path(&uid(number))).join("cgroup.events");
            std::fs::write(events, "populated 0\nfrozen 0\n").expect("writable");
        }
        let row = found(FACTS, dir.path(), Some(&listed)).expect("pods are known");
        let expected = "1 pod here: 0 may be evicted, 1 never; critical priority: n/critical";
        assert_eq!((row.found.as_str(), row.state), (expected, State::Ok));
    }

    #[test]
    fn a_static_pod_that_is_not_listed_has_the_name_that_it_has_by_its_manifest() {
        let dir = node(&[uid(1), HASH.to_owned()]);
        let configuration = plimsoll_config::parse(FACTS, "f").expect("it is in order");
        let named = |listed: &[(&str, usize, i32)], name: &str| {
            let facts = PodFacts { uid: Uid::of(HASH), critical: Some(Critical::Static), ..PodFacts::default() };
            let (path, pods) = ("/m".into(), vec![(facts, name.to_owned())]);
            let statics = StaticFound { path, manifests: 1, pods, troubles: Vec::new() };
            let pods = find(&configuration, Some(dir.path()), Some(&list(listed)), Some(&statics));
            pods_row(&pods.expect("pods are known")).found
        };
        let expected = "2 pods here: 1 may be evicted, 1 never; a static pod: n/etcd\\u{1b}-node";
        assert_eq!(named(&[("a", 1, 0)], "n/etcd\u{1b}-node"), expected);
    }

    #[test]
    fn many_pods_are_counted_and_a_row_has_a_bound() {
        let dir = node(&(0..12).map(uid).collect::<Vec<_>>());
        let row = found(FACTS, dir.path(), Some(&list(&[]))).expect("pods are known");
        assert!(row.found.ends_with(&format!("{} and 7 more", uid(4))), "{}", row.found);
        let long = "x".repeat(2000);
        let all: Vec<_> = (0..12).map(|number| (long.as_str(), number, 2_000_000_000)).collect();
        let row = found(FACTS, dir.path(), Some(&list(&all))).expect("pods are known");
        assert_eq!((row.found.len(), row.state), (ROW_CHARACTERS, State::Ok));
    }

    #[test]
    fn no_name_writes_a_control_character() {
        let dir = node(&[uid(1)]);
        let listed = list(&[("red\\u001b[31m\\nx\\u009b1m", 1, 2_000_000_000)]);
        let row = found(FACTS, dir.path(), Some(&listed)).expect("pods are known");
        assert!(row.found.ends_with(r"critical priority: n/red\x1b[31m\nx\xc2\x9b1m"), "{}", row.found);
    }

    #[test]
    fn without_what_says_which_pods_there_are_they_are_named_by_uid_and_none_is_looked_for() {
        let dir = node(&(0..6).map(uid).collect::<Vec<_>>());
        let row = found("{}", dir.path(), None).expect("there are pods");
        assert!(row.found.starts_with("6 pods here: 0") && row.found.ends_with(" and 1 more"), "{}", row.found);
        assert!(row.advice.contains("machine.workloads"), "{}", row.advice);
        let none = tree(&[("system.slice", 1 << 20, 0, 0, 0, 0)]);
        assert_eq!(found("{}", none.path(), None), None, "no row on a machine that is no node");
        let row = found(FACTS, none.path(), None).expect("pods are looked for");
        let expected = "no pod has a cgroup here: looked for kubepods.slice and kubepods at the root of the cgroups and below \
                        kubelet";
        assert_eq!((row.found.as_str(), row.state), (expected, State::Ok));
    }
}
