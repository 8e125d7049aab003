//! The meaning of a kubelet's settings, with everything that is wrong in them.

use super::read::expected_in;
use super::settings::{Entry, Setting, SettingValue, Settings};
use super::threshold::{EvictionSettings, ThresholdError, parse_all_thresholds};
use super::{IGNORE_EVICTION, KEYS, Shape, parse_duration};
use crate::model::Origin;
use crate::tree::{Problems, any_of, nearest, unknown_key};
use core::time::Duration;
use plimsoll_policy::kubelet::{Signal, Threshold};
use plimsoll_policy::shutdown::{Period, ShutdownConfig, ShutdownConfigError};
use plimsoll_units::{Bytes, Quantity};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What can be reserved.
pub const RESERVABLE: [&str; 4] = ["cpu", "ephemeral-storage", "memory", "pid"];

/// A kubelet's configuration, as far as it is used or checked, under KubeletConfiguration's names.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are the kubelet's own switches, by its names")]
pub struct Kubelet {
    /// The settings as they are written, with the origin of each.
    pub settings: Settings,
    /// The maps of thresholds, as texts.
    pub eviction: EvictionSettings,
    /// The thresholds, those derived for allocatable memory included; those for containerfs are not, since they follow
    /// from the runtime's disks.
    pub thresholds: Vec<Threshold<Quantity>>,
    /// `evictionPressureTransitionPeriod`.
    pub pressure_transition: Duration,
    /// `evictionMaxPodGracePeriod`. Below zero it reads as "the pod's own", and is a second in the kubelet's code.
    pub max_pod_grace_seconds: i32,
    /// `mergeDefaultEvictionSettings`.
    pub merge_default_eviction_settings: bool,
    /// `imageMinimumGCAge`: images that were first seen less than this ago are not removed.
    pub image_min_age: Duration,
    /// `kubeReserved`.
    pub kube_reserved: BTreeMap<String, Quantity>,
    /// `systemReserved`.
    pub system_reserved: BTreeMap<String, Quantity>,
    /// Hard thresholds are not taken off what pods can request: an old flag.
    pub ignore_eviction_for_allocatable: bool,
    /// `localStorageCapacityIsolation`: limits of local storage are enforced.
    pub local_storage_isolation: bool,
    /// `failSwapOn`.
    pub fail_swap_on: bool,
    /// `kernelMemcgNotification`.
    pub kernel_memcg_notification: bool,
    /// `staticPodPath`, empty where there is none.
    pub static_pod_path: String,
    /// `shutdownGracePeriod` and what belongs to it.
    pub shutdown: ShutdownConfig,
}

impl Kubelet {
    /// What of a hard threshold on memory is taken off what pods can request.
    pub fn taken_from_allocatable(&self, hard: Bytes) -> Bytes {
        if self.ignore_eviction_for_allocatable { Bytes::ZERO } else { hard }
    }
}

/// Types settings whose defaults are filled in. Values from `own`, Plimsoll's own file, are checked more strictly than
/// those that a kubelet runs with.
pub(crate) fn typed(settings: Settings, own: &str, problems: &mut Problems) -> Kubelet {
    let mut reader = Reader { settings: &settings, own, problems };
    let (eviction, thresholds) = reader.thresholds();
    let kubelet = Kubelet {
        eviction,
        thresholds,
        pressure_transition: reader.duration("evictionPressureTransitionPeriod"),
        max_pod_grace_seconds: reader.max_pod_grace(),
        merge_default_eviction_settings: reader.is("mergeDefaultEvictionSettings"),
        image_min_age: reader.duration("imageMinimumGCAge"),
        kube_reserved: reader.reserved("kubeReserved"),
        system_reserved: reader.reserved("systemReserved"),
        ignore_eviction_for_allocatable: reader.is(IGNORE_EVICTION),
        local_storage_isolation: reader.is("localStorageCapacityIsolation"),
        fail_swap_on: reader.is("failSwapOn"),
        kernel_memcg_notification: reader.is("kernelMemcgNotification"),
        static_pod_path: static_pod_path(&settings),
        shutdown: reader.shutdown(),
        settings: Settings::default(),
    };
    reader.enforced();
    reader.image_gc();
    reader.scalars();
    Kubelet { settings, ..kubelet }
}

/// The kubelet takes a relative path in its file from the file's directory.
fn static_pod_path(settings: &Settings) -> String {
    match settings.scalar("staticPodPath") {
        Some((path, Origin::File { file, .. })) if !path.is_empty() => {
            Path::new(file).parent().unwrap_or(Path::new("")).join(path).display().to_string()
        }
        Some((path, _)) => path.to_owned(),
        None => String::new(),
    }
}

struct Reader<'a> {
    settings: &'a Settings,
    own: &'a str,
    problems: &'a mut Problems,
}

impl<'a> Reader<'a> {
    fn scalar(&self, key: &str) -> Option<(&'a str, &'a Origin)> {
        self.settings.scalar(key)
    }

    fn is_own(&self, origin: &Origin) -> bool {
        matches!(origin, Origin::File { file, .. } if file == self.own)
    }

    /// Reports a problem with a value, or with a value in a map.
    fn report(&mut self, key: &str, entry: Option<&str>, origin: &Origin, value: Option<&str>, expected: &str) {
        let (file, line) = origin.place();
        self.problems.turn_to(file);
        let place = place(key, entry, origin);
        self.problems.add(line, &place, value, expected);
    }

    fn warn(&mut self, key: &str, entry: Option<&str>, origin: &Origin, value: Option<&str>, why: &str) {
        self.report(key, entry, origin, value, why);
        self.problems.warnings.extend(self.problems.found.pop());
    }

    fn is(&self, key: &str) -> bool {
        self.settings.scalar(key).is_some_and(|(text, _)| text == "true")
    }

    fn nanos(&mut self, key: &str) -> i64 {
        let Some((text, origin)) = self.scalar(key) else { return 0 };
        parse_duration(text).unwrap_or_else(|error| {
            let kubelet = self.in_its_words(origin, &error);
            self.report(key, None, origin, Some(text), &format!("{DURATION}{kubelet}"));
            0
        })
    }

    fn duration(&mut self, key: &str) -> Duration {
        let nanos = self.nanos(key);
        u64::try_from(nanos).map_or_else(
            |_| {
                if let Some((text, origin)) = self.scalar(key) {
                    self.report(key, None, origin, Some(text), DURATION);
                }
                Duration::ZERO
            },
            Duration::from_nanos,
        )
    }

    /// The kubelet's own message behind ours, where a kubelet reads this value.
    fn in_its_words(&self, origin: &Origin, error: &dyn core::fmt::Display) -> String {
        if self.is_own(origin) { String::new() } else { format!("; the kubelet says: {error}") }
    }

    fn texts(&self, key: &str) -> BTreeMap<String, String> {
        self.settings.map(key).map(|(name, entry)| (name.clone(), entry.text.clone())).collect()
    }

    fn thresholds(&mut self) -> (EvictionSettings, Vec<Threshold<Quantity>>) {
        // The kubelet derives no threshold on allocatable memory where this flag is set (`NewMainKubelet`).
        let is_ignored = self.is(IGNORE_EVICTION);
        let enforced = if is_ignored { &[] } else { self.settings.list("enforceNodeAllocatable") };
        let eviction = EvictionSettings {
            hard: self.texts("evictionHard"),
            soft: self.texts("evictionSoft"),
            soft_grace: self.texts("evictionSoftGracePeriod"),
            min_reclaim: self.texts("evictionMinimumReclaim"),
            enforce_node_allocatable: enforced.to_vec(),
        };
        let (thresholds, errors) = parse_all_thresholds(&eviction);
        for error in errors {
            // A missing grace period is reported at the threshold that lacks it.
            let is_missing = matches!(error.error, ThresholdError::GraceMissing(_));
            let from = if is_missing { "evictionSoft" } else { error.map };
            let settings = self.settings;
            let Some((_, Entry { text, origin })) = settings.map(from).find(|(name, _)| **name == error.name) else {
                continue;
            };
            let value = error.error.expected(text);
            let expected = match (&error.error, value) {
                (ThresholdError::UnknownSignal(misspelt), _) => {
                    let signals = Signal::ALL.map(Signal::name);
                    if let Some(near) = nearest(misspelt, signals) {
                        self.problems.mean(&format!("{}.{near}", error.map));
                    }
                    unknown_key(misspelt, &signals)
                }
                (ThresholdError::GraceMissing(signal), _) if self.is_meant(error.map, signal.name()) => continue,
                (ThresholdError::GraceMissing(signal), _) => {
                    format!("missing; {} needs a grace period", place("evictionSoft", Some(signal.name()), origin))
                }
                (
                    ThresholdError::Percentage(_) | ThresholdError::Quantity(_) | ThresholdError::Duration(_),
                    Some(expected),
                ) => format!("{expected}{}", self.in_its_words(origin, &error.error)),
                (_, expected) => expected.unwrap_or_default().to_owned(),
            };
            self.report(error.map, Some(&error.name), origin, value.map(|_| text.as_str()), &expected);
        }
        self.without_threshold(&eviction);
        (eviction, thresholds)
    }

    /// Whether a misspelt key was probably meant for this map, or for this signal in it.
    fn is_meant(&self, map: &str, signal: &str) -> bool {
        self.problems.is_meant(map) || self.problems.is_meant(&format!("{map}.{signal}"))
    }

    /// Grace periods and minimum reclaims without a threshold.
    fn without_threshold(&mut self, eviction: &EvictionSettings) {
        for (key, of) in [("evictionSoftGracePeriod", "soft threshold"), ("evictionMinimumReclaim", "threshold")] {
            let settings = self.settings;
            for (name, Entry { text, origin }) in settings.map(key) {
                let is_soft = eviction.soft.contains_key(name);
                let has_one = is_soft || key == "evictionMinimumReclaim" && eviction.hard.contains_key(name);
                let is_hard_meant = key == "evictionMinimumReclaim" && self.is_meant("evictionHard", name);
                let is_unknown = Signal::parse(name).is_none();
                if has_one || is_unknown || is_hard_meant || self.is_meant("evictionSoft", name) {
                    continue;
                }
                let why = format!("there is no {of} for it");
                if self.is_own(origin) && key == "evictionSoftGracePeriod" {
                    self.report(key, Some(name), origin, Some(text), &why);
                } else {
                    self.warn(key, Some(name), origin, Some(text), &why);
                }
            }
        }
    }

    fn max_pod_grace(&mut self) -> i32 {
        let key = "evictionMaxPodGracePeriod";
        let Some((text, origin)) = self.scalar(key) else { return 0 };
        match text.parse::<i32>() {
            Ok(seconds) if seconds >= 0 => seconds,
            Ok(seconds) if !self.is_own(origin) => {
                let why =
                    "reads as the pod's own grace period in the documents; the kubelet's code makes it one second";
                self.warn(key, None, origin, Some(text), why);
                seconds
            }
            Ok(_) | Err(_) => {
                let expected = format!("expected a whole number from 0 to {}", i32::MAX);
                self.report(key, None, origin, Some(text), &expected);
                0
            }
        }
    }

    fn reserved(&mut self, key: &str) -> BTreeMap<String, Quantity> {
        let settings = self.settings;
        let mut reserved = BTreeMap::new();
        for (name, Entry { text, origin }) in settings.map(key) {
            let expected = if RESERVABLE.contains(&name.as_str()) {
                match Quantity::parse(text) {
                    Ok(quantity) if !quantity.is_negative() => {
                        reserved.insert(name.clone(), quantity);
                        continue;
                    }
                    Ok(_) => "expected a quantity that is not negative".to_owned(),
                    Err(error) => format!("{}{}", expected_in(key), self.in_its_words(origin, &error)),
                }
            } else {
                format!("it cannot be reserved; expected {}", any_of(&RESERVABLE))
            };
            self.report(key, Some(name), origin, Some(text), &expected);
        }
        reserved
    }

    /// `enforceNodeAllocatable` and what it needs beside it.
    fn enforced(&mut self) {
        const CHOICES: [(&str, Option<&str>); 6] = [
            ("pods", None),
            ("system-reserved", Some("systemReservedCgroup")),
            ("system-reserved-compressible", Some("systemReservedCgroup")),
            ("kube-reserved", Some("kubeReservedCgroup")),
            ("kube-reserved-compressible", Some("kubeReservedCgroup")),
            ("none", None),
        ];
        let key = "enforceNodeAllocatable";
        let Some(Setting { value: SettingValue::List(list), origin }) = self.settings.get(key).cloned() else { return };
        let mut before = BTreeSet::new();
        for value in &list {
            let Some((_, needs)) = CHOICES.iter().find(|(name, _)| name == value) else {
                let names = CHOICES.map(|(name, _)| name);
                self.report(key, None, &origin, Some(value), &format!("expected {}", any_of(&names)));
                continue;
            };
            if !before.insert(value.as_str()) {
                self.report(key, None, &origin, Some(value), "it is in the list twice");
            }
            if value == "none" && list.len() > 1 {
                self.report(key, None, &origin, Some(value), "expected none alone");
            }
            if let Some(needs) = needs
                && !self.is_own(&origin)
                && self.settings.scalar(needs).is_none_or(|(path, _)| path.is_empty())
            {
                self.report(key, None, &origin, Some(value), &format!("{needs} is missing, which it needs"));
            }
        }
        for both in ["system-reserved", "kube-reserved"] {
            if before.contains(both) && before.contains(format!("{both}-compressible").as_str()) {
                let expected = format!("expected {both} or {both}-compressible, not both");
                self.report(key, None, &origin, Some(both), &expected);
            }
        }
    }

    fn image_gc(&mut self) {
        let [high, low] = ["imageGCHighThresholdPercent", "imageGCLowThresholdPercent"].map(|key| {
            let (text, origin) = self.scalar(key)?;
            let percent = text.parse::<i32>().ok().filter(|percent| (0..=100).contains(percent));
            if percent.is_none() {
                self.report(key, None, origin, Some(text), "expected a whole number from 0 to 100");
            }
            Some((percent?, text, origin))
        });
        if let (Some((high, ..)), Some((low, text, origin))) = (high, low)
            && low >= high
        {
            let expected = format!("expected less than imageGCHighThresholdPercent, which is {high}");
            self.report("imageGCLowThresholdPercent", None, origin, Some(text), &expected);
        }
    }

    fn shutdown(&mut self) -> ShutdownConfig {
        let list = match self.settings.get("shutdownGracePeriodByPodPriority") {
            Some(Setting { value: SettingValue::Any(serde_json::Value::Array(list)), origin }) => {
                Some((list.clone(), origin.clone()))
            }
            Some(_) | None => None,
        };
        let mut by_priority = Vec::new();
        for (index, item) in list.iter().flat_map(|(list, _)| list).enumerate() {
            let number = |name: &str| item.get(name).map_or(Some(0), serde_json::Value::as_i64);
            let priority = number("priority").and_then(|priority| i32::try_from(priority).ok());
            match (priority, number("shutdownGracePeriodSeconds"), &list) {
                (Some(priority), Some(seconds), _) => by_priority.push(Period { priority, seconds }),
                (_, _, Some((_, origin))) => {
                    let key = format!("shutdownGracePeriodByPodPriority[{index}]");
                    let expected = "expected priority and shutdownGracePeriodSeconds, whole numbers";
                    let origin = origin.clone();
                    self.report(&key, None, &origin, Some(&item.to_string()), expected);
                }
                _ => {}
            }
        }
        let shutdown = ShutdownConfig {
            grace_ns: self.nanos("shutdownGracePeriod"),
            critical_ns: self.nanos("shutdownGracePeriodCriticalPods"),
            by_priority,
        };
        for problem in shutdown.problems() {
            let key = match problem {
                ShutdownConfigError::CriticalAboveAll { .. } | ShutdownConfigError::CriticalTooShort(_) => {
                    "shutdownGracePeriodCriticalPods"
                }
                ShutdownConfigError::GraceTooShort(_) => "shutdownGracePeriod",
                ShutdownConfigError::Both => "shutdownGracePeriodByPodPriority",
            };
            let origin = self.settings.get(key).map_or(Origin::Default, |setting| setting.origin.clone());
            let text = self.scalar(key).map(|(text, _)| text);
            self.report(key, None, &origin, text, &format!("the kubelet says: {problem}"));
        }
        shutdown
    }

    /// Durations and numbers that are not checked above.
    fn scalars(&mut self) {
        let checked = [
            "evictionPressureTransitionPeriod",
            "evictionMaxPodGracePeriod",
            "shutdownGracePeriod",
            "shutdownGracePeriodCriticalPods",
            "imageGCHighThresholdPercent",
            "imageGCLowThresholdPercent",
        ];
        for key in KEYS.iter().filter(|key| !checked.contains(&key.name)) {
            match key.shape {
                Shape::Duration => {
                    self.nanos(key.name);
                }
                Shape::Number => {
                    let Some((text, origin)) = self.scalar(key.name) else { continue };
                    if text.parse::<i64>().is_err() {
                        self.report(key.name, None, origin, Some(text), "expected a whole number");
                    }
                }
                Shape::Map(_) | Shape::Switches | Shape::Bool | Shape::List | Shape::Text | Shape::Any => {}
            }
        }
    }
}

const DURATION: &str = "expected a duration such as 30s, 1m30s or 500ms";

/// The name of a value in a problem: its key in a file, its flag on a command line.
pub(crate) fn place(key: &str, entry: Option<&str>, origin: &Origin) -> String {
    match (origin, entry) {
        (Origin::KubeletFlag { flag, .. }, None) => flag.clone(),
        (Origin::KubeletFlag { flag, .. }, Some(entry)) => format!("{flag} {entry}"),
        (_, None) => key.to_owned(),
        (_, Some(entry)) => format!("{key}.{entry}"),
    }
}
