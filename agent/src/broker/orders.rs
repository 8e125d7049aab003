//! What the core has ordered, and which changes of the runtime's that covers.

use std::time::Duration;

use plimsoll_cri::{
    Change, Container, ContainerId, ContainerState, ImageId, Listed, Rules, Sandbox, SandboxId, SandboxState,
};
use plimsoll_inventory::{ContainerNumber, CoreMessage, RelaxOrder, RemovalOrder, StopOrder};
use plimsoll_policy::Uid;
use plimsoll_units::{Bytes, MonotonicNs, Pattern};

/// So many orders of a kind are kept; the oldest are forgotten. The core has fewer under way.
const MOST: usize = 64;
/// Between the begin of what an order asks for and the call that reaches this process: lists come in between.
const LATE: Duration = Duration::from_secs(30);
/// The same for one that removes: the runtime has two minutes for what comes before, as for a sandbox that is stopped first.
const REMOVING: Duration = Duration::from_secs(150);
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
    /// The core has ended, or another one was started. Pods that it had stopped are stopped to their end.
    pub(super) fn end(&mut self) {
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
            CoreMessage::Eviction(_)
            | CoreMessage::Condition(_)
            | CoreMessage::CgroupsChanged
            | CoreMessage::Incident(_) => {}
        }
    }

    /// Why no change of this kind is allowed at `now`; absent where an order asks for one.
    pub(super) fn refusal_of_kind(&self, change: &Change, now: MonotonicNs) -> Option<&'static str> {
        let (removes_dead, removes_images) = self.removes(now);
        let is_ordered = match change {
            Change::StopContainer(..) | Change::StopSandbox(_) => {
                removes_dead || self.stops.iter().any(|order| now < end_of(order))
            }
            Change::RemoveContainer(_) | Change::RemoveSandbox(_) => removes_dead,
            Change::RemoveImage(_) => removes_images,
            Change::SetMemoryHigh(id, high) => self.relaxes(id, *high, now),
        };
        (!is_ordered).then_some(NOT_ORDERED)
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
        let (removes_dead, removes_images) = self.removes(now);
        let container = |id: &ContainerId| listed.containers.iter().find(|container| container.id == *id);
        let is_allowed = match change {
            Change::StopContainer(id, grace) => {
                let Some(container) = container(id) else { return Some(NOT_LISTED) };
                let is_lost = container.state == ContainerState::Unknown && removes_dead;
                let order = self.stop_of(&container.sandbox, listed);
                // A number that is too large for the runtime would be a short grace.
                is_lost || order.is_some_and(|order| *grace == grace_of(order) && now < end_of_asking(order))
            }
            Change::StopSandbox(id) => {
                let is_stopped = || self.stop_of(id, listed).is_some_and(|order| now < end_of(order));
                removes_dead && is_dead(id, listed) || is_idle(id, listed) && is_stopped()
            }
            Change::RemoveContainer(id) => {
                let Some(container) = container(id) else { return Some(NOT_LISTED) };
                removes_dead && is_over(container, listed)
            }
            Change::RemoveSandbox(id) => removes_dead && is_dead(id, listed),
            Change::RemoveImage(id) => removes_images && is_unused(id, listed, never),
            Change::SetMemoryHigh(id, high) => self.relaxes(id, *high, now),
        };
        (!is_allowed).then_some(NOT_ORDERED)
    }

    /// Whether what is dead is to be removed, and whether images are.
    fn removes(&self, now: MonotonicNs) -> (bool, bool) {
        let order = self.removal.filter(|order| now < order.until.after(REMOVING));
        order.map_or((false, false), |order| (order.what.containers, order.what.images))
    }

    fn relaxes(&self, id: &ContainerId, high: Bytes, now: MonotonicNs) -> bool {
        let number = ContainerNumber::of(id.as_str().as_bytes());
        let is_it = |order: &RelaxOrder| Some(order.container) == number && order.high == high;
        self.relaxes.iter().any(|order| is_it(order) && now < order.until.after(LATE))
    }

    /// The order to stop the pod of this sandbox.
    fn stop_of(&self, id: &SandboxId, listed: &Listed) -> Option<&StopOrder> {
        let sandbox = listed.sandboxes.iter().find(|sandbox| sandbox.id == *id)?;
        let uid = Uid::of(&sandbox.uid);
        self.stops.iter().find(|order| order.uid == uid)
    }
}

const NOT_ORDERED: &str = "the core has ordered nothing that this would be";
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

/// When its containers are asked to stop no more: a runtime that was restarted is asked again.
fn end_of_asking(order: &StopOrder) -> MonotonicNs {
    order.until.after(LATE).after(grace_of(order))
}

fn end_of(order: &StopOrder) -> MonotonicNs {
    end_of_asking(order).after(STOPPING)
}

/// Whether a container has ended, or was never started and is not about to be: it has been made anew, or its sandbox is over.
fn is_over(container: &Container, listed: &Listed) -> bool {
    let is_ready = |it: &Sandbox| it.id == container.sandbox && it.state != SandboxState::NotReady;
    let is_newer =
        |it: &Container| it.sandbox == container.sandbox && it.name == container.name && it.attempt > container.attempt;
    match container.state {
        ContainerState::Exited => true,
        ContainerState::Created => !listed.sandboxes.iter().any(is_ready) || listed.containers.iter().any(is_newer),
        ContainerState::Running | ContainerState::Unknown | ContainerState::Other(_) => false,
    }
}

/// Whether nothing runs in this sandbox.
fn is_idle(id: &SandboxId, listed: &Listed) -> bool {
    let may_run = |state| !matches!(state, ContainerState::Created | ContainerState::Exited);
    !listed.containers.iter().any(|container| container.sandbox == *id && may_run(container.state))
}

/// Whether an image may be removed as far as lists say it: which ones are mounted as volumes, and how old one is, they do not.
fn is_unused(id: &ImageId, listed: &Listed, never: &[Pattern]) -> bool {
    let rules = Rules { min_age: Duration::ZERO, never };
    let mut of_id = listed.images.iter().filter(|image| image.id == *id).peekable();
    of_id.peek().is_some() && of_id.all(|image| rules.keep(image, &listed.in_use).is_none())
}

/// Whether nothing runs in this sandbox, and nothing can.
fn is_dead(id: &SandboxId, listed: &Listed) -> bool {
    let sandbox = listed.sandboxes.iter().find(|sandbox| sandbox.id == *id);
    sandbox.is_some_and(|it| it.state == SandboxState::NotReady)
        && listed.containers.iter().all(|container| container.sandbox != *id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::listed_samples::{container, sandbox};
    use plimsoll_cri::{Image, ImageUse, InUse};
    use plimsoll_policy::kubelet::Reclaim;
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

    /// Two pods that run, one of which has containers that have ended, are lost or not started yet, a sandbox that is over, and
    /// one in which a container was never started.
    fn listed() -> Listed {
        let over = |id| Sandbox { state: SandboxState::NotReady, ..sandbox(id, WEB, "web") };
        let of_other = Container {
            image: ImageUse { id: Some("sha256:used".to_owned()), ..ImageUse::default() },
            ..container("other-runs", "other", "app", ContainerState::Running)
        };
        let mut in_use = InUse::default();
        in_use.add_container(&of_other);
        Listed {
            sandboxes: vec![sandbox("web", WEB, "web"), sandbox("other", OTHER, "other"), over("over"), over("idle")],
            containers: vec![
                container("web-runs", "web", "app", ContainerState::Running),
                container("web-ended", "web", "app", ContainerState::Exited),
                container("web-lost", "web", "side", ContainerState::Unknown),
                container("web-made", "web", "new", ContainerState::Created),
                container("web-failed", "web", "again", ContainerState::Created),
                Container { attempt: 1, ..container("web-again", "web", "again", ContainerState::Created) },
                container("idle-made", "idle", "app", ContainerState::Created),
                of_other,
            ],
            in_use,
            images: vec![
                image("sha256:unused", "registry/unused:1", false),
                image("sha256:used", "registry/used:1", false),
                image("sha256:pinned", "registry/pinned:1", true),
                image("sha256:never", "registry/never:1", false),
            ],
        }
    }

    /// The one that was ordered, a shorter one, and one of which nanoseconds are no number of 64 bits.
    fn graces() -> [Duration; 3] {
        [GRACE.into(), u64::from(GRACE) - 1, 9_223_372_037].map(Duration::from_secs)
    }

    /// Every change of what is listed, and of what is not.
    fn changes() -> Vec<Change> {
        let containers = [
            "web-runs",
            "web-ended",
            "web-lost",
            "web-made",
            "web-failed",
            "web-again",
            "idle-made",
            "other-runs",
            "web-",
            "gone",
        ];
        let of_container = |name: &str| {
            let stops = graces().map(|grace| Change::StopContainer(id(name), grace));
            stops.into_iter().chain([Change::RemoveContainer(id(name))])
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
        let of_sandboxes = ["web", "other", "over", "idle", "gone"].into_iter().flat_map(of_sandbox);
        containers.into_iter().flat_map(of_container).chain(of_sandboxes).chain(others).chain(of_images).collect()
    }

    fn allowed(orders: &Orders, now: MonotonicNs) -> Vec<Change> {
        let never = [Pattern::parse("registry/never").expect("a pattern")];
        let refusal = |change: &Change| orders.refusal(change, &listed(), &never, now);
        let (allowed, refused): (Vec<_>, Vec<_>) = changes().into_iter().partition(|change| refusal(change).is_none());
        assert!(allowed.iter().all(|change| orders.refusal_of_kind(change, now).is_none()), "{allowed:?}");
        // Where there is no order, nothing has to be looked up.
        let is_idle = orders.stops.is_empty() && orders.relaxes.is_empty() && orders.removal.is_none();
        assert!(!is_idle || refused.iter().all(|change| orders.refusal_of_kind(change, now).is_some()));
        allowed
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
        let of_stop = ["web-runs", "web-ended", "web-lost", "web-made", "web-failed", "web-again", "idle-made"]
            .map(|name| Change::StopContainer(id(name), graces()[0]));
        // In which nothing runs.
        let of_stop = of_stop.into_iter().chain(["over", "idle"].map(|name| Change::StopSandbox(sandbox_id(name))));
        let lost = graces().map(|grace| Change::StopContainer(id("web-lost"), grace));
        let of_dead = ["web-ended", "web-failed", "idle-made"].map(|name| Change::RemoveContainer(id(name)));
        let sandboxes = [Change::StopSandbox(sandbox_id("over")), Change::RemoveSandbox(sandbox_id("over"))];
        let of_dead = of_dead.into_iter().chain(lost).chain(sandboxes).collect();
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
        for (order, late) in [(remove(true, true), NOW.after(REMOVING)), (relax(), NOW.after(LATE))] {
            let mut orders = Orders::default();
            orders.take(order, NOW);
            assert!(!allowed(&orders, MonotonicNs(late.0 - 1)).is_empty());
            assert_eq!(allowed(&orders, late), [], "{order:?}");
            orders.end();
            assert_eq!(allowed(&orders, NOW), [], "{order:?}");
        }
        let mut orders = Orders::default();
        orders.take(remove(true, true), NOW);
        orders.take(remove(false, false), NOW);
        assert_eq!(allowed(&orders, NOW), [], "it was stopped");
        orders.take(stop(WEB), NOW);
        orders.end();
        let asked = NOW.after(LATE).after(graces()[0]);
        let is_stop = |change: &Change| matches!(change, Change::StopContainer(..));
        assert!(allowed(&orders, MonotonicNs(asked.0 - 1)).iter().any(is_stop));
        let end = asked.after(STOPPING);
        let late = allowed(&orders, MonotonicNs(end.0 - 1));
        assert!(!late.is_empty() && !late.iter().any(is_stop), "a sandbox comes last: {late:?}");
        assert_eq!(allowed(&orders, end), []);
    }

    #[test]
    fn of_many_orders_the_newest_are_kept() {
        let mut orders = Orders::default();
        for number in 0..=MOST {
            orders.take(CoreMessage::Stop(StopOrder { uid: Uid(number as u128), grace_seconds: 0, until: NOW }), NOW);
        }
        let kept = |uid| orders.stops.iter().any(|order| order.uid == Uid(uid));
        assert_eq!((orders.stops.len(), kept(0), kept(1), kept(MOST as u128)), (MOST, false, true, true));
    }
}
