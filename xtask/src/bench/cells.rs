//! Which cells there are, in which order they are measured, and how many rounds each rival has in them. A cell is one way
//! of filling memory with one kind of swap.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::rivals::{EBPF, Family, JUDGED, KERNEL, RIVALS};

/// What is left in nearly all cells when the threshold is crossed.
const ROOM_MIB: u32 = 100;
/// The same in cells that leave little time.
const SMALL_ROOM_MIB: u32 = 50;
/// The workloads that have a cell with it, too: those that fill it soonest. They also have the most rounds.
const FASTEST: [&str; 2] = ["anon-200", "anon"];

/// How many rounds are against what must lose none.
const ROUNDS: u32 = 20;
const ROUNDS_OF_FASTEST: u32 = 100;
/// How many are against each of the others: the least that gives an interval for a median with 95 % certainty.
const ROUNDS_OF_OTHERS: u32 = 6;
/// The same where nothing may be killed, of what is not Plimsoll, and of Plimsoll without programs in the kernel: a round takes
/// 35 s there whatever comes, of which the processor works in most, and no median is compared.
const ROUNDS_OF_OTHERS_IN_VAIN: u32 = 5;
const ROUNDS_OF_FALLBACKS_IN_VAIN: u32 = 1;
/// The cell, the rivals and the rounds of a quick run.
const QUICK: (&str, &[&str], u32) = ("anon", &[KERNEL, "earlyoom", EBPF], 6);

/// The kinds of swap.
pub(super) const SWAPS: [&str; 3] = [NO_SWAP, "zram", "disk"];
const NO_SWAP: &str = "none";

/// One way of filling memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It fills memory that can be swapped out, so that it has a cell with each kind of swap.
    Swappable,
    /// It fills memory that cannot.
    Unswappable,
    /// Memory suffices, and nothing may be killed.
    Enough,
}

const fn workload(name: &'static str, kind: Kind, what: &'static str) -> Workload {
    Workload { name, what, kind }
}

static WORKLOADS: [Workload; 14] = [
    workload("anon-20", Kind::Swappable, "one process fills anonymous memory at 20 MiB/s"),
    workload("anon-100", Kind::Swappable, "one process fills anonymous memory at 100 MiB/s"),
    workload("anon-200", Kind::Swappable, "one process fills anonymous memory at 200 MiB/s"),
    workload("anon", Kind::Swappable, "one process fills anonymous memory as fast as it can"),
    workload("hundred", Kind::Swappable, "one hundred small processes fill anonymous memory together"),
    workload("tmpfs", Kind::Swappable, "one process fills a tmpfs"),
    workload("fork", Kind::Unswappable, "a fork bomb"),
    workload("slab", Kind::Unswappable, "one process fills the kernel's slabs"),
    workload("page-tables", Kind::Unswappable, "one process fills page tables"),
    workload("sockets", Kind::Unswappable, "one process fills the buffers of sockets"),
    workload("hugetlb", Kind::Unswappable, "one process fills huge pages that are charged to its cgroup"),
    workload("disk-stall", Kind::Enough, "a process waits for a slow disk within its own limit, and memory is free"),
    workload("cache-churn", Kind::Enough, "a disk larger than memory is read round and round"),
    workload("cache-reread", Kind::Enough, "files as large as memory are read until the kernel counts them as active"),
];

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) workload: &'static Workload,
    pub(super) swap: &'static str,
    pub(super) room_mib: u32,
}

/// How many rounds there are against each rival.
pub(super) type Plan = BTreeMap<String, u32>;

impl Cell {
    /// The workload, and what is unusual: `anon`, `anon-zram`, `anon-room-50`.
    pub(super) fn name(&self) -> String {
        let swap = if self.swap == NO_SWAP { String::new() } else { format!("-{}", self.swap) };
        let room = if self.room_mib == ROOM_MIB { String::new() } else { format!("-room-{}", self.room_mib) };
        format!("{}{swap}{room}", self.workload.name)
    }

    /// What happens in it, in a sentence without its end.
    pub(super) fn what(&self) -> String {
        let swap = match self.swap {
            NO_SWAP => "without swap".to_owned(),
            swap => format!("with swap on {swap}"),
        };
        format!("{}, {swap}, {} MiB of room", self.workload.what, self.room_mib)
    }

    /// Whether nothing may be killed in it.
    pub(super) fn is_enough(&self) -> bool {
        self.workload.kind == Kind::Enough
    }

    /// How many rounds a full run has against each rival in it.
    pub(super) fn plan(&self) -> Plan {
        let is_fastest = FASTEST.contains(&self.workload.name) && self.swap == NO_SWAP && self.room_mib == ROOM_MIB;
        let most = if is_fastest { ROUNDS_OF_FASTEST } else { ROUNDS };
        let rounds = |name: &str, family| match family {
            _ if JUDGED.contains(&name) => most,
            _ if !self.is_enough() => ROUNDS_OF_OTHERS,
            Family::Fallback => ROUNDS_OF_FALLBACKS_IN_VAIN,
            Family::Kernel | Family::Daemon | Family::Ebpf => ROUNDS_OF_OTHERS_IN_VAIN,
        };
        RIVALS.map(|(name, family)| (name.to_owned(), rounds(name, family))).into()
    }
}

/// Every cell, in the order of the tables.
pub(super) fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for workload in &WORKLOADS {
        let swaps = if workload.kind == Kind::Swappable { &SWAPS[..] } else { &[NO_SWAP] };
        cells.extend(swaps.iter().map(|&swap| Cell { workload, swap, room_mib: ROOM_MIB }));
        if FASTEST.contains(&workload.name) {
            cells.push(Cell { workload, swap: NO_SWAP, room_mib: SMALL_ROOM_MIB });
        }
    }
    cells
}

/// Shuffles cells: the same seed gives the same order, whichever of them there are.
pub(super) fn shuffle(cells: &mut [Cell], seed: u64) {
    cells.sort_by_cached_key(|cell| Sha256::digest(format!("{seed} {}", cell.name())).to_vec());
}

/// The only cell of a quick run, and its plan.
pub(super) fn quick() -> (Cell, Plan) {
    let (name, rivals, rounds) = QUICK;
    let cell = all().into_iter().find(|cell| cell.name() == name).expect("a test has it");
    (cell, rivals.iter().map(|&rival| (rival.to_owned(), rounds)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn names(cells: &[Cell]) -> Vec<String> {
        cells.iter().map(Cell::name).collect()
    }

    #[test]
    fn each_cell_has_a_name_of_its_own() {
        let all = names(&all());
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for name in ["anon", "anon-20-zram", "tmpfs-disk", "anon-200-room-50", "hugetlb", "cache-churn"] {
            assert!(all.iter().any(|one| one == name), "{name}");
        }
        for name in ["slab-zram", "cache-churn-disk", "anon-20-room-50", "anon-none"] {
            assert!(all.iter().all(|one| one != name), "{name}");
        }
    }

    #[test]
    fn the_order_is_of_the_seed_alone() {
        let shuffled = |seed, mut cells: Vec<Cell>| {
            shuffle(&mut cells, seed);
            names(&cells)
        };
        let mut reversed = all();
        reversed.reverse();
        assert_eq!(shuffled(1, all()), shuffled(1, reversed));
        assert_ne!(shuffled(1, all()), shuffled(2, all()));
        assert_ne!(shuffled(1, all()), names(&all()));
        let less = shuffled(1, all().into_iter().filter(|cell| cell.swap == NO_SWAP).collect());
        let order: Vec<String> = shuffled(1, all()).into_iter().filter(|name| less.contains(name)).collect();
        assert_eq!(less, order);
    }

    #[test]
    fn what_must_lose_no_race_has_the_rounds_for_that() {
        for cell in all() {
            let plan = cell.plan();
            let expected = if ["anon", "anon-200"].contains(&&cell.name()[..]) { 100 } else { 20 };
            assert!(JUDGED.iter().all(|rival| plan[*rival] == expected), "{cell:?}");
            let (real, own) = if cell.is_enough() { (5, 1) } else { (6, 6) };
            assert_eq!(plan.len(), 10);
            assert!(
                [KERNEL, "earlyoom", "nohang", "systemd-oomd"].iter().all(|rival| plan[*rival] == real),
                "{cell:?}"
            );
            assert!(["plimsoll-poll-1s", "plimsoll-psi"].iter().all(|rival| plan[*rival] == own), "{cell:?}");
        }
    }

    #[test]
    fn a_quick_run_is_of_a_cell_and_of_rivals_that_there_are() {
        let (cell, plan) = quick();
        assert_eq!(cell.name(), "anon");
        assert!(plan.keys().all(|rival| cell.plan().contains_key(rival)) && plan.contains_key(EBPF));
    }
}
