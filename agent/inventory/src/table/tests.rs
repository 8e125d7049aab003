use super::*;
use plimsoll_node::cgroup::Root;
use plimsoll_policy::Terminating;
use std::fs;
use std::path::Path;

const NOW: MonotonicNs = MonotonicNs(50);

fn facts(tree: &Path, name: &str, usage: u64, inactive_file: u64) -> Facts {
    let folder = tree.join(name);
    fs::create_dir_all(&folder).expect("writable");
    let text = usage.to_string();
    for (file, text) in [("cgroup.events", "populated 1\n"), ("cgroup.procs", ""), ("memory.current", &text)] {
        fs::write(folder.join(file), text).expect("writable");
    }
    let root = Root::open(tree).expect("it is there");
    let handle = plimsoll_node::cgroup::Handle::open(&root, name.as_bytes()).expect("readable").expect("it is there");
    Facts {
        handle: Arc::new(handle),
        owner: None,
        reservation: Bytes::ZERO,
        cache: PageCache { charged: Bytes(usage), inactive_file: Bytes(inactive_file), reclaimable: None },
        is_cache_read: true,
        priority: 0,
        started: MonotonicNs(1),
        slices: SliceSet::NONE,
        pod: None,
    }
}

#[test]
fn a_cgroup_or_one_above_it_is_found() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let mut table = Table::with_slots(8);
    let (a, b) = (facts(tree.path(), "a", 0, 0), facts(tree.path(), "b", 0, 0));
    let (id_a, id_b) = (a.handle.id(), b.handle.id());
    assert!(table.take(Update::Workload(5, a)).is_none());
    table.take(Update::Workload(2, b));
    assert_eq!(table.of(&[Some(id_b), None]), Some(Key { slot: 2, id: id_b }));
    assert_eq!(table.of(&[Some(CgroupId(1)), Some(id_a), None]), Some(Key { slot: 5, id: id_a }));
    assert_eq!(table.of(&[None, Some(CgroupId(1))]), None);
}

#[test]
fn a_reservation_of_the_largest_amount_there_is_is_a_request_of_as_much() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let mut table = Table::with_slots(8);
    // As `max` in `memory.low` is read.
    table.take(Update::Workload(0, Facts { reservation: Bytes(u64::MAX), ..facts(tree.path(), "one", 1000, 300) }));
    assert_eq!(table.observe(0, false, NOW)[0].facts.memory_request.to_bytes(), Bytes(u64::MAX));
}

#[test]
fn usage_is_without_page_cache_that_reclaim_takes_first_and_ending_workloads_are_terminating() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let mut table = Table::with_slots(8);
    let one = facts(tree.path(), "one", 1000, 300);
    let id = one.handle.id();
    table.take(Update::Workload(0, one));
    assert_eq!(table.observe(0, false, NOW)[0].working_set(), Some(Bytes(700)));
    for (termination, is_stuck, is_graceful, until) in [
        (Termination::Asked(MonotonicNs(9), 4), false, true, Some(MonotonicNs(9))),
        (Termination::Killing, false, false, None),
        (Termination::Killed(Bytes(700)), false, false, None),
        (Termination::Stuck(Bytes(700)), true, false, None),
        (Termination::Refused(MonotonicNs(NOW.0 + 1)), true, false, None),
    ] {
        table.set_termination(id, termination);
        let is_refused = matches!(termination, Termination::Refused(_));
        let terminating = Terminating { is_stuck, is_refused, is_graceful, until };
        assert_eq!(table.observe(0, false, NOW)[0].terminating, Some(terminating));
    }
    table.set_termination(id, Termination::Asked(MonotonicNs(9), 4));
    assert_eq!(table.next_overdue(), Some((MonotonicNs(9), Key { slot: 0, id }, 4)));
}

#[test]
fn a_pod_that_was_deleted_is_terminating_until_this_process_ends_it_itself() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let mut table = Table::with_slots(8);
    let pod = crate::Pod {
        uid: Uid(7),
        qos: QosClass::Burstable,
        protected: None,
        memory_request: Bytes::ZERO,
        grace_seconds: None,
        daemon_set: None,
        serves_others: false,
        ends: Some(NOW),
    };
    let deleted = Facts { pod: Some(pod), ..facts(tree.path(), "one", 1000, 300) };
    let id = deleted.handle.id();
    table.take(Update::Workload(0, deleted));
    let graceful = Some(Terminating { is_graceful: true, until: Some(NOW), ..Terminating::default() });
    assert_eq!(table.observe(0, false, NOW)[0].terminating, graceful);
    for (termination, expected) in
        [(Termination::Killing, Some(Terminating::default())), (Termination::Stays, graceful)]
    {
        table.set_termination(id, termination);
        assert_eq!(table.observed()[0].terminating, expected, "{termination:?}");
        assert_eq!(table.observe(0, false, NOW)[0].terminating, expected, "{termination:?}");
    }
    let late = NOW.after(core::time::Duration::from_secs(31));
    assert_eq!(table.observe(0, false, late)[0].terminating, None, "nothing ends it");
}

#[test]
fn tasks_are_counted_where_that_is_asked_for() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let mut table = Table::with_slots(8);
    for (slot, name, tasks) in [(0, "counted", Some("17\n")), (1, "uncounted", None)] {
        let facts = facts(tree.path(), name, 1000, 0);
        if let Some(tasks) = tasks {
            fs::write(tree.path().join(name).join("pids.current"), tasks).expect("writable");
        }
        let root = Root::open(tree.path()).expect("it is there");
        let handle = Handle::open_with_tasks(&root, name.as_bytes()).expect("readable").expect("it is there");
        table.take(Update::Workload(slot, Facts { handle: Arc::new(handle), ..facts }));
    }
    let mut counted = |counts_tasks| {
        let observed = table.observe(0, counts_tasks, NOW).iter();
        observed.map(|workload| workload.facts.stats.and_then(|stats| stats.processes)).collect::<Vec<_>>()
    };
    assert_eq!(counted(true), [Some(17), None]);
    assert_eq!(counted(false), [None, None]);
}

#[test]
fn a_victim_gives_back_no_more_than_it_held_at_its_kill() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let mut table = Table::with_slots(8);
    let one = facts(tree.path(), "one", 1000, 300);
    let id = one.handle.id();
    table.take(Update::Workload(0, one));
    table.set_termination(id, Termination::Killing);
    fs::write(tree.path().join("one/memory.current"), "2000").expect("writable");
    assert_eq!(table.observe(0, false, NOW)[0].returns_at_most, None, "it was not sent the signal, and may take more");
    fs::write(tree.path().join("one/memory.current"), "1000").expect("writable");
    table.signalled(id);
    // Memory that is charged after the kill is not freed by it, also where it replaces what the victim gave back.
    for (current, held) in [("1000", 700), ("5000", 700), ("400", 100), ("1000", 100)] {
        fs::write(tree.path().join("one/memory.current"), current).expect("writable");
        let least = table.observe(0, false, NOW)[0].returns_at_most.expect("it was killed");
        let used = table.observe(0, false, NOW)[0].working_set().expect("it is read");
        assert_eq!(least.min(used), Bytes(held), "{current}");
    }
}

#[test]
fn what_is_charged_to_an_empty_cgroup_does_not_come_back() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let mut table = Table::with_slots(8);
    // Charged still: files in tmpfs outlive the process that wrote them.
    let one = facts(tree.path(), "one", 1000, 300);
    let (id, events) = (one.handle.id(), tree.path().join("one/cgroup.events"));
    table.take(Update::Workload(0, one));
    fs::write(&events, "populated 0\n").expect("writable");
    table.set_termination(id, Termination::Asked(MonotonicNs(9), 4));
    let observed = table.observe(0, false, NOW)[0];
    assert!(observed.is_empty, "what stays charged is not coming back");
    assert_eq!(observed.terminating, None, "it has ended");
    fs::write(&events, "populated 1\n").expect("writable");
    assert!(!table.observe(0, false, NOW)[0].is_empty, "it was started again");
}

#[test]
fn an_update_of_the_same_workload_keeps_its_termination_and_a_successor_begins_anew() {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let mut table = Table::with_slots(8);
    let first = facts(tree.path(), "w", 0, 0);
    let id = first.handle.id();
    table.take(Update::Workload(0, first));
    table.set_termination(id, Termination::Killed(Bytes(1)));
    assert!(table.take(Update::Workload(0, facts(tree.path(), "w", 1, 0))).is_some());
    assert_eq!(
        table.get(Key { slot: 0, id }).map(|workload| workload.termination),
        Some(Termination::Killed(Bytes(1)))
    );
    let other = facts(tree.path(), "x", 0, 0);
    let other_id = other.handle.id();
    table.take(Update::Workload(0, other));
    assert!(table.get(Key { slot: 0, id }).is_none(), "a successor in the slot is another workload");
    assert_eq!(table.get(Key { slot: 0, id: other_id }).map(|workload| workload.termination), Some(Termination::Stays));
    assert!(table.take(Update::Gone(0)).is_some());
    assert!(table.observe(0, false, NOW).is_empty());
}
