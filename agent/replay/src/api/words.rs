//! What messages repeat of a pod.

use super::{Container, Pod, Resources, STORAGE, Seen};
use plimsoll_policy::kubelet::{Limit, Resource};
use plimsoll_policy::message::{Asked, MemoryUsage, OverLimit, Used, Victim, VictimUsage};
use plimsoll_units::Quantity;

/// The local storage that a pod may use (the sum that [`PodSpec::ephemeral_storage_limit`] takes), to be printed: the
/// limits of its containers, those of its init containers with whether these stay beside the others, and its overhead.
///
/// [`PodSpec::ephemeral_storage_limit`]: plimsoll_policy::kubelet::PodSpec::ephemeral_storage_limit
pub fn storage_limit(
    containers: impl Iterator<Item = Option<Quantity>>,
    init_containers: impl Iterator<Item = (bool, Option<Quantity>)>,
    overhead: Option<&Quantity>,
) -> Option<Quantity> {
    let plus = |one: Option<Quantity>, other: Option<Quantity>| match (one, other) {
        (Some(one), Some(other)) => Some(&one + &other),
        (one, other) => one.or(other),
    };
    let most = |one: Option<Quantity>, other: Option<Quantity>| match (one, other) {
        (Some(one), Some(other)) if one.amount() >= other.amount() => Some(one),
        (one, other) => other.or(one),
    };
    let mut together = containers.fold(None, plus);
    let (mut sidecars, mut starting) = (None, None);
    for (is_sidecar, own) in init_containers {
        if is_sidecar {
            together = plus(together, own.clone());
            sidecars = plus(sidecars, own);
            starting = most(starting, sidecars.clone());
        } else {
            starting = most(starting, plus(own, sidecars.clone()));
        }
    }
    let limit = most(together, starting)?;
    let overhead = overhead.filter(|_| !limit.is_zero());
    Some(overhead.map_or(limit.clone(), |overhead| &limit + overhead))
}

/// A quantity that is not there prints as none.
fn reported(quantity: Option<&Quantity>) -> String {
    quantity.map_or_else(String::new, Quantity::to_string)
}

impl Pod {
    fn storage_limit(&self) -> Option<Quantity> {
        let own = |container: &Container| container.resources.limits.get(STORAGE).cloned();
        let is_sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
        storage_limit(
            self.spec.containers.iter().map(own),
            self.spec.init_containers.iter().map(|container| (is_sidecar(container), own(container))),
            self.spec.overhead.get(STORAGE),
        )
    }
}

impl Seen<'_> {
    /// What a message says of it when the node is low on something.
    pub(crate) fn victim(&self, resource: Resource) -> Victim {
        let of = |resources: &Resources| resources.get(resource.name()).cloned();
        let spec = self.pod.map(|pod| &pod.spec);
        let asked = |container: &Container| Asked {
            name: container.name.clone(),
            request: of(&container.resources.requests).unwrap_or(Quantity::ZERO),
        };
        let name = self.pod.map(|pod| &pod.metadata.name).or_else(|| Some(&self.stats?.pod_ref.name));
        Victim {
            name: name.cloned().unwrap_or_default(),
            request: spec.and_then(|spec| of(&spec.resources.as_ref()?.requests)),
            containers: spec
                .into_iter()
                .flat_map(|spec| spec.init_containers.iter().chain(&spec.containers))
                .map(asked)
                .collect(),
            used: self.stats.map(|stats| VictimUsage {
                memory: stats.memory.map(|memory| MemoryUsage { working_set: memory.working_set_bytes }),
                containers: stats
                    .containers
                    .iter()
                    .map(|container| Used {
                        name: container.name.clone(),
                        working_set: container.memory.and_then(|memory| memory.working_set_bytes),
                        root_fs: container.rootfs.and_then(|used| used.used_bytes),
                        logs: container.logs.and_then(|used| used.used_bytes),
                    })
                    .collect(),
            }),
        }
    }

    /// What a message says of a limit of its own that it is over.
    pub(crate) fn over(&self, limit: Limit) -> OverLimit {
        let spec = self.pod.map(|pod| &pod.spec);
        match limit {
            Limit::EmptyDir(index) => {
                let volume = spec.and_then(|spec| spec.volumes.get(index as usize));
                let limit = volume.and_then(|volume| volume.empty_dir.as_ref()?.size_limit.as_ref());
                OverLimit::EmptyDir {
                    name: volume.map_or_else(String::new, |volume| volume.name.clone()),
                    limit: reported(limit),
                }
            }
            Limit::Pod => {
                let limit = self.pod.and_then(Pod::storage_limit);
                OverLimit::Pod { limit: limit.map_or_else(String::new, |limit| limit.to_string()) }
            }
            Limit::Container(index) => {
                let container = self.stats.and_then(|stats| stats.containers.get(index as usize));
                let name = container.map_or_else(String::new, |container| container.name.clone());
                let containers = spec.into_iter().flat_map(|spec| &spec.containers);
                let mut limits = containers
                    .filter(|container| container.name == name)
                    .filter_map(|container| container.resources.limits.get(STORAGE))
                    .filter(|limit| !limit.amount().is_zero());
                let limit = reported(limits.next_back());
                OverLimit::Container { name, limit }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_widens_a_limit_that_is_not_zero() {
        let quantity = |text: &str| Quantity::parse(text).expect("a quantity");
        let overhead = quantity("1Gi");
        for (limits, printed) in
            [(&["0"][..], Some("0")), (&["0", "1Mi"], Some("1025Mi")), (&["1Mi", "0"], Some("1025Mi")), (&[], None)]
        {
            let limits = limits.iter().map(|limit| Some(quantity(limit)));
            let limit = storage_limit(limits, core::iter::empty(), Some(&overhead));
            assert_eq!(limit.map(|limit| limit.to_string()).as_deref(), printed);
        }
    }
}
