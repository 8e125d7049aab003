//! Walks in a process that has hardly a descriptor left. Its limit is of the whole process, so this is a program of its own.

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use plimsoll_inventory::{Config, Inventory, Patterns, Protected, Sink, Update};
use plimsoll_node::cgroup::Root;
use plimsoll_policy::Uid;
use plimsoll_policy::kubelet::Critical;
use plimsoll_units::Pattern;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[derive(Default)]
struct Sent {
    gone: usize,
    troubles: HashMap<&'static str, String>,
}

impl Sink for Sent {
    fn update(&mut self, update: Update) {
        self.gone += usize::from(matches!(update, Update::Gone(_)));
    }

    fn protect(&mut self, _: &HashMap<Uid, Critical>, _: &[Uid]) -> bool {
        true
    }

    fn trouble(&mut self, tried: &'static str, text: Option<String>) {
        match text {
            Some(text) => self.troubles.insert(tried, text),
            None => self.troubles.remove(tried),
        };
    }
}

fn cgroup(tree: &Path, name: &str) {
    let folder = tree.join(name);
    fs::create_dir_all(&folder).expect("writable");
    for (file, text) in [("cgroup.events", "populated 1\n"), ("memory.current", "4096\n"), ("memory.low", "0\n")] {
        fs::write(folder.join(file), text).expect("writable");
    }
}

#[test]
fn no_workload_is_closed_because_a_directory_above_it_could_not_be_read() {
    const WORKLOADS: [&str; 3] =
        ["work.slice/a.slice/b.slice/1", "work.slice/a.slice/b.slice/2", "work.slice/a.slice/3"];
    let tree = tempfile::tempdir().expect("a temporary directory");
    for name in ["work.slice", "work.slice/a.slice", "work.slice/a.slice/b.slice"].iter().chain(&WORKLOADS) {
        cgroup(tree.path(), name);
    }
    let mut inventory = Inventory::new(Config {
        root: Root::open(tree.path()).expect("it is there"),
        patterns: Patterns {
            workloads: vec![Pattern::parse("work.slice/**").expect("a pattern")],
            never: Vec::new(),
            pods: None,
        },
        priorities: vec![0],
        protected: Protected::default(),
        slices: Vec::new(),
        brakes: None,
        max_brakes: 16,
        max_workloads: 9,
        counts_tasks: false,
    });
    let mut sent = Sent::default();
    inventory.discover(&mut sent);
    assert_eq!((inventory.workloads(), sent.troubles.len()), (3, 0), "{:?}", sent.troubles);
    // The number of the next descriptor.
    let next = fs::File::open(tree.path()).expect("readable").as_raw_fd();
    let walk_with = |free: u64, inventory: &mut Inventory, sent: &mut Sent| {
        let (all, current) = (getrlimit(Resource::Nofile), Some(u64::try_from(next).expect("a descriptor") + free));
        setrlimit(Resource::Nofile, Rlimit { current, maximum: all.maximum }).expect("lowered");
        inventory.discover(sent);
        setrlimit(Resource::Nofile, all).expect("raised");
    };
    let mut in_part = 0;
    for free in 0..12 {
        walk_with(free, &mut inventory, &mut sent);
        assert_eq!((inventory.workloads(), sent.gone), (3, 0), "with {free} descriptors");
        let trouble = sent.troubles.get("walk").map_or("", |text| &text[..]);
        in_part += usize::from(trouble.starts_with("cannot read work.slice"));
    }
    assert!(in_part > 0, "no walk got on and did not see all");
    // The kubelet was started in one of them meanwhile.
    let kubelet = WORKLOADS[2].as_bytes().to_vec();
    inventory.protect_node(vec![kubelet]);
    let mut seen = 0;
    for free in 0..12 {
        walk_with(free, &mut inventory, &mut sent);
        let trouble = sent.troubles.get("walk").map_or("", |text| &text[..]);
        if trouble.starts_with("cannot read work.slice/a.slice/b.slice") {
            assert_eq!((inventory.workloads(), sent.gone), (2, 1), "what must not be touched is none of them any more");
            seen += 1;
        }
    }
    assert!(seen > 0, "no walk came as far and no further");
    inventory.protect_node(Vec::new());
    inventory.discover(&mut sent);
    assert_eq!(inventory.workloads(), 3);
    sent.gone = 0;
    inventory.discover(&mut sent);
    assert_eq!((sent.gone, sent.troubles.len()), (0, 0), "{:?}", sent.troubles);
    fs::remove_dir_all(tree.path().join(WORKLOADS[0])).expect("writable");
    inventory.discover(&mut sent);
    assert_eq!((inventory.workloads(), sent.gone), (2, 1), "what is gone is closed");
}
