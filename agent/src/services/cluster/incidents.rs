//! The words of events for what the core did to pods, or was too late for. It sends numbers, and names that others chose.

use plimsoll_inventory::{Exhausted, Incident, IncidentKind, IncidentOf, RemovalResult, without_zeros};
use plimsoll_kube::{IncidentReason, PodReference, Timestamp};
use plimsoll_report::text::escaped;
use plimsoll_units::{Bytes, Quantity};

use super::super::outbox::uid_text;

/// The event of an incident in this pod; without one, that of the node, which names where it was.
pub(super) fn of(incident: &Incident, pod: Option<PodReference>) -> plimsoll_kube::Incident {
    let Incident { what, of, wall_ms } = *incident;
    let place = match of {
        _ if pod.is_some() => "the pod".to_owned(),
        IncidentOf::Pod(uid) => format!("pod {}", uid_text(uid)),
        IncidentOf::Cgroup { path, id } => match (path.bytes(), id) {
            (&[], None) => "a cgroup that is not known".to_owned(),
            (&[], Some(id)) => format!("the cgroup with the inode {}", id.0),
            (path, _) => format!("cgroup {}", escaped(path)),
        },
    };
    let (reason, message) = match what {
        IncidentKind::Frozen(held) => {
            let ms = held.as_millis();
            (IncidentReason::Braked, format!("Memory was short: {place} was frozen for {ms} ms"))
        }
        IncidentKind::Stopped => {
            (IncidentReason::Braked, format!("Memory was short: a process of {place} was stopped for a moment"))
        }
        IncidentKind::Reclaimed { asked, is_all } => {
            let how_much = if is_all { "" } else { "less than " };
            let asked = binary(asked);
            let message = format!("Memory was short: {how_much}{asked} of page cache of {place} were taken back");
            (IncidentReason::Reclaimed, message)
        }
        IncidentKind::OomKill { pid, name, resident, exhausted } => {
            let first = "The OOM killer was first";
            let (reason, why) = match exhausted {
                Exhausted::Machine => (IncidentReason::LostRace, format!("{first}: the node was out of memory")),
                Exhausted::Slice(slice) => {
                    let slice = escaped(slice.bytes());
                    (IncidentReason::LostRace, format!("{first}: memory.max of cgroup {slice} was reached"))
                }
                Exhausted::NumaNodes => {
                    let why =
                        "The NUMA nodes that a process is bound to were out of memory, for which nothing is evicted";
                    (IncidentReason::NumaExhausted, format!("{why}: the OOM killer was called"))
                }
            };
            let name = escaped(without_zeros(&name));
            let took = resident.map(|resident| format!(", which had {} in memory", binary(resident)));
            let took = took.unwrap_or_default();
            (reason, format!("{why}, and it killed process {pid} ({name}) of {place}{took}"))
        }
    };
    let at = i64::try_from(wall_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    plimsoll_kube::Incident { reason, pod, message, at: at.unwrap_or_default() }
}

/// The event of what was removed from the node's disks; absent where nothing was.
pub(super) fn of_removal(removed: &RemovalResult) -> Option<plimsoll_kube::Incident> {
    let RemovalResult { containers, sandboxes, images, freed, .. } = *removed;
    let freed = binary(freed);
    let message = format!(
        "A disk was short: {containers} containers, {sandboxes} sandboxes and {images} images of {freed} were removed"
    );
    let (reason, at) = (IncidentReason::Reclaimed, Timestamp::now());
    (!removed.is_nothing()).then_some(plimsoll_kube::Incident { reason, pod: None, message, at })
}

/// In whole KiB, rounded up: a number without a unit would not say of what it is.
fn binary(bytes: Bytes) -> Quantity {
    Quantity::binary(bytes.0.div_ceil(1024).saturating_mul(1024).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use plimsoll_inventory::PathEnd;
    use plimsoll_policy::Uid;
    use plimsoll_units::CgroupId;

    #[test]
    fn the_words_name_the_process_and_where_it_was_and_no_name_writes_more_than_its_own() {
        let mut name = [0; 16];
        name[..7].copy_from_slice(b"x\x1b[1m\0y");
        let of_pod = IncidentOf::Pod(Uid(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef));
        let cgroup = |id, path: &[u8]| IncidentOf::Cgroup { id, path: PathEnd::of(path) };
        let service = cgroup(Some(CgroupId(7)), b"system.slice/a\nb.service");
        let lost = |resident, exhausted| IncidentKind::OomKill { pid: 77, name, resident, exhausted };
        let reclaimed =
            |is_all| IncidentKind::Reclaimed { asked: if is_all { Bytes::mib(3) } else { Bytes(115_792) }, is_all };
        let frozen = IncidentKind::Frozen(Duration::from_micros(213_900));
        let of_node = lost(Some(Bytes::mib(700)), Exhausted::Machine);
        let killed = "and it killed process 77 (x\\x1b[1m) of";
        for (what, of, is_known, expected) in [
            (frozen, of_pod, true, "Memory was short: the pod was frozen for 213 ms".to_owned()),
            (
                IncidentKind::Stopped,
                service,
                false,
                "Memory was short: a process of cgroup system.slice/a\\nb.service was stopped for a moment".to_owned(),
            ),
            (
                reclaimed(true),
                of_pod,
                false,
                "Memory was short: 3Mi of page cache of pod 01234567-89ab-cdef-0123-456789abcdef were taken back"
                    .to_owned(),
            ),
            (
                reclaimed(false),
                of_pod,
                true,
                "Memory was short: less than 114Ki of page cache of the pod were taken back".to_owned(),
            ),
            (
                of_node,
                of_pod,
                true,
                format!(
                    "The OOM killer was first: the node was out of memory, {killed} the pod, which had 700Mi in memory"
                ),
            ),
            (
                lost(None, Exhausted::Slice(PathEnd::of(b"kubepods.slice"))),
                cgroup(Some(CgroupId(7)), b""),
                false,
                format!(
                    "The OOM killer was first: memory.max of cgroup kubepods.slice was reached, {killed} the cgroup with the \
                     inode 7"
                ),
            ),
            (
                lost(None, Exhausted::NumaNodes),
                of_pod,
                true,
                format!(
                    "The NUMA nodes that a process is bound to were out of memory, for which nothing is evicted: the OOM killer \
                     was called, {killed} the pod"
                ),
            ),
            (
                lost(None, Exhausted::Machine),
                cgroup(None, b""),
                false,
                format!("The OOM killer was first: the node was out of memory, {killed} a cgroup that is not known"),
            ),
        ] {
            let pod = is_known.then(|| PodReference { uid: "u".into(), namespace: "shop".into(), name: "web".into() });
            let event = super::of(&Incident { what, of, wall_ms: 1_700_000_000_123 }, pod.clone());
            assert_eq!((event.message, event.pod), (expected, pod));
            assert_eq!(event.at.as_millisecond(), 1_700_000_000_123);
        }
    }

    #[test]
    fn what_was_removed_is_an_event_of_the_node_and_nothing_is_none() {
        let removed = RemovalResult { containers: 2, images: 3, freed: Bytes::mib(7), ..RemovalResult::default() };
        let event = of_removal(&removed).expect("it was removed");
        assert_eq!((event.reason, event.pod), (IncidentReason::Reclaimed, None));
        assert_eq!(event.message, "A disk was short: 2 containers, 0 sandboxes and 3 images of 7Mi were removed");
        assert_eq!(of_removal(&RemovalResult::default()), None);
    }
}
