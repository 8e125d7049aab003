//! Plimsoll's own file as it is written: for `convert`, and for the schema that editors check it by.

use crate::duration::written;
use crate::kubelet::{Setting, Settings};
use crate::model::{BrakeMode, Configuration, LogFormat, Origin, SourceChoice};
use plimsoll_policy::kubelet::Line;
use plimsoll_policy::{EvictionPolicy, SliceThresholds, SwapThreshold};
use plimsoll_units::{Pattern, Quantity};
use serde::Serialize;
use std::collections::BTreeMap;

/// A quantity such as 100Mi, or a percentage such as 5%.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Amount(String);

/// A quantity such as 500Mi.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Reserved(String);

/// A duration such as 1m30s.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Period(String);

macro_rules! by_signal {
    ($(#[$doc:meta])* $name:ident, $value:ident) => {
        $(#[$doc])*
        #[derive(Debug, Default, Serialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
        pub(crate) struct $name {
            /// Memory of the machine, or of the slice.
            #[serde(rename = "memory.available", skip_serializing_if = "Option::is_none")]
            memory_available: Option<$value>,
            /// Memory that pods together may have. For replay and explain only.
            #[serde(rename = "allocatableMemory.available", skip_serializing_if = "Option::is_none")]
            allocatable_memory_available: Option<$value>,
            /// Bytes of the file system of the kubelet's directory. For replay and explain only.
            #[serde(rename = "nodefs.available", skip_serializing_if = "Option::is_none")]
            node_fs_available: Option<$value>,
            /// Its inodes. For replay and explain only.
            #[serde(rename = "nodefs.inodesFree", skip_serializing_if = "Option::is_none")]
            node_fs_inodes_free: Option<$value>,
            /// Bytes of the file system of images. For replay and explain only.
            #[serde(rename = "imagefs.available", skip_serializing_if = "Option::is_none")]
            image_fs_available: Option<$value>,
            /// Its inodes. For replay and explain only.
            #[serde(rename = "imagefs.inodesFree", skip_serializing_if = "Option::is_none")]
            image_fs_inodes_free: Option<$value>,
            /// Bytes of the file system of containers' writable layers. The kubelet derives it. For replay and explain
            /// only.
            #[serde(rename = "containerfs.available", skip_serializing_if = "Option::is_none")]
            container_fs_available: Option<$value>,
            /// Its inodes. The kubelet derives it. For replay and explain only.
            #[serde(rename = "containerfs.inodesFree", skip_serializing_if = "Option::is_none")]
            container_fs_inodes_free: Option<$value>,
            /// Process numbers. For replay and explain only.
            #[serde(rename = "pid.available", skip_serializing_if = "Option::is_none")]
            pid_available: Option<$value>,
        }

        impl $name {
            fn of(settings: &Settings, map: &str) -> Self {
                let texts: BTreeMap<&str, &str> =
                    settings.map(map).map(|(name, entry)| (name.as_str(), entry.text.as_str())).collect();
                let value = |name: &str| texts.get(name).map(|text| $value((*text).to_owned()));
                Self {
                    memory_available: value("memory.available"),
                    allocatable_memory_available: value("allocatableMemory.available"),
                    node_fs_available: value("nodefs.available"),
                    node_fs_inodes_free: value("nodefs.inodesFree"),
                    image_fs_available: value("imagefs.available"),
                    image_fs_inodes_free: value("imagefs.inodesFree"),
                    container_fs_available: value("containerfs.available"),
                    container_fs_inodes_free: value("containerfs.inodesFree"),
                    pid_available: value("pid.available"),
                }
            }
        }
    };
}

by_signal!(
    /// Lines, by what they are drawn for.
    Lines,
    Amount
);
by_signal!(
    /// Grace periods, by what they belong to.
    Graces,
    Period
);

/// The configuration of Plimsoll. Thresholds carry the names of KubeletConfiguration.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields, title = "Plimsoll"))]
pub(crate) struct Document {
    /// Less than this is available: somebody is stopped at once. Whoever writes one line has none of the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_hard: Option<Lines>,
    /// Less than this for as long as the grace period: somebody is asked to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_soft: Option<Lines>,
    /// How long a soft threshold must be crossed. Every soft threshold needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_soft_grace_period: Option<Graces>,
    /// Once a threshold was crossed, go on until this much more than the line is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_minimum_reclaim: Option<Lines>,
    /// How long a pressure condition stays after the last time that a threshold was crossed. 5m by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_pressure_transition_period: Option<Period>,
    /// The most seconds that a victim of a soft threshold gets for an orderly end. 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 0, max = 2_147_483_647)))]
    eviction_max_pod_grace_period: Option<u32>,
    /// Take the kubelet's default lines for whatever evictionHard does not say. Not by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    merge_default_eviction_settings: Option<bool>,
    /// What a kubelet enforces: pods by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    enforce_node_allocatable: Option<Vec<String>>,
    /// What is kept for the kubelet and the runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    kube_reserved: Option<Reservations>,
    /// What is kept for everything else of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    system_reserved: Option<Reservations>,
    /// Pods over their limits of local storage are evicted for it. By default they are. For replay: run knows no pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    local_storage_capacity_isolation: Option<bool>,
    /// Which rules decide about pods. plimsoll by default. For replay and explain: run knows no pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_policy: Option<Book>,
    /// When swap counts as pressure on pods: short, pages coming back from it, and all tasks stalling. Never by
    /// default. For replay and explain: run knows no pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap>,
    /// What is the machine's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
}

/// When swap is short.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub(crate) struct Swap {
    /// Less than this of it is free.
    free: Amount,
    /// For so long without a break. 30s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    grace: Option<Period>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Book {
    Plimsoll,
    Kubelet,
    OpenShift3,
}

/// What is kept from pods.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub(crate) struct Reservations {
    /// Processors: 2, or 200m.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Reserved>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Reserved>,
    /// Bytes on the node's disk.
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    ephemeral_storage: Option<Reserved>,
    /// Process numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<Reserved>,
}

/// The machine's own part.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub(crate) struct Machine {
    /// Which cgroups may be stopped; the first pattern that matches gives the priority. None by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    workloads: Option<Vec<Workload>>,
    /// Which of these never, as patterns.
    #[serde(skip_serializing_if = "Option::is_none")]
    never: Option<Vec<String>>,
    /// How growth is held while deciding.
    #[serde(skip_serializing_if = "Option::is_none")]
    brake: Option<Brake>,
    /// Evict by rank even where most of the growth was in nothing that may be evicted. Not by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    evict_for_unattributed: Option<bool>,
    /// At most so many victims within any minute. 30 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 0, max = 10_000)))]
    victims_per_minute: Option<u32>,
    /// Growth counts from this much of the fall in available memory on, in percent: workloads that together grew by
    /// less are not evicted for it. 10 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 0, max = 100)))]
    responsible_percent: Option<u8>,
    /// How much of the time all tasks must wait for memory before cache alone is a reason to evict. 20 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 0, max = 100)))]
    stall_percent: Option<u8>,
    /// How long after a reclaim that did not help the next is tried. 10s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    reclaim_pause: Option<Period>,
    /// How to watch. auto by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Source>,
    /// How often the slowest way to watch looks: from 10ms to 1h, 1s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_period: Option<Period>,
    /// Slices with thresholds of their own, at most 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(length(max = 64)))]
    slices: Option<Vec<Slice>>,
    /// Where metrics and health are served: an address with a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics_address: Option<String>,
    /// Where the run record is: an absolute path that does not survive a boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(regex(pattern = "^/")))]
    state_directory: Option<String>,
    /// How the log is written. text by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_format: Option<Log>,
}

/// Some cgroups that may be stopped.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub(crate) struct Workload {
    /// A path below the cgroup root; `*` stands for any part of a name, `**` at the end for everything below.
    #[serde(rename = "match")]
    pattern: String,
    /// Lower goes first. 0 by default.
    #[serde(default)]
    priority: i32,
}

/// How growth is held.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub(crate) struct Brake {
    /// From user space, once awake. freeze by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    /// Paths of cgroups that may be stopped from inside the kernel. None by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_kernel: Option<Vec<String>>,
    /// No brake lasts longer: above 0 and at most 2s, 2s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Period>,
}

/// A slice with lines of its own, below its own limit.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub(crate) struct Slice {
    /// Its path below the cgroup root.
    path: String,
    /// Its hard threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_hard: Option<SliceThreshold>,
    /// Its soft threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_soft: Option<SliceThreshold>,
    /// How long the soft threshold must be crossed.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_soft_grace_period: Option<SliceGrace>,
    /// How much more than the line is wanted again.
    #[serde(skip_serializing_if = "Option::is_none")]
    eviction_minimum_reclaim: Option<SliceThreshold>,
}

/// A line on the memory of a slice.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub(crate) struct SliceThreshold {
    /// Memory below the slice's limit.
    #[serde(rename = "memory.available", skip_serializing_if = "Option::is_none")]
    memory_available: Option<Amount>,
}

/// A grace period of a line on the memory of a slice.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub(crate) struct SliceGrace {
    /// Of that line.
    #[serde(rename = "memory.available", skip_serializing_if = "Option::is_none")]
    memory_available: Option<Period>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Mode {
    Freeze,
    None,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Source {
    Auto,
    Ebpf,
    Psi,
    Poll,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Log {
    Text,
    Json,
}

impl Document {
    /// What was said, without what is the default anyhow. What a kubelet's file or command line comes to without a
    /// word, no lines at all, has to be said here.
    pub(crate) fn said(configuration: &Configuration) -> Self {
        let settings = &configuration.kubelet.settings;
        let is_said = |key: &str| settings.get(key).filter(|setting| setting.origin != Origin::Default);
        let lines = |key| is_said(key).map(|_| Lines::of(settings, key));
        let reserved = |key| is_said(key).map(|_| Reservations::of(settings, key));
        let said_here = |key: &str| configuration.origins.get(key).is_some_and(|origin| *origin != Origin::Default);
        let scalar = |key| is_said(key).and_then(|_| settings.scalar(key)).map(|(text, _)| text.to_owned());
        Self {
            eviction_hard: match settings.get("evictionHard") {
                Some(Setting { origin: Origin::Default, .. }) => None,
                Some(_) | None => Some(Lines::of(settings, "evictionHard")),
            },
            eviction_soft: lines("evictionSoft"),
            eviction_soft_grace_period: is_said("evictionSoftGracePeriod")
                .map(|_| Graces::of(settings, "evictionSoftGracePeriod")),
            eviction_minimum_reclaim: lines("evictionMinimumReclaim"),
            eviction_pressure_transition_period: scalar("evictionPressureTransitionPeriod").map(Period),
            // Below zero is a second in the kubelet's code, and so is zero.
            eviction_max_pod_grace_period: is_said("evictionMaxPodGracePeriod")
                .map(|_| u32::try_from(configuration.kubelet.max_pod_grace_seconds).unwrap_or(0)),
            // The lines above are merged already.
            merge_default_eviction_settings: None,
            enforce_node_allocatable: is_said("enforceNodeAllocatable")
                .map(|_| settings.list("enforceNodeAllocatable").to_vec()),
            kube_reserved: reserved("kubeReserved"),
            system_reserved: reserved("systemReserved"),
            local_storage_capacity_isolation: is_said("localStorageCapacityIsolation")
                .map(|_| configuration.kubelet.local_storage_isolation),
            eviction_policy: said_here("evictionPolicy").then(|| Book::from(configuration.policy.eviction_policy)),
            swap: Swap::of(configuration),
            machine: Machine::of(configuration, false),
        }
    }

    /// The machine's part, defaults included.
    pub(crate) fn machine(configuration: &Configuration) -> Option<Machine> {
        Machine::of(configuration, true)
    }

    /// What is said of a kubelet and does not stand in this document, by its names.
    pub(crate) fn leaves_out(settings: &Settings) -> Vec<&'static str> {
        let said = settings.iter().filter(|(_, setting)| setting.origin != Origin::Default);
        said.filter(|(key, _)| !key.is_own()).map(|(key, _)| key.name).collect()
    }
}

impl From<EvictionPolicy> for Book {
    fn from(book: EvictionPolicy) -> Self {
        match book {
            EvictionPolicy::Kubelet => Self::Kubelet,
            EvictionPolicy::Plimsoll => Self::Plimsoll,
            EvictionPolicy::OpenShift3 => Self::OpenShift3,
        }
    }
}

impl Swap {
    pub(crate) fn of(configuration: &Configuration) -> Option<Self> {
        let SwapThreshold { free, grace } = configuration.policy.swap?;
        Some(Self { free: amount(free), grace: Some(Period(written(grace))) })
    }
}

impl Reservations {
    fn of(settings: &Settings, map: &str) -> Self {
        let value = |resource: &str| {
            let (_, entry) = settings.map(map).find(|(name, _)| *name == resource)?;
            Some(Reserved(entry.text.clone()))
        };
        Self {
            cpu: value("cpu"),
            memory: value("memory"),
            ephemeral_storage: value("ephemeral-storage"),
            pid: value("pid"),
        }
    }
}

impl Machine {
    fn of(configuration: &Configuration, with_defaults: bool) -> Option<Self> {
        let Configuration {
            policy,
            kubelet: _,
            warnings: _,
            workloads,
            never,
            brake,
            slices,
            source,
            poll_period,
            metrics_address,
            state_directory,
            log_format,
            origins,
        } = configuration;
        let is_said = |key: &str| {
            let origin = origins.get(&format!("machine.{key}"));
            with_defaults || origin.is_some_and(|origin| *origin != Origin::Default)
        };
        let texts = |patterns: &[Pattern]| patterns.iter().map(ToString::to_string).collect();
        let own_brake = Brake {
            mode: is_said("brake.mode").then_some(match brake.mode {
                BrakeMode::Freeze => Mode::Freeze,
                BrakeMode::None => Mode::None,
            }),
            in_kernel: is_said("brake.inKernel").then(|| texts(&brake.in_kernel)),
            deadline: is_said("brake.deadline").then(|| Period(written(brake.deadline))),
        };
        let has_brake = own_brake.mode.is_some() || own_brake.in_kernel.is_some() || own_brake.deadline.is_some();
        let machine = Self {
            workloads: is_said("workloads").then(|| {
                let workload = |workload: &crate::Workload| Workload {
                    pattern: workload.pattern.to_string(),
                    priority: workload.priority,
                };
                workloads.iter().map(workload).collect()
            }),
            never: is_said("never").then(|| texts(never)),
            brake: has_brake.then_some(own_brake),
            evict_for_unattributed: is_said("evictForUnattributed").then_some(policy.evict_for_unattributed),
            victims_per_minute: is_said("victimsPerMinute").then_some(policy.hard_victims_per_minute),
            responsible_percent: is_said("responsiblePercent").then_some(policy.responsible_percent),
            stall_percent: is_said("stallPercent").then_some(policy.stall_percent),
            reclaim_pause: is_said("reclaimPause").then(|| Period(written(policy.reclaim_pause))),
            source: is_said("source").then_some(match source {
                SourceChoice::Auto => Source::Auto,
                SourceChoice::Ebpf => Source::Ebpf,
                SourceChoice::Psi => Source::Psi,
                SourceChoice::Poll => Source::Poll,
            }),
            poll_period: is_said("pollPeriod").then(|| Period(written(*poll_period))),
            slices: is_said("slices").then(|| {
                let lines = slices.iter().zip(&policy.slices);
                lines.map(|(slice, lines)| Slice::of(slice.path.as_str(), lines)).collect()
            }),
            metrics_address: is_said("metricsAddress").then(|| metrics_address.to_string()),
            state_directory: is_said("stateDirectory").then(|| state_directory.display().to_string()),
            log_format: is_said("logFormat").then_some(match log_format {
                LogFormat::Text => Log::Text,
                LogFormat::Json => Log::Json,
            }),
        };
        let is_any = origins.iter().any(|(key, origin)| key.starts_with("machine.") && *origin != Origin::Default);
        (with_defaults || is_any).then_some(machine)
    }
}

impl Slice {
    fn of(path: &str, lines: &SliceThresholds) -> Self {
        let hard = lines.thresholds.iter().find(|threshold| threshold.is_hard());
        let soft = lines.thresholds.iter().find(|threshold| !threshold.is_hard());
        let line = |line: Line| SliceThreshold { memory_available: Some(amount(line)) };
        let min_reclaim = hard
            .or(soft)
            .and_then(|threshold| threshold.min_reclaim)
            .filter(|amount| *amount != Line::At(plimsoll_policy::kubelet::Amount::ZERO));
        Self {
            path: path.to_owned(),
            eviction_hard: hard.and_then(|hard| hard.line).map(line),
            eviction_soft: soft.and_then(|soft| soft.line).map(line),
            eviction_soft_grace_period: soft
                .map(|soft| SliceGrace { memory_available: Some(Period(written(soft.grace))) }),
            eviction_minimum_reclaim: min_reclaim.map(line),
        }
    }
}

fn amount(line: Line) -> Amount {
    Amount(text(line))
}

/// A line as it is written.
pub(crate) fn text(line: Line) -> String {
    match line {
        Line::At(amount) => Quantity::binary(amount.rounded_up()).to_string(),
        Line::Share(share) => share.to_string(),
    }
}

#[cfg(test)]
mod schema {
    use super::{Amount, Document, Period, Reserved};
    use crate::kubelet::KEYS;
    use schemars::generate::SchemaSettings;
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use serde_json::Value;
    use std::borrow::Cow;

    macro_rules! text {
        ($name:ident, $description:literal, $types:tt, $pattern:literal) => {
            impl JsonSchema for $name {
                fn inline_schema() -> bool {
                    false
                }

                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!({ "description": $description, "type": $types, "pattern": $pattern })
                }
            }
        };
    }

    text!(
        Amount,
        "A quantity such as 100Mi, or a percentage such as 5%.",
        ["string", "number"],
        "^[+-]?[0-9.]+([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$|^[+]?[0-9.]+%$"
    );
    text!(
        Reserved,
        "A quantity such as 500Mi.",
        ["string", "number"],
        "^[+]?[0-9.]+([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$"
    );
    text!(
        Period,
        "A duration such as 1m30s.",
        ["string", "number"],
        "^[+]?(0|([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|ms|s|m|h))+$"
    );

    fn path() -> std::path::PathBuf {
        // Cargo runs tests in their package's folder.
        "../deploy/plimsoll.schema.json".into()
    }

    fn generated() -> Value {
        let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
        let mut schema = generator.into_root_schema_for::<Document>().to_value();
        without_null(&mut schema);
        schema
    }

    /// A key that is not said is left out, so that nothing (`null`) is no value.
    fn without_null(schema: &mut Value) {
        if let Some(Value::Array(types)) = schema.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                schema["type"] = only.clone();
            }
        }
        if let Some([only, null]) = schema.get("anyOf").and_then(Value::as_array).map(Vec::as_slice)
            && null["type"] == "null"
        {
            let reference = only["$ref"].clone();
            let map = schema.as_object_mut().expect("it has members");
            map.remove("anyOf");
            map.insert("$ref".to_owned(), reference);
        }
        match schema {
            Value::Object(map) => map.values_mut().for_each(without_null),
            Value::Array(list) => list.iter_mut().for_each(without_null),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// To write it anew: `PLIMSOLL_WRITE_SCHEMA=1 cargo test -p plimsoll-config schema`.
    #[test]
    fn the_shipped_schema_is_the_one_of_this_reader() {
        let text = format!("{}\n", serde_json::to_string_pretty(&generated()).expect("it is JSON"));
        if std::env::var_os("PLIMSOLL_WRITE_SCHEMA").is_some() {
            std::fs::write(path(), &text).expect("written");
        }
        let shipped = std::fs::read_to_string(path()).expect("the shipped schema");
        assert!(shipped == text, "{} is stale: set PLIMSOLL_WRITE_SCHEMA=1 and run this test again", path().display());
    }

    /// What the schema says of a key; references are followed.
    fn at<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
        let name = schema.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix("#/$defs/"));
        name.map_or(schema, |name| &root["$defs"][name])
    }

    fn names(schema: &Value) -> Vec<&str> {
        let mut names: Vec<&str> =
            schema["properties"].as_object().expect("an object").keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn schema_and_reader_know_the_same_keys() {
        let root = generated();
        let machine = at(&root["properties"]["machine"], &root);
        for (schema, key, text) in [
            (&root, "unknown", "unknown: 1"),
            (machine, "machine.unknown", "machine: {unknown: 1}"),
            (at(&root["properties"]["swap"], &root), "swap.unknown", "swap: {free: 1Gi, unknown: 1}"),
            (at(&machine["properties"]["brake"], &root), "machine.brake.unknown", "machine: {brake: {unknown: 1}}"),
            (
                at(&machine["properties"]["slices"]["items"], &root),
                "machine.slices[0].unknown",
                "machine: {slices: [{path: a, evictionHard: {memory.available: 1Mi}, unknown: 1}]}",
            ),
            (
                at(&machine["properties"]["workloads"]["items"], &root),
                "machine.workloads[0].unknown",
                "machine: {workloads: [{match: a, unknown: 1}]}",
            ),
        ] {
            // The reader names what it knows.
            let known = format!("f:1: {key}: unknown key; expected {}", crate::tree::any_of(&names(schema)));
            let error = crate::parse(text, "f").expect_err("it is unknown").to_string();
            assert_eq!(error, known);
            assert_eq!(schema["additionalProperties"], Value::Bool(false));
        }
        let own = KEYS.iter().filter(|key| key.is_own()).count();
        assert_eq!(names(&root).len(), own + 3, "and machine, evictionPolicy, swap");
        for map in ["evictionHard", "evictionSoftGracePeriod"] {
            let signals = at(&root["properties"][map], &root)["properties"].as_object().map(serde_json::Map::len);
            assert_eq!(signals, Some(crate::kubelet::EvictionSignal::ALL.len()), "{map}");
        }
    }
}
