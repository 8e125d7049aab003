//! What writable layers of containers take, by the container runtime's word: nothing else can say which files are a
//! container's own. The runtime takes seconds for it, so it is asked on a connection of its own and with long pauses.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use plimsoll_cri::{Container, ContainerState, Dial, Error, Runtime, Sandbox, WritableLayer};
use plimsoll_inventory::{MOST_PODS, PartUsage, StorageMessage, StoragePart, name_number};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_units::{MonotonicNs, counted};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::rest::Rest;
use super::runtime::{known, pause_after};

/// The least pause between two rounds. containerd counts every 10 s, and a volume is measured within a minute.
const PAUSE: Duration = Duration::from_secs(30);
/// The pause is so many times as long as the answers took: the runtime has other work.
const SHARE: u32 = 10;
/// The longest pause: figures hold for much longer.
const PAUSE_MOST: Duration = Duration::from_mins(5);

/// Asks in rounds with the pauses of `rest`, if there is one, and sends what each finds, for as long as that is received.
/// What a round before found holds for a while.
pub(super) async fn watch(
    sockets: Vec<PathBuf>,
    dial: Dial,
    mut rest: Option<Rest>,
    rounds: mpsc::Sender<Vec<StorageMessage>>,
) {
    let (mut runtime, mut failures, mut was_read) = (None, 0, false);
    loop {
        let begun = Instant::now();
        let (pause, most) = match ask(&mut runtime, &sockets, &dial).await {
            Ok(round) => {
                if failures > 0 || !was_read {
                    let parts = round.iter().filter(|message| matches!(message, StorageMessage::Part(_))).count();
                    let layers = counted(parts, "writable layer", "writable layers");
                    tracing::info!(layers = parts, "the container runtime has {layers}");
                }
                (failures, was_read) = (0, true);
                if rounds.send(round).await.is_err() {
                    return;
                }
                (begun.elapsed().saturating_mul(SHARE).clamp(PAUSE, PAUSE_MOST), PAUSE_MOST)
            }
            Err(error) => {
                failures += 1;
                if failures == 1 {
                    tracing::warn!("{error}; what writable layers take is not known, and it is tried again");
                } else {
                    tracing::debug!(failures, "{error}; what writable layers take is not known");
                }
                let pause = pause_after(Duration::ZERO, failures);
                (pause, pause)
            }
        };
        match &mut rest {
            Some(rest) => rest.pause(pause, most).await,
            None => sleep(pause).await,
        }
    }
}

async fn ask(runtime: &mut Option<Runtime>, sockets: &[PathBuf], dial: &Dial) -> Result<Vec<StorageMessage>, Error> {
    let runtime = known(runtime, sockets, dial).await?;
    let (sandboxes, containers) = (runtime.sandboxes().await?, runtime.containers().await?);
    // Before the answer: it may have been counted at any moment from then on.
    let asked = Asked { at: monotonic(), clock: SystemTime::now() };
    let layers = runtime.writable_layers().await?;
    Ok(round(&sandboxes, &containers, &layers, asked))
}

/// When layers were asked for, by both clocks.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: MonotonicNs,
    clock: SystemTime,
}

impl Asked {
    /// The monotonic time of a time that the runtime gives. One from the future is of now; where the clock was set in
    /// between, the figure looks older than it is, or new, until the next round.
    fn time_of(self, counted: Option<SystemTime>) -> MonotonicNs {
        let age = counted.and_then(|counted| self.clock.duration_since(counted).ok()).unwrap_or_default();
        MonotonicNs(self.at.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// What a core is sent of all pods. Containers count that run, as for the kubelet (`removeTerminatedContainers`,
/// cri_stats_provider.go): one of which nothing was counted yet is there and unknown.
fn round(
    sandboxes: &[Sandbox],
    containers: &[Container],
    layers: &[WritableLayer],
    asked: Asked,
) -> Vec<StorageMessage> {
    let uids: HashMap<_, _> = sandboxes.iter().map(|it| (&it.id, Uid::of(&it.uid))).collect();
    let layers: HashMap<_, _> = layers.iter().map(|layer| (&layer.container, layer)).collect();
    let mut pods: BTreeMap<Uid, BTreeMap<u32, PartUsage>> = BTreeMap::new();
    for uid in uids.values() {
        if pods.len() < MOST_PODS {
            pods.entry(*uid).or_default();
        }
    }
    for container in containers.iter().filter(|it| it.state == ContainerState::Running) {
        let Some(uid) = uids.get(&container.sandbox) else { continue };
        let Some(parts) = pods.get_mut(uid) else { continue };
        let layer = layers.get(&container.id);
        let used = layer.and_then(|layer| layer.used.map(|bytes| bytes.0).zip(layer.inodes));
        let at = asked.time_of(layer.and_then(|layer| layer.counted));
        let name = name_number(container.name.as_bytes());
        let usage = PartUsage { uid: *uid, part: StoragePart::Layer(name), used, begun: at, ended: at };
        // Two of one number are one part.
        parts.entry(name).and_modify(|before| *before = together(before, &usage)).or_insert(usage);
    }
    let mut messages = Vec::new();
    for (uid, parts) in pods {
        messages.extend(parts.into_values().map(StorageMessage::Part));
        messages.push(StorageMessage::Measured(uid));
    }
    messages.push(StorageMessage::Round);
    messages
}

fn together(one: &PartUsage, other: &PartUsage) -> PartUsage {
    let sum =
        one.used.zip(other.used).map(|(one, other)| (one.0.saturating_add(other.0), one.1.saturating_add(other.1)));
    PartUsage { used: sum, begun: one.begun.min(other.begun), ended: one.ended.min(other.ended), ..*one }
}

#[cfg(test)]
mod tests {
    use super::super::listed_samples::{container, sandbox};
    use super::*;
    use plimsoll_cri::ContainerId;
    use plimsoll_units::Bytes;

    const SECOND: u64 = 1_000_000_000;

    fn asked() -> Asked {
        Asked { at: MonotonicNs(100 * SECOND), clock: SystemTime::UNIX_EPOCH + Duration::from_hours(9) }
    }

    fn layer(id: &str, used: Option<u64>, age: Duration) -> WritableLayer {
        let container = ContainerId::try_from(id.to_owned()).expect("an id");
        WritableLayer { container, used: used.map(Bytes), inodes: Some(2), counted: Some(asked().clock - age) }
    }

    #[test]
    fn layers_are_those_of_running_containers_by_pod_and_what_was_not_counted_is_there_and_unknown() {
        let (one, other, empty) = (Uid::of("1"), Uid::of("2"), Uid::of("3"));
        let sandboxes =
            [sandbox("a", "1", "pod"), sandbox("b", "1", "pod"), sandbox("c", "2", "pod"), sandbox("d", "3", "pod")];
        let containers = [
            container("counted", "a", "app", ContainerState::Running),
            container("again", "b", "app", ContainerState::Running),
            container("new", "c", "side", ContainerState::Running),
            container("over", "c", "app", ContainerState::Exited),
            container("of-no-pod", "e", "app", ContainerState::Running),
        ];
        let second = Duration::from_secs(1);
        let layers = [
            layer("counted", Some(4096), second * 9),
            layer("again", Some(1), second * 3),
            layer("over", Some(7), second),
            layer("of-no-pod", Some(7), second),
        ];
        let part = |uid, name: &str, used, seconds| {
            let at = MonotonicNs(seconds * SECOND);
            let part = StoragePart::Layer(name_number(name.as_bytes()));
            StorageMessage::Part(PartUsage { uid, part, used, begun: at, ended: at })
        };
        let mut expected = [
            (one, vec![part(one, "app", Some((4097, 4)), 91)]),
            (other, vec![part(other, "side", None, 100)]),
            (empty, Vec::new()),
        ];
        expected.sort_by_key(|(uid, _)| *uid);
        let mut messages = Vec::new();
        for (uid, parts) in expected {
            messages.extend(parts);
            messages.push(StorageMessage::Measured(uid));
        }
        messages.push(StorageMessage::Round);
        assert_eq!(round(&sandboxes, &containers, &layers, asked()), messages);
        let many: Vec<_> =
            (0..=MOST_PODS).map(|number| sandbox(&number.to_string(), &number.to_string(), "pod")).collect();
        assert_eq!(round(&many, &[], &[], asked()).len(), MOST_PODS + 1);
    }

    #[test]
    fn a_figure_is_as_old_as_the_runtime_says_and_never_of_later() {
        let clock = asked().clock;
        for (counted, expected) in [
            (None, 100),
            (Some(clock), 100),
            (Some(clock + Duration::from_hours(1)), 100),
            (Some(clock - Duration::from_secs(40)), 60),
            (Some(SystemTime::UNIX_EPOCH), 0),
        ] {
            assert_eq!(asked().time_of(counted), MonotonicNs(expected * SECOND), "{counted:?}");
        }
    }
}
