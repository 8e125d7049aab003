//! A pod together with the statistics of it.

use crate::pod::{Pod, full_name, key};
use crate::spec::{Container, Resources, STORAGE, Spec, Volume};
use crate::stats::{self, PodStats, Summary, Time};
use plimsoll_policy::kubelet::{self, Limit, Number, Resource, Usage};
use plimsoll_policy::message::{Asked, MemoryUsage, OverLimit, Used, Victim, VictimUsage};
use plimsoll_policy::{Uid, Workload};
use plimsoll_units::{Bytes, MonotonicNs, Quantity};

/// A pod with its statistics, either of which may be missing.
pub struct Observed<'a> {
    pod: Option<&'a Pod>,
    stats: Option<&'a PodStats>,
    /// For the lists of [`kubelet::Pod`] and [`kubelet::PodStats`] to be borrowed from.
    limits: Vec<kubelet::ContainerLimit>,
    volumes: Vec<kubelet::Volume>,
    containers: Vec<kubelet::ContainerStats>,
    volume_stats: Vec<kubelet::VolumeStats>,
}

/// The names of a pod's containers, or of its volumes, by number.
#[derive(Default)]
struct Names<'a>(Vec<&'a str>);

impl<'a> Names<'a> {
    fn number(&mut self, name: &'a str) -> Number {
        let known = self.0.iter().position(|other| *other == name);
        let number = known.unwrap_or_else(|| {
            self.0.push(name);
            self.0.len() - 1
        });
        Number(u32::try_from(number).unwrap_or(u32::MAX))
    }
}

/// The pods of the list that run on the summary's node; without a list, those that the summary has.
pub fn observed<'a>(summary: &'a Summary, pods: Option<&'a [Pod]>) -> Vec<Observed<'a>> {
    let Some(pods) = pods else {
        return summary.pods.iter().map(|stats| Observed::new(None, Some(stats))).collect();
    };
    let node = &summary.node.name;
    let is_here = |pod: &&Pod| !pod.has_ended && (node.is_empty() || pod.node.is_empty() || pod.node == *node);
    pods.iter().filter(is_here).map(|pod| Observed::of(pod, Some(summary))).collect()
}

fn usage(used: Option<stats::Used>) -> Usage {
    used.map_or(Usage::default(), Into::into)
}

/// A quantity that is absent is printed as an empty text.
fn printed(quantity: Option<&Quantity>) -> String {
    quantity.map_or_else(String::new, Quantity::to_string)
}

impl<'a> Observed<'a> {
    /// A pod with what a summary has of it: the last entry of its own UID, else of the static pod that it stands for.
    pub fn of(pod: &'a Pod, summary: Option<&'a Summary>) -> Self {
        let by_uid = |uid: &str| summary?.pods.iter().rfind(|stats| stats.pod_ref.uid == uid);
        Self::new(Some(pod), by_uid(&pod.uid).or_else(|| by_uid(pod.static_uid.as_deref()?)))
    }

    fn new(pod: Option<&'a Pod>, stats: Option<&'a PodStats>) -> Self {
        let spec = || pod.into_iter().map(|pod| &pod.spec);
        let stats_of = || stats.into_iter();
        let (mut containers, mut volumes) = (Names::default(), Names::default());
        let limit = |container: &'a Container| kubelet::ContainerLimit {
            number: containers.number(&container.name),
            ephemeral_storage: container.resources.limits.get(STORAGE).map(Quantity::amount),
        };
        let limits = spec().flat_map(|spec| &spec.containers).map(limit).collect();
        let of_container = |container: &'a stats::ContainerStats| kubelet::ContainerStats {
            number: containers.number(&container.name),
            rootfs: usage(container.rootfs),
            logs: usage(container.logs),
        };
        let container_stats = stats_of().flat_map(|stats| &stats.containers).map(of_container).collect();
        let volume = |volume: &'a Volume| kubelet::Volume {
            number: volumes.number(&volume.name),
            is_local: volume.is_local,
            size_limit: volume.size_limit.as_ref().map(Quantity::amount),
        };
        let of_spec = spec().flat_map(|spec| &spec.volumes).map(volume).collect();
        let of_volume = |volume: &'a stats::VolumeStats| kubelet::VolumeStats {
            number: volumes.number(&volume.name),
            usage: volume.used.into(),
        };
        let volume_stats = stats_of().flat_map(|stats| &stats.volumes).map(of_volume).collect();
        Self { pod, stats, limits, volumes: of_spec, containers: container_stats, volume_stats }
    }

    /// `namespace/name`.
    pub fn name(&self) -> String {
        let of_stats = || self.stats.map(|stats| full_name(&stats.pod_ref.namespace, &stats.pod_ref.name));
        self.pod.map(Pod::full_name).or_else(of_stats).unwrap_or_default()
    }

    /// Memory of no file; zero where the statistics lack it.
    pub fn rss(&self) -> Bytes {
        self.stats.and_then(PodStats::rss).unwrap_or(Bytes::ZERO)
    }

    /// The pod as the kubelet's code takes it.
    pub fn facts(&self) -> kubelet::Pod<'_> {
        let stats = self.stats.map(|stats| kubelet::PodStats {
            working_set: stats.memory.and_then(|memory| memory.working_set_bytes),
            processes: stats.process_stats.and_then(|processes| processes.process_count),
            ephemeral_storage: stats.ephemeral_storage.and_then(|used| used.used_bytes),
            containers: &self.containers,
            volumes: &self.volume_stats,
        });
        let facts = self.pod.map_or_else(kubelet::Pod::default, |pod| pod.facts);
        kubelet::Pod { containers: &self.limits, volumes: &self.volumes, stats, ..facts }
    }

    /// The pod as it is decided about, at a time on the clock that begins in 1970.
    pub fn workload(&self, now: MonotonicNs) -> Workload<'_> {
        let uid = self.pod.map(|pod| &pod.uid).or_else(|| self.stats.map(|stats| &stats.pod_ref.uid));
        let uid = uid.map_or_else(Uid::default, Uid::of);
        let status_start = self.pod.and_then(|pod| pod.started);
        let started = status_start.or_else(|| self.stats?.start_time.map(Time::monotonic));
        Workload {
            key: key(uid),
            uid,
            facts: self.facts(),
            qos: self.pod.map(|pod| pod.qos).unwrap_or_default(),
            daemon_set: self.pod.and_then(|pod| pod.daemon_set.as_ref()).map(|owner| owner.uid),
            started: started.unwrap_or(MonotonicNs(0)),
            swapped: self.stats.and_then(|stats| stats.swap?.swap_usage_bytes).map(Bytes),
            terminating: self.pod.and_then(|pod| pod.terminating(now)),
            ..Workload::default()
        }
    }

    /// What its message says when the node is low on a resource.
    pub fn victim(&self, resource: Resource) -> Victim {
        let of = |resources: &Resources| resources.get(resource.name()).cloned();
        let asked = |container: &Container| Asked {
            name: container.name.clone(),
            request: of(&container.resources.requests).unwrap_or(Quantity::ZERO),
        };
        let spec = self.pod.map(|pod| &pod.spec);
        let containers = spec.into_iter().flat_map(|spec| spec.init_containers.iter().chain(&spec.containers));
        let name = self.pod.map(|pod| &pod.name).or_else(|| Some(&self.stats?.pod_ref.name));
        Victim {
            name: name.cloned().unwrap_or_default(),
            request: spec.and_then(|spec| of(&spec.resources.as_ref()?.requests)),
            containers: containers.map(asked).collect(),
            used: self.stats.map(|stats| VictimUsage {
                memory: stats.memory.map(|memory| MemoryUsage { working_set: memory.working_set_bytes }),
                containers: stats.containers.iter().map(Into::into).collect(),
            }),
        }
    }

    /// What its message says of a limit of its own that it is over.
    pub fn over(&self, limit: Limit) -> OverLimit {
        let spec = self.pod.map(|pod| &pod.spec);
        match limit {
            Limit::EmptyDir(index) => {
                let volume = spec.and_then(|spec| spec.volumes.get(index as usize));
                OverLimit::EmptyDir {
                    name: volume.map_or_else(String::new, |volume| volume.name.clone()),
                    limit: printed(volume.and_then(|volume| volume.size_limit.as_ref())),
                }
            }
            Limit::Pod => {
                let limit = spec.and_then(Spec::storage_limit);
                OverLimit::Pod { limit: printed(limit.as_ref()) }
            }
            Limit::Container(index) => {
                let container = self.stats.and_then(|stats| stats.containers.get(index as usize));
                let name = container.map_or_else(String::new, |container| container.name.clone());
                let containers = spec.into_iter().flat_map(|spec| &spec.containers);
                let mut limits = containers
                    .filter(|container| container.name == name)
                    .filter_map(|container| container.resources.limits.get(STORAGE));
                let limit = printed(limits.rfind(|limit| !limit.is_zero()));
                OverLimit::Container { name, limit }
            }
        }
    }
}

impl From<&stats::ContainerStats> for Used {
    fn from(container: &stats::ContainerStats) -> Self {
        Self {
            name: container.name.clone(),
            working_set: container.memory.and_then(|memory| memory.working_set_bytes),
            root_fs: container.rootfs.and_then(|used| used.used_bytes),
            logs: container.logs.and_then(|used| used.used_bytes),
        }
    }
}
