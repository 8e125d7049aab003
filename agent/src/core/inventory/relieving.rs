//! Containers that memory.high throttles: orders to raise that on their way to the process that has the runtime do it, and
//! what came of them, by the kernel's word.

use plimsoll_inventory::{
    ContainerKind, ContainerNumber, CoreMessage, RAISED_WITHIN, RelaxOrder, Relief, ReliefMode, StopOrder, StopResult,
    Throttled,
};
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_units::{Bytes, MonotonicNs};

use super::informing::order_by;
use super::pod_socket::PodSocket;
use super::switch::Switches;
use super::{News, Thread};
use crate::record::{ContainerRecord, fitting};

/// Memory counts as plentiful for raising a limit where so much of the threshold is available, in percent.
const PLENTIFUL: u32 = 100;

impl Thread {
    /// Does what is due about those that are throttled.
    pub(super) fn relieve(&mut self, now: MonotonicNs) {
        let Self { inventory, outgoing, following, pods, broker, handle, switches, .. } = self;
        let (root, pod_root) = (&inventory.config().root, &inventory.config().patterns.pods);
        if following.reliefs.mode() == ReliefMode::Report {
            return;
        }
        let may_raise = handle.headroom() >= PLENTIFUL;
        for (id, container) in following.containers.throttled_ones() {
            let path = container.path();
            // What the runtime has no id for, it cannot be asked for.
            let named = pod_root.as_ref().and_then(|pod_root| pod_root.identify(path)?.container);
            let named = named.filter(|named| named.kind == ContainerKind::Container && named.length == path.len());
            let Some(number) = named.and_then(|named| ContainerNumber::of(named.id)) else { continue };
            let Some(is) = read(root, path) else { continue };
            let (record_path, at) = (fitting(path), now);
            match following.reliefs.look(id, is, may_raise, now) {
                None => {}
                Some(Relief::Raise(from, to)) => {
                    // The watching thread may not have learnt of the switch yet.
                    let shadow = !handle.acts() || switches.is_off();
                    if shadow {
                        following.reliefs.only_said(id, now);
                    } else {
                        let order = RelaxOrder { container: number, high: to, until: now.after(RAISED_WITHIN) };
                        // One that is not sent is not carried out, which is seen in time.
                        order_by(broker.as_ref(), pods.as_ref(), &CoreMessage::Relax(order));
                    }
                    outgoing.report(ContainerRecord::Raising { path: record_path, from, to, shadow, at });
                }
                Some(Relief::Raised(high, took)) => {
                    outgoing.report(ContainerRecord::Raised { path: record_path, high, took, at });
                }
                Some(Relief::NotRaised) => outgoing.report(ContainerRecord::NotRaised { path: record_path, at }),
                Some(Relief::Evict(lasted)) => {
                    outgoing.report(ContainerRecord::InVain { path: record_path, lasted, at });
                    outgoing.send(News::Throttled(container.workload(), lasted));
                }
            }
        }
        following.reliefs.forget_before(now);
    }

    /// Sends the watching thread's orders to stop pods. Of one that is not sent nothing is begun.
    pub(super) fn send_stops(&mut self) {
        // Taken first: whatever was named before an order was put is sent before it, so that services knows the pod is evicted.
        let orders: Vec<_> = self.handle.stops().collect();
        self.inform();
        for order in orders {
            if !send_stop(order, &self.switches, self.broker.as_ref(), self.pods.as_ref()) {
                self.outgoing.send(News::Stop(StopResult { uid: order.uid, is_begun: false }));
                self.outgoing.publish();
            }
        }
    }
}

/// Sends an order to stop a pod, and gives whether that was done. None is sent while a kill switch is thrown: the watching
/// thread may have put it before it learnt of that.
fn send_stop(order: StopOrder, switches: &Switches, broker: Option<&PodSocket>, services: Option<&PodSocket>) -> bool {
    !switches.is_off() && order_by(broker, services, &CoreMessage::Stop(order))
}

/// The limits of the container at this path, and of the cgroups around it; `None` where it is gone.
fn read(root: &Root, path: &[u8]) -> Option<Throttled> {
    let high = Handle::open_to_read(root, path).ok()??.high().ok()?;
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
    let mut limit: Option<Bytes> = None;
    for end in ends {
        // One that cannot be read may be the least.
        let max = Handle::open_to_read(root, &path[..end]).ok()??.max().ok()?;
        limit = limit.into_iter().chain(max).min();
    }
    Some(Throttled { high, limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_inventory::CORE_MESSAGE;
    use plimsoll_policy::Uid;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    use std::fs;

    #[test]
    fn no_pod_is_stopped_while_a_kill_switch_is_thrown() {
        let (services, core) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map(|(one, other)| (one, PodSocket::new(other)))
            .expect("a pair");
        let order = StopOrder { uid: Uid(7), grace_seconds: 3, until: MonotonicNs(u64::MAX) };
        let mut buffer = [0; CORE_MESSAGE];
        assert!(!send_stop(order, &Switches::off(), None, Some(&core)));
        assert!(recv(&services, &mut buffer, RecvFlags::DONTWAIT).is_err(), "nothing was sent");
        assert!(send_stop(order, &Switches::new(None, None), None, Some(&core)));
        let (length, _) = recv(&services, &mut buffer, RecvFlags::DONTWAIT).expect("it was sent");
        assert_eq!(CoreMessage::decode(&buffer[..length]), Some(CoreMessage::Stop(order)));
    }

    #[test]
    fn the_least_limit_counts_of_the_container_and_of_what_is_around_it() {
        let tree = tempfile::tempdir().expect("a temporary directory");
        let path = "a.slice/b.slice/c.scope";
        let root = Root::open(tree.path()).expect("it is there");
        for (name, max, high) in
            [("a.slice", "7000000", "max"), ("a.slice/b.slice", "max", "5"), (path, "8000000", "4096")]
        {
            let directory = tree.path().join(name);
            fs::create_dir_all(&directory).expect("writable");
            for (file, text) in [
                ("memory.max", max),
                ("memory.high", high),
                ("memory.current", "0\n"),
                ("cgroup.events", "populated 1\n"),
                ("pids.current", "1\n"),
            ] {
                fs::write(directory.join(file), text).expect("writable");
            }
        }
        let expected = Throttled { high: Some(Bytes(4096)), limit: Some(Bytes(7_000_000)) };
        assert_eq!(read(&root, path.as_bytes()), Some(expected));
        fs::write(tree.path().join("a.slice/memory.max"), "max").expect("writable");
        assert_eq!(read(&root, path.as_bytes()).and_then(|is| is.limit), Some(Bytes(8_000_000)));
        fs::remove_file(tree.path().join("a.slice/memory.max")).expect("it was there");
        assert_eq!(read(&root, path.as_bytes()), None, "what is not known may be less");
    }
}
