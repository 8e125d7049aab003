//! Statistics and pods as the API writes them, and what the rule book makes of them.

use jiff::Timestamp;
use plimsoll_policy::kubelet::{self, NodeStats, StatsTime};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Summary {
    pub(crate) node: Node,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Node {
    memory: Option<Memory>,
    system_containers: Vec<SystemContainer>,
    fs: Option<Fs>,
    runtime: Runtime,
    rlimit: Option<Rlimit>,
}

#[derive(Clone, Debug, Deserialize)]
struct SystemContainer {
    name: String,
    memory: Option<Memory>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Memory {
    time: Option<Timestamp>,
    available_bytes: Option<u64>,
    pub(crate) working_set_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Fs {
    time: Option<Timestamp>,
    available_bytes: Option<u64>,
    capacity_bytes: Option<u64>,
    inodes: Option<u64>,
    inodes_free: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Runtime {
    image_fs: Option<Fs>,
    container_fs: Option<Fs>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Rlimit {
    time: Option<Timestamp>,
    maxpid: Option<i64>,
    curproc: Option<i64>,
}

fn time(time: Option<Timestamp>) -> Option<StatsTime> {
    time.map(|time| StatsTime(i64::try_from(time.as_nanosecond()).expect("a year like ours")))
}

impl From<Memory> for kubelet::MemoryStats {
    fn from(stats: Memory) -> Self {
        Self { available: stats.available_bytes, working_set: stats.working_set_bytes, time: time(stats.time) }
    }
}

impl From<Fs> for kubelet::FsStats {
    fn from(stats: Fs) -> Self {
        Self {
            available: stats.available_bytes,
            capacity: stats.capacity_bytes,
            inodes_free: stats.inodes_free,
            inodes: stats.inodes,
            time: time(stats.time),
        }
    }
}

impl From<&Node> for NodeStats {
    fn from(node: &Node) -> Self {
        let pods = node.system_containers.iter().find(|container| container.name == "pods");
        Self {
            memory: node.memory.map(Into::into),
            pods: pods.and_then(|pods| pods.memory).map(Into::into),
            node_fs: node.fs.map(Into::into),
            image_fs: node.runtime.image_fs.map(Into::into),
            container_fs: node.runtime.container_fs.map(Into::into),
            pids: node.rlimit.map(|limit| kubelet::PidStats {
                max: limit.maxpid,
                running: limit.curproc,
                time: time(limit.time),
            }),
        }
    }
}
