//! Plimsoll's own file over what a kubelet is configured with.

use crate::deserialize::Document;
use crate::flags::Overrides;
use crate::idle;
use crate::kubelet::read::{Dialect, is_misplaced, mapping, repeated};
use crate::kubelet::settings::Settings;
use crate::kubelet::typed::{place, typed};
use crate::kubelet::{Entry, Kubelet};
use crate::machine::{IN_RUN, threshold};
use crate::model::{Configuration, Origin, Text};
use crate::scalar::{amount_of, effect, value};
use crate::tree::{Node, Problems, Value, read};
use plimsoll_policy::kubelet::{Condition, Signal, Threshold};
use plimsoll_policy::{Config as Policy, EvictionPolicy, SliceThresholds};

/// Reads Plimsoll's own file over the settings of a kubelet. `has_kubelet`: some source of such settings was named.
pub(crate) fn own(
    text: Option<&Text>,
    overrides: &Overrides,
    has_kubelet: bool,
    mut settings: Settings,
    problems: &mut Problems,
) -> Configuration {
    let file = text.map_or("default", |own| own.file.as_str());
    let text = text.map_or("", |own| own.text.as_str());
    problems.turn_to(file);
    // A file of comments alone is valid.
    let is_empty = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    let document = if is_empty { None } else { read(text, problems) };
    let document = document.filter(|document| !is_misplaced(&document.value, "", problems));
    let mut root = document.unwrap_or(Node { line: 1, column: 1, value: Value::Null });
    repeated(&root.value, Dialect::Own, problems);
    let own_keys = Configuration::own_keys();
    let layer = mapping(root.entries("", problems), Dialect::Own, &own_keys, problems);
    let says = |key| layer.get(key).is_some_and(Option::is_some);
    let merges = says("evictionHard") || says("mergeDefaultEvictionSettings");
    settings.replace(layer);
    if !has_kubelet || merges && settings.scalar("mergeDefaultEvictionSettings").is_some_and(|(text, _)| text == "true")
    {
        settings.default_eviction_hard();
    }
    settings.defaults();
    let kubelet = typed(settings, file, problems);
    let thresholds = thresholds(&kubelet, problems);
    ignored(&kubelet, problems);
    root.value = match root.value {
        Value::Map(map) => Value::Map(map.into_iter().filter(|(name, _)| own_keys.contains(&name.text)).collect()),
        _ => Value::Null,
    };
    overrides.apply(&mut root);
    let origins = overrides.origins();
    let (configuration, origins) =
        Document::new(&root, file, &origins).read(problems, |configuration: &Configuration, document| {
            let mut refusals = configuration.machine.refusals(overrides.own_cgroup.as_deref(), document);
            refusals.extend(configuration.swap.as_ref().and_then(crate::Swap::refusal));
            refusals
        });
    let is_own = |map: &&str| {
        let mut entries = kubelet.settings.map(map);
        entries.any(|(name, entry)| *name == Signal::MemoryAvailable.name() && entry.origin.place().0 == file)
    };
    // Its place is `default` where there is no file, as that of a default.
    let maps = ["evictionHard", "evictionSoft", "evictionMinimumReclaim"];
    let own_thresholds = maps.into_iter().filter(|map| file != "default" && is_own(map)).collect();
    let configuration = Configuration { kubelet, own_thresholds, origins, ..configuration }.with_policy(thresholds);
    idle::warn(&configuration, file, problems);
    unwatched(&configuration, problems);
    disclosed(&configuration, problems);
    configuration
}

/// Warns where nothing is evicted for this machine's memory, unless a mistake in the thresholds is reported already.
fn unwatched(configuration: &Configuration, problems: &mut Problems) {
    // One that has no effect in `run` has a warning of its own.
    let is_odd = configuration.kubelet.thresholds.iter().any(|threshold| threshold.signal == Signal::MemoryAvailable);
    let is_meant = problems.is_meant("evictionHard") || problems.is_meant("evictionSoft");
    let is_reported = is_odd || is_meant || !problems.found.is_empty();
    if let (Some(why), false) = (configuration.unwatched_memory(), is_reported) {
        let (file, line) = configuration.origin("evictionHard").place();
        problems.turn_to(file);
        let why = format!("{why}; expected memory.available in evictionHard or evictionSoft");
        problems.warn(line, "evictionHard", None, &why);
    }
}

/// Warns where other machines may read the metrics, which name pods and ask no reader for anything. With a cluster that is refused, or
/// meant.
fn disclosed(configuration: &Configuration, problems: &mut Problems) {
    let address = configuration.machine.metrics_address;
    if !address.ip().is_loopback() && !configuration.machine.cluster.is_on() {
        let key = "machine.metricsAddress";
        let (file, line) = configuration.origin(key).place();
        problems.turn_to(file);
        let why = "metrics name pods, and all that reach this address may read them; expected an address of the loopback, \
                   and a proxy that asks readers for a token where others are to read them";
        problems.warn(line, key, Some(&address.to_string()), why);
    }
}

/// The thresholds on memory and on tasks, by which `run` decides. What a kubelet refuses is reported already. Amounts that
/// no machine has and that a kubelet accepts are accepted here too, on any signal, with a warning.
fn thresholds(kubelet: &Kubelet, problems: &mut Problems) -> Vec<Threshold> {
    let maps = [("evictionHard", false), ("evictionSoft", false), ("evictionMinimumReclaim", true)];
    for ((map, is_reclaim), signal) in maps.into_iter().flat_map(|map| Signal::ALL.map(|signal| (map, signal))) {
        let entry = kubelet.settings.map(map).find(|(name, _)| *name == signal.name());
        if let Some((_, Entry { text, origin })) = entry
            && !is_ignored(signal)
            && let Ok(Some(value)) = value(text, is_reclaim)
            && let Err(odd) = amount_of(&value)
        {
            let (file, line) = origin.place();
            problems.turn_to(file);
            // Those on disks are as the kubelet has them, by whose arithmetic such an amount may be below any other.
            let is_of_disk = signal.condition() == Condition::DiskPressure;
            let of_disk =
                || format!("more than any disk has, or not a number, which the kubelet accepts; {}", odd.expected);
            let why = if is_of_disk { of_disk() } else { odd.why.to_owned() };
            problems.warn(line, &place(map, Some(signal.name()), origin), Some(text), &why);
        }
    }
    thresholds_on(kubelet, &IN_RUN)
}

/// The thresholds on these signals, as `run` decides by them.
fn thresholds_on(kubelet: &Kubelet, signals: &[Signal]) -> Vec<Threshold> {
    let of_run = kubelet.thresholds.iter().filter(|threshold| signals.contains(&threshold.signal));
    let taken = of_run.filter_map(|Threshold { signal, amount, grace, min_reclaim, .. }| {
        let (at, min_reclaim) = (amount.as_ref().and_then(effect)?, min_reclaim.as_ref().and_then(effect));
        Some(threshold(*signal, at, *grace, min_reclaim))
    });
    taken.collect()
}

/// Whether the kubelet ignores thresholds on a signal, with a warning, and derives its own once it knows which disks there
/// are (`UpdateContainerFsThresholds`).
const fn is_ignored(signal: Signal) -> bool {
    matches!(signal, Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree)
}

/// Warns of thresholds of containerfs.
fn ignored(kubelet: &Kubelet, problems: &mut Problems) {
    for map in ["evictionHard", "evictionSoft"] {
        for (name, Entry { text, origin }) in kubelet.settings.map(map) {
            if Signal::parse(name).is_some_and(is_ignored) {
                let (file, line) = origin.place();
                problems.turn_to(file);
                let why = "ignored, as by the kubelet: thresholds of containerfs are those of nodefs, or of imagefs \
                           where that has writable layers too";
                problems.warn(line, &place(map, Some(name), origin), Some(text), why);
            }
        }
    }
}

impl Configuration {
    /// The policy that follows from the parts.
    fn with_policy(self, thresholds: Vec<Threshold>) -> Self {
        let Self { machine, kubelet, .. } = &self;
        let mut slices: Vec<_> = self.listed_slices().iter().map(crate::Slice::thresholds).collect();
        let signal = Signal::AllocatableMemoryAvailable;
        let of_pods = if self.decides_by(signal) { thresholds_on(kubelet, &[signal]) } else { Vec::new() };
        slices.extend((!of_pods.is_empty()).then_some(SliceThresholds { thresholds: of_pods }));
        let policy = Policy {
            eviction_policy: self.eviction_policy,
            thresholds,
            slices,
            swap: self.swap.as_ref().and_then(crate::Swap::threshold),
            pressure_transition: kubelet.pressure_transition,
            // Below zero the kubelet's code gives a second, which is the least that any victim gets.
            max_pod_grace_seconds: i64::from(kubelet.max_pod_grace_seconds).max(0),
            local_storage_isolation: kubelet.local_storage_isolation,
            hard_victims_per_minute: machine.victims_per_minute,
            soft_victims_per_minute: machine.victims_per_minute,
            evict_for_unattributed: machine.evict_for_unattributed,
            responsible_percent: machine.responsible_percent,
            stall_percent: machine.stall_percent,
            reclaim_pause: machine.reclaim_pause,
            ..Policy::default()
        };
        Self { policy, ..self }
    }

    /// The same under another eviction policy, with what follows from it.
    #[must_use]
    pub fn with_eviction_policy(mut self, eviction_policy: EvictionPolicy) -> Self {
        self.eviction_policy = eviction_policy;
        let thresholds = core::mem::take(&mut self.policy.thresholds);
        self.with_policy(thresholds)
    }

    /// The origin of a key's value, with its parents: `machine.brake.mode`.
    pub fn origin(&self, key: &str) -> &Origin {
        let of_kubelet = || self.kubelet.settings.get(key).map(|setting| &setting.origin);
        self.origins.get(key).or_else(of_kubelet).unwrap_or(&Origin::Default)
    }
}
