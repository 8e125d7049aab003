//! What the core has ordered, and which changes of the runtime's that covers.

use std::time::Duration;

use plimsoll_cri::{
    Change, Container, ContainerId, ContainerState, ImageId, InUse, Listed, Rules, SandboxId, SandboxState,
};
use plimsoll_inventory::{ContainerNumber, CoreMessage, RelaxOrder, RemovalOrder, StopOrder};
use plimsoll_policy::Uid;
use plimsoll_units::{MonotonicNs, Pattern};

/// So many orders of a kind are kept; the oldest are forgotten. The core has fewer under way.
const MOST: usize = 64;
/// Between the begin of what an order asks for and the call that reaches this process: lists come in between.
const LATE: Duration = Duration::from_secs(30);
/// How long the sandbox of a pod may be stopped after the grace is over: the runtime has two minutes for each container.
const STOPPING: Duration = Duration::from_mins(5);

/// The orders of the newest core, and pods that earlier ones had stopped.
#[derive(Debug, Default)]
pub(super) struct Orders {
    stops: Vec<StopOrder>,
    relaxes: Vec<RelaxOrder>,
    removal: Option<RemovalOrder>,
}

impl Orders {
    /// A new core was started. What it orders to be removed replaces what another one did; pods that are being stopped end.
    pub(super) fn begin(&mut self) {
        self.relaxes.clear();
        self.removal = None;
    }

    /// Takes in an order at `now`. Other messages are not for this process.
    pub(super) fn take(&mut self, message: CoreMessage, now: MonotonicNs) {
        match message {
            CoreMessage::Stop(order) => {
                self.stops.retain(|other| other.uid != order.uid && now < end_of(other));
                push(&mut self.stops, order);
            }
            CoreMessage::Relax(order) => {
                self.relaxes.retain(|other| other.container != order.container);
                push(&mut self.relaxes, order);
            }
            CoreMessage::Remove(order) => self.removal = Some(order).filter(|order| !order.what.is_nothing()),
            CoreMessage::Eviction(_) | CoreMessage::Condition(_) | CoreMessage::CgroupsChanged => {}
        }
    }

    /// Why this change is not allowed at `now`; absent where an order covers it. What runs is stopped by an order to stop its pod
    /// alone: no other call here may end it, as removing does. Images of which `never` means a name are kept.
    pub(super) fn refusal(
        &self,
        change: &Change,
        listed: &Listed,
        never: &[Pattern],
        now: MonotonicNs,
    ) -> Option<&'static str> {
        let removal = self.removal.filter(|order| now < order.until.after(LATE));
        let (removes_dead, removes_images) =
            removal.map_or((false, false), |order| (order.what.containers, order.what.images));
        let container = |id: &ContainerId| listed.containers.iter().find(|container| container.id == *id);
        let is_allowed = match change {
            Change::StopContainer(id, grace) => {
                let Some(container) = container(id) else { return Some(NOT_LISTED) };
                let is_lost = container.state == ContainerState::Unknown && removes_dead;
                is_lost || self.stops(pod_of(&container.sandbox, listed), Some(*grace), now)
            }
            Change::StopSandbox(id) => removes_dead && is_dead(id, listed) || self.stops(pod_of(id, listed), None, now),
            Change::RemoveContainer(id) => {
                let Some(container) = container(id) else { return Some(NOT_LISTED) };
                removes_dead && has_ended(container)
            }
            Change::RemoveSandbox(id) => removes_dead && is_dead(id, listed),
            Change::RemoveImage(id) => removes_images && is_unused(id, listed, never),
            Change::SetMemoryHigh(id, high) => {
                let number = ContainerNumber::of(id.as_str().as_bytes());
                let is_it = |order: &&RelaxOrder| Some(order.container) == number && order.high == *high;
                self.relaxes.iter().find(is_it).is_some_and(|order| now < order.until.after(LATE))
            }
        };
        (!is_allowed).then_some("the core has ordered nothing that this would be")
    }

    /// Whether this pod is to be stopped, with no more than this grace.
    fn stops(&self, pod: Option<Uid>, grace: Option<Duration>, now: MonotonicNs) -> bool {
        let is_it = |order: &&StopOrder| Some(order.uid) == pod;
        self.stops
            .iter()
            .find(is_it)
            .is_some_and(|order| now < end_of(order) && grace.is_none_or(|it| it >= grace_of(order)))
    }
}

/// An id that the runtime takes for the beginning of another one would be of something else.
const NOT_LISTED: &str = "the runtime lists none of this id";

fn push<T>(kept: &mut Vec<T>, order: T) {
    if kept.len() == MOST {
        kept.remove(0);
    }
    kept.push(order);
}

fn grace_of(order: &StopOrder) -> Duration {
    Duration::from_secs(order.grace_seconds.into())
}

fn end_of(order: &StopOrder) -> MonotonicNs {
    order.until.after(LATE).after(grace_of(order)).after(STOPPING)
}

fn pod_of(sandbox: &SandboxId, listed: &Listed) -> Option<Uid> {
    listed.sandboxes.iter().find(|other| other.id == *sandbox).map(|sandbox| Uid::of(&sandbox.uid))
}

fn has_ended(container: &Container) -> bool {
    match container.state {
        ContainerState::Created | ContainerState::Exited => true,
        ContainerState::Running | ContainerState::Unknown | ContainerState::Other(_) => false,
    }
}

/// Whether an image may be removed as far as lists say it: which ones are mounted as volumes, and how old one is, they do not.
fn is_unused(id: &ImageId, listed: &Listed, never: &[Pattern]) -> bool {
    let mut in_use = InUse::default();
    listed.containers.iter().for_each(|container| in_use.add_container(container));
    let rules = Rules { min_age: Duration::ZERO, never };
    let mut of_id = listed.images.iter().filter(|image| image.id == *id).peekable();
    of_id.peek().is_some() && of_id.all(|image| rules.keep(image, &in_use).is_none())
}

/// Whether nothing runs in this sandbox, and nothing can.
fn is_dead(id: &SandboxId, listed: &Listed) -> bool {
    let is_over = |state| matches!(state, SandboxState::NotReady);
    let sandbox = listed.sandboxes.iter().find(|sandbox| sandbox.id == *id);
    sandbox.is_some_and(|it| is_over(it.state)) && listed.containers.iter().all(|container| container.sandbox != *id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::listed_samples::{container, sandbox};
    use plimsoll_cri::{Image, ImageUse, Sandbox};
    use plimsoll_policy::kubelet::Reclaim;
    use plimsoll_units::Bytes;
    use std::collections::BTreeMap;

    const NOW: MonotonicNs = MonotonicNs(1_000_000_000);
    const WEB: &str = "01234567-89ab-cdef-0123-456789abcdee";
    const OTHER: &str = "01234567-89ab-cdef-0123-456789abcdef";
    const GRACE: u32 = 7;

    fn id(text: &str) -> ContainerId {
        ContainerId::try_from(text.to_owned()).expect("an id")
    }

    fn sandbox_id(text: &str) -> SandboxId {
        SandboxId::try_from(text.to_owned()).expect("an id")
    }

    fn image_id(text: &str) -> ImageId {
        ImageId::try_from(text.to_owned()).expect("an id")
    }

    fn image(id: &str, tag: &str, is_pinned: bool) -> Image {
        let (tags, digests) = (vec![tag.to_owned()], Vec::new());
        Image { id: image_id(id), tags, digests, size: None, is_pinned, annotations: BTreeMap::new() }
    }

    /// Two pods that run, one of which has a container that ended and one that is lost, and a sandbox that is over.
    fn listed() -> Listed {
        let over = Sandbox { state: SandboxState::NotReady, ..sandbox("over", WEB, "web") };
        Listed {
            sandboxes: vec![sandbox("web", WEB, "web"), sandbox("other", OTHER, "other"), over],
            containers: vec![
                container("web-runs", "web", "app", ContainerState::Running),
                container("web-ended", "web", "app", ContainerState::Exited),
                container("web-lost", "web", "side", ContainerState::Unknown),
                Container {
                    image: ImageUse { id: Some("sha256:used".to_owned()), ..ImageUse::default() },
                    ..container("other-runs", "other", "app", ContainerState::Running)
                },
            ],
            images: vec![
                image("sha256:unused", "registry/unused:1", false),
                image("sha256:used", "registry/used:1", false),
                image("sha256:pinned", "registry/pinned:1", true),
                image("sha256:never", "registry/never:1", false),
            ],
        }
    }

    /// Every change of what is listed, and of what is not.
    fn changes() -> Vec<Change> {
        let grace = Duration::from_secs(GRACE.into());
        let containers = ["web-runs", "web-ended", "web-lost", "other-runs", "web-", "gone"];
        let of_container = |name: &str| {
            let less = grace.checked_sub(Duration::from_secs(1)).unwrap_or_default();
            [
                Change::StopContainer(id(name), grace),
                Change::StopContainer(id(name), less),
                Change::RemoveContainer(id(name)),
            ]
        };
        let of_sandbox = |name: &str| [Change::StopSandbox(sandbox_id(name)), Change::RemoveSandbox(sandbox_id(name))];
        let number = "ab".repeat(32);
        let others = [
            Change::SetMemoryHigh(id(&number), Bytes(4096)),
            Change::SetMemoryHigh(id(&number), Bytes(4097)),
            Change::SetMemoryHigh(id("web-runs"), Bytes(4096)),
        ];
        // By its id alone: a name may be another image's by then.
        let images = ["sha256:unused", "sha256:used", "sha256:pinned", "sha256:never", "registry/unused:1"];
        let of_images = images.map(|id| Change::RemoveImage(image_id(id)));
        let of_sandboxes = ["web", "other", "over", "gone"].into_iter().flat_map(of_sandbox);
        containers.into_iter().flat_map(of_container).chain(of_sandboxes).chain(others).chain(of_images).collect()
    }

    fn allowed(orders: &Orders, now: MonotonicNs) -> Vec<Change> {
        let never = [Pattern::parse("registry/never").expect("a pattern")];
        changes().into_iter().filter(|change| orders.refusal(change, &listed(), &never, now).is_none()).collect()
    }

    fn stop(uid: &str) -> CoreMessage {
        CoreMessage::Stop(StopOrder { uid: Uid::of(uid), grace_seconds: GRACE, until: NOW })
    }

    fn remove(containers: bool, images: bool) -> CoreMessage {
        let what = Reclaim { containers, images };
        CoreMessage::Remove(RemovalOrder { number: 1, what, bytes: Bytes(0), until: NOW })
    }

    fn relax() -> CoreMessage {
        let container = ContainerNumber::of("ab".repeat(32).as_bytes()).expect("an id");
        CoreMessage::Relax(RelaxOrder { container, high: Bytes(4096), until: NOW })
    }

    #[test]
    fn each_order_allows_what_it_asks_for_and_nothing_else() {
        let grace = Duration::from_secs(GRACE.into());
        let of_stop = ["web-runs", "web-ended", "web-lost"].map(|name| Change::StopContainer(id(name), grace));
        let of_stop = of_stop.into_iter().chain(["web", "over"].map(|name| Change::StopSandbox(sandbox_id(name))));
        let less = grace.checked_sub(Duration::from_secs(1)).expect("it is more");
        let of_dead = vec![
            Change::RemoveContainer(id("web-ended")),
            Change::StopContainer(id("web-lost"), grace),
            Change::StopContainer(id("web-lost"), less),
            Change::StopSandbox(sandbox_id("over")),
            Change::RemoveSandbox(sandbox_id("over")),
        ];
        let image = Change::RemoveImage(image_id("sha256:unused"));
        for (order, expected) in [
            (None, Vec::new()),
            (Some(stop(WEB)), of_stop.collect()),
            (Some(remove(true, false)), of_dead),
            (Some(remove(false, true)), vec![image]),
            (Some(remove(false, false)), Vec::new()),
            (Some(relax()), vec![Change::SetMemoryHigh(id(&"ab".repeat(32)), Bytes(4096))]),
            (Some(CoreMessage::CgroupsChanged), Vec::new()),
        ] {
            let mut orders = Orders::default();
            if let Some(order) = order {
                orders.take(order, NOW);
            }
            let mut allowed = allowed(&orders, NOW);
            assert_eq!(allowed.len(), expected.len(), "{order:?}: {allowed:?}");
            allowed.retain(|change| !expected.contains(change));
            assert_eq!(allowed, [], "{order:?}");
        }
    }

    #[test]
    fn an_order_ends_with_its_time_with_another_one_and_with_its_core_but_a_pod_is_stopped_to_its_end() {
        let late = NOW.after(LATE);
        for order in [remove(true, true), relax()] {
            let mut orders = Orders::default();
            orders.take(order, NOW);
            assert!(!allowed(&orders, MonotonicNs(late.0 - 1)).is_empty());
            assert_eq!(allowed(&orders, late), [], "{order:?}");
            orders.begin();
            assert_eq!(allowed(&orders, NOW), [], "{order:?}");
        }
        let mut orders = Orders::default();
        orders.take(remove(true, true), NOW);
        orders.take(remove(false, false), NOW);
        assert_eq!(allowed(&orders, NOW), [], "it was stopped");
        orders.take(stop(WEB), NOW);
        orders.begin();
        let end = late.after(Duration::from_secs(GRACE.into())).after(STOPPING);
        assert!(!allowed(&orders, MonotonicNs(end.0 - 1)).is_empty(), "the runtime may be as late");
        assert_eq!(allowed(&orders, end), []);
    }

    #[test]
    fn of_many_orders_the_newest_are_kept() {
        let mut orders = Orders::default();
        for number in 0..=MOST {
            orders.take(CoreMessage::Stop(StopOrder { uid: Uid(number as u128), grace_seconds: 0, until: NOW }), NOW);
        }
        let kept = |uid| orders.stops(Some(Uid(uid)), None, NOW);
        assert_eq!((orders.stops.len(), kept(0), kept(1), kept(MOST as u128)), (MOST, false, true, true));
    }
}
