//! What the kernel programs need to know of the running kernel before they are loaded: one table from their names
//! for addresses and offsets to the kernel's.

use plimsoll_abi::NO_OFFSET;

use crate::{
    btf::{Btf, BtfError},
    symbols::Symbols,
};

/// One element of a counter array of the kernel.
struct Counter {
    /// The program's name for its address.
    global: &'static str,
    /// The kernel's name for the index.
    item: &'static str,
    /// The node's threshold cannot be computed without it.
    needed: bool,
}

const fn counter(global: &'static str, item: &'static str, needed: bool) -> Counter {
    Counter { global, item, needed }
}

const COUNTERS: &[Counter] = &[
    counter("FREE_PAGES", "NR_FREE_PAGES", true),
    counter("FILE_PAGES", "NR_FILE_PAGES", true),
    counter("ANON_MAPPED", "NR_ANON_MAPPED", true),
    counter("INACTIVE_FILE", "NR_INACTIVE_FILE", true),
    counter("ACTIVE_FILE", "NR_ACTIVE_FILE", true),
    counter("SLAB_RECLAIMABLE", "NR_SLAB_RECLAIMABLE_B", false),
    counter("MISC_RECLAIMABLE", "NR_KERNEL_MISC_RECLAIMABLE", false),
];

/// The arrays that hold them: the enum that names their items, and their symbol. An item moved between the two is found
/// where this kernel has it.
const ARRAYS: &[(&str, &str)] = &[("zone_stat_item", "vm_zone_stat"), ("node_stat_item", "vm_node_stat")];

/// A member's offset, by the first of these paths that the kernel has.
type Member = (&'static str, &'static [(&'static str, &'static str)]);

const MEMBERS: &[Member] = &[
    ("COUNTER_USAGE", &[("page_counter", "usage")]),
    ("COUNTER_PARENT", &[("page_counter", "parent")]),
    ("MEMCG_COUNTER", &[("mem_cgroup", "memory")]),
    ("MEMCG_CSS", &[("mem_cgroup", "css")]),
    ("MEMCG_CGROUP", &[("mem_cgroup", "css.cgroup")]),
    ("MEMCG_SUBSYS", &[("mem_cgroup", "css.ss")]),
    ("CGROUP_KN", &[("cgroup", "kn")]),
    ("KN_ID", &[("kernfs_node", "id")]),
    ("CGROUP_LEVEL", &[("cgroup", "level")]),
    // Since Linux 6.1.
    (ANCESTORS, &[("cgroup", "ancestors")]),
    ("TASK_LEADER", &[("task_struct", "group_leader")]),
    ("TASK_START", &[("task_struct", "start_boottime")]),
    ("TASK_TGID", &[("task_struct", "tgid")]),
    ("TASK_CSS_SET", &[("task_struct", "cgroups")]),
    ("CSS_SET_CGROUP", &[("css_set", "dfl_cgrp")]),
    ("TASK_MM", &[("task_struct", "mm")]),
    ("MM_TOTAL_VM", &[("mm_struct", "total_vm")]),
    ("TASK_COMM", &[("task_struct", "comm")]),
    ("TASK_SIGNAL", &[("task_struct", "signal")]),
    ("SIGNAL_FLAGS", &[("signal_struct", "flags")]),
    ("SIGNAL_CORE", &[("signal_struct", "core_state")]),
    ("SOCKET_SK", &[("socket", "sk")]),
    ("SOCK_FAMILY", &[("sock", "__sk_common.skc_family")]),
    ("RX_RING_LENGTH", &[("packet_sock", "rx_ring.pg_vec_len")]),
    ("RX_RING_ORDER", &[("packet_sock", "rx_ring.pg_vec_order")]),
    ("TX_RING_LENGTH", &[("packet_sock", "tx_ring.pg_vec_len")]),
    ("TX_RING_ORDER", &[("packet_sock", "tx_ring.pg_vec_order")]),
    ("OC_CHOSEN", &[("oom_control", "chosen")]),
    ("OC_CONSTRAINT", &[("oom_control", "constraint")]),
    ("OC_MEMCG", &[("oom_control", "memcg")]),
];

/// The first two of a process's resident counters: an array of counters, or of structs with one.
const RESIDENT: &[(&str, &str)] =
    &[("rss_stat[0].count", "rss_stat[1].count"), ("rss_stat.count[0]", "rss_stat.count[1]")];

/// The programs' name for the array of a cgroup's ancestors. Without it, what is charged is not attributed to slices.
pub(crate) const ANCESTORS: &str = "CGROUP_ANCESTORS";

const CONSTRAINTS: &[&str] = &["CONSTRAINT_CPUSET", "CONSTRAINT_MEMORY_POLICY", "CONSTRAINT_MEMCG"];

/// What is written into the programs.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Addresses by the program's name for them.
    pub(crate) addresses: Vec<(&'static str, u64)>,
    /// Offsets and enumerators, likewise.
    pub(crate) offsets: Vec<(&'static str, u32)>,
    /// Why the node's threshold cannot be reckoned, if so.
    pub(crate) blind: Option<String>,
}

impl Layout {
    /// Resolves everything; what is missing stays absent and is left out by the programs.
    pub(crate) fn resolve(btf: &Btf, symbols: &Symbols) -> Self {
        let mut layout = Self::default();
        for Counter { global, item, needed } in COUNTERS {
            match counter_address(btf, symbols, item) {
                Ok(address) => layout.addresses.push((global, address)),
                Err(why) if *needed => {
                    layout.blind.get_or_insert(why);
                }
                Err(_) => {}
            }
        }
        for (global, symbol) in [("NR_THREADS", "nr_threads"), ("MEMORY_SUBSYS", "memory_cgrp_subsys")] {
            layout.addresses.push((global, symbols.address(symbol).unwrap_or(0)));
        }
        for (global, paths) in MEMBERS {
            let found = paths.iter().find_map(|(structure, path)| btf.offset(structure, path).ok());
            layout.offsets.push((global, found.unwrap_or(NO_OFFSET)));
        }
        // A cgroup's state for each controller, by the controller's number on this kernel.
        let memory = btf
            .offset("cgroup", "subsys")
            .and_then(|states| Ok(states + 8 * btf.enumerator("cgroup_subsys_id", "memory_cgrp_id")?));
        layout.offsets.push(("CGROUP_MEMORY", memory.unwrap_or(NO_OFFSET)));
        let resident = RESIDENT.iter().find_map(|(first, second)| {
            let (first, second) = (btf.offset("mm_struct", first).ok()?, btf.offset("mm_struct", second).ok()?);
            Some((first, second.checked_sub(first)?))
        });
        let (first, stride) = resident.unwrap_or((NO_OFFSET, NO_OFFSET));
        layout.offsets.extend([("MM_RSS", first), ("MM_RSS_STRIDE", stride)]);
        for name in CONSTRAINTS {
            layout.offsets.push((name, btf.enumerator("oom_constraint", name).unwrap_or(NO_OFFSET)));
        }
        layout
    }

    /// The programs' names for all that is resolved.
    #[cfg(test)]
    pub(crate) fn globals() -> impl Iterator<Item = &'static str> {
        let counters = COUNTERS.iter().map(|counter| counter.global);
        counters.chain(MEMBERS.iter().map(|(name, _)| *name)).chain(CONSTRAINTS.iter().copied())
    }

    /// The offset with the program's name `global`, where this kernel has it.
    pub(crate) fn offset(&self, global: &str) -> Option<u32> {
        self.offsets.iter().find(|(name, _)| *name == global).map(|(_, offset)| *offset).filter(|at| *at != NO_OFFSET)
    }

    /// The address with the program's name `global`, where it is known.
    pub(crate) fn address(&self, global: &str) -> Option<u64> {
        self.addresses.iter().find(|(name, _)| *name == global).map(|(_, at)| *at).filter(|at| *at != 0)
    }
}

fn counter_address(btf: &Btf, symbols: &Symbols, item: &str) -> Result<u64, String> {
    let mut why = BtfError::Missing { what: "enumerator", name: item.into() };
    for (enumeration, array) in ARRAYS {
        match btf.enumerator(enumeration, item) {
            Ok(index) => {
                let base = symbols.address(array).ok_or_else(|| symbols.why_unknown(array))?;
                return Ok(base + 8 * u64::from(index));
            }
            Err(error) => why = error,
        }
    }
    Err(why.to_string())
}
