//! What `check` reports of `machine.workloads` and `machine.never`: a pattern that matches nothing may be a mistake.

use std::path::Path;

use plimsoll_config::Configuration;
use plimsoll_inventory::Protected;
use plimsoll_node::cgroup::{Root, children, open_below};
use plimsoll_units::{Match, Pattern, counted};
use rustix::fd::{AsFd as _, BorrowedFd};

use super::{Row, bounded, row};
use crate::node_services;
use crate::observe::selected;

/// The cgroups that the patterns match now.
#[derive(Debug)]
pub(super) struct Workloads {
    /// How many of those that `machine.workloads` selects may be evicted.
    evictable: usize,
    /// How many of those are never evicted.
    never: usize,
    /// Whether pods are workloads too.
    knows_pods: bool,
    /// How many patterns there are in `machine.workloads`, and those that match nothing.
    selecting: (usize, Vec<String>),
    /// The same of `machine.never`.
    sparing: (usize, Vec<String>),
}

/// Absent where there is no tree of cgroups.
pub(super) fn find(configuration: &Configuration, root: Option<&Path>) -> Option<Workloads> {
    let (machine, root) = (&configuration.machine, Root::open(root?).ok()?);
    let protected = Protected { node: node_services::cgroups(configuration), ..Protected::read() };
    let (evictable, never) = selected(configuration, &root, &protected);
    let idle = |patterns: &[&Pattern]| {
        let idle = patterns.iter().filter(|pattern| !is_anywhere(pattern, root.as_fd(), &[]));
        (patterns.len(), idle.map(ToString::to_string).collect())
    };
    let workloads: Vec<_> = machine.workloads.iter().map(|workload| &workload.pattern).collect();
    let spared: Vec<_> = machine.never.iter().collect();
    let (selecting, sparing) = (idle(&workloads), idle(&spared));
    Some(Workloads { evictable, never, knows_pods: machine.knows_pods(), selecting, sparing })
}

/// Whether the pattern matches a cgroup below this one, which is at `path`.
fn is_anywhere(pattern: &Pattern, dir: BorrowedFd<'_>, path: &[u8]) -> bool {
    children(dir).unwrap_or_default().iter().any(|name| {
        let child = if path.is_empty() { name.clone() } else { [path, b"/", name].concat() };
        match pattern.match_of(&child) {
            Match::Whole | Match::Below => true,
            Match::Prefix => open_below(dir, name).is_ok_and(|dir| is_anywhere(pattern, dir.as_fd(), &child)),
            Match::Not => false,
        }
    })
}

pub(super) fn rows(found: &Workloads) -> [Row; 2] {
    let Workloads { evictable, never, knows_pods, selecting, sparing } = found;
    let beside = if *knows_pods { ", beside pods" } else { "" };
    let now = match selecting.0 {
        0 => format!("no pattern{beside}"),
        _ => format!("{} may be evicted now{beside}, {never} never", counted(*evictable, "cgroup", "cgroups")),
    };
    let advice = "nothing can be evicted as it is now: name in machine.workloads what may be, or set machine.podFacts or \
                  machine.cluster where pods are to be";
    let workloads_row =
        row("workloads", *evictable > 0 || *knows_pods, bounded(&format!("{now}{}", without(&selecting.1))), advice);
    // One that matches nothing is in order: what it names may be started later.
    let patterns = format!("{}{}", counted(sparing.0, "pattern", "patterns"), without(&sparing.1));
    [workloads_row, row("never evicted", true, bounded(&patterns), "")]
}

/// The patterns that match nothing.
fn without(idle: &[String]) -> String {
    if idle.is_empty() { String::new() } else { format!("; nothing is here of {}", idle.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::State;
    use crate::observe::tests::tree;

    #[test]
    fn patterns_that_match_nothing_are_named_and_no_workload_is_degraded_without_pods() {
        let tree = tree(&[
            ("a.slice", 9, 0, 0, 0, 0),
            ("a.slice/x.service", 5, 0, 0, 0, 0),
            ("a.slice/db.service", 4, 0, 0, 0, 0),
            ("b.slice/c.slice/y.scope", 4, 0, 0, 0, 0),
        ]);
        let lists = "workloads: [{match: 'a.slice/*'}, {match: 'b.slice/**'}, {match: 'a.slice/*.scope'}], \
                     never: ['a.slice/db.*', 'a.slice/postgres.service', 'a.slice/x.service/*']";
        for (text, workloads, spared, is_good) in [
            (
                format!("machine: {{{lists}}}"),
                "2 cgroups may be evicted now, 1 never; nothing is here of a.slice/*.scope",
                "3 patterns; nothing is here of a.slice/postgres.service, a.slice/x.service/*",
                true,
            ),
            (
                "machine: {workloads: [{match: 'aslice/*'}]}".to_owned(),
                "0 cgroups may be evicted now, 0 never; nothing is here of aslice/*",
                "0 patterns",
                false,
            ),
            (
                "machine: {workloads: [{match: 'a.slice/db.*'}], never: ['a.slice/db.*']}".to_owned(),
                "0 cgroups may be evicted now, 1 never",
                "1 pattern",
                false,
            ),
            ("{}".to_owned(), "no pattern", "0 patterns", false),
            ("machine: {podFacts: /run/pods/pods.json}".to_owned(), "no pattern, beside pods", "0 patterns", true),
            (
                "machine: {podFacts: /run/pods/pods.json, workloads: [{match: c}]}".to_owned(),
                "0 cgroups may be evicted now, beside pods, 0 never; nothing is here of c",
                "0 patterns",
                true,
            ),
        ] {
            let configuration = plimsoll_config::parse(&text, "f").expect("it is in order");
            let rows = rows(&find(&configuration, Some(tree.path())).expect("there is a tree"));
            let found = rows.each_ref().map(|row| row.found.as_str());
            assert_eq!(found, [workloads, spared], "{text}");
            let states = [if is_good { State::Ok } else { State::Degraded }, State::Ok];
            assert_eq!(rows.map(|row| row.state), states, "{text}");
        }
        assert!(find(&Configuration::default(), None).is_none(), "no rows without cgroups");
    }
}
