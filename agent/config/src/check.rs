//! Common mistakes in a valid configuration: [`check`] compares it with a node and its pods.
//!
//! Nothing is read here, so that a configuration can be checked on another machine than its node.

use crate::error::Problem;
use crate::kubelet::Kubelet;
use crate::kubelet::typed::place;
use crate::model::{Configuration, Origin};
use crate::scalar::effect;
use crate::tree::{Problems, Value, read};
use plimsoll_policy::kubelet::{Signal, Threshold, ThresholdAmount};
use plimsoll_policy::{EvictionPolicy, SliceThresholds};
use plimsoll_units::{Bytes, Quantity};
use std::collections::BTreeMap;

/// What `ProtectHome=yes` of systemd.exec(5) makes empty.
const HIDDEN: [&str; 3] = ["/home", "/root", "/run/user"];

/// The node of a configuration; what is not known is not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// A kubelet runs there, or is to. Elsewhere mistakes that only concern a kubelet are not checked.
    pub has_kubelet: bool,
    /// All its memory.
    pub memory: Option<Bytes>,
    /// What of that is available now, by the kubelet's formula.
    pub available: Option<Bytes>,
    /// What of that is set aside for huge pages. Pods request it by name, and the kubelet subtracts it from what they can
    /// request otherwise.
    pub huge_pages: Bytes,
    /// What it uses of that outside of pods.
    pub system_uses: Option<Bytes>,
    /// By how much its available memory may be off at most, by what its CPUs keep back of the kernel's counters.
    pub uncertainty: Option<Bytes>,
    /// Whether cgroups are version 2.
    pub cgroup_v2: Option<bool>,
    /// Its swap areas, by their names in `/proc/swaps`.
    pub swaps: Vec<String>,
    /// Its pods, or all of the cluster's.
    pub pods: Vec<Pod>,
    /// Its static pods, by their files.
    pub static_pods: Vec<StaticPod>,
}

/// A pod of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `namespace/name`.
    pub name: String,
    /// The DaemonSet that it belongs to, if it does.
    pub daemon_set: Option<String>,
    /// Its priority, as the API server resolved it; zero without one.
    pub priority: i32,
}

/// A file of a static pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticPod {
    /// The file.
    pub file: String,
    /// The pod's name.
    pub name: String,
    /// The name of a priority class, and its line.
    pub priority_class: Option<(String, u64)>,
    /// Whether it has a `priority`.
    pub has_priority: bool,
}

/// The memory of a node and what is taken from it, before pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headroom {
    /// All memory.
    pub capacity: Bytes,
    /// What of that is set aside for huge pages.
    pub huge_pages: Bytes,
    /// `kubeReserved`.
    pub kube_reserved: Bytes,
    /// `systemReserved`.
    pub system_reserved: Bytes,
    /// The hard threshold; zero where there is none.
    pub hard: Bytes,
    /// The soft threshold; zero where there is none.
    pub soft: Bytes,
    /// What pods can request: the capacity less the reservations, the hard threshold and what is set aside for huge
    /// pages.
    pub allocatable: Bytes,
    /// The capacity less the reservations alone, as in older documents.
    pub less_reservations: Bytes,
    /// What the system uses outside of pods, where it is known.
    pub system_uses: Option<Bytes>,
}

impl Headroom {
    /// The rule for choosing reservations.
    pub const RULE: &str = "what is kept from pods (kubeReserved, systemReserved and the hard threshold) covers what the system \
                            itself uses plus the greater of the soft and the hard threshold; then pods within their requests \
                            never reach a threshold. Older documents do not count the hard threshold as kept from pods.";

    /// Computes it; absent where the size of the node's memory is not known.
    pub fn of(kubelet: &Kubelet, node: &Node) -> Option<Self> {
        let capacity = node.memory?;
        let threshold = |hard: bool| {
            let thresholds = kubelet
                .thresholds
                .iter()
                .filter(|threshold| threshold.signal == Signal::MemoryAvailable && threshold.is_hard() == hard);
            thresholds.filter_map(|threshold| threshold.exact().bytes(capacity)).max().unwrap_or_default()
        };
        let reserved =
            |map: &BTreeMap<String, Quantity>| map.get("memory").and_then(Quantity::bytes).unwrap_or_default();
        let (kube_reserved, system_reserved) = (reserved(&kubelet.kube_reserved), reserved(&kubelet.system_reserved));
        let less_reservations = capacity.saturating_sub(kube_reserved).saturating_sub(system_reserved);
        let hard = threshold(true);
        let taken = kubelet.taken_from_allocatable(hard);
        Some(Self {
            capacity,
            huge_pages: node.huge_pages,
            kube_reserved,
            system_reserved,
            hard,
            soft: threshold(false),
            allocatable: less_reservations.saturating_sub(taken).saturating_sub(node.huge_pages),
            less_reservations,
            system_uses: node.system_uses,
        })
    }

    /// The greater of the soft and the hard threshold.
    pub fn threshold(&self) -> Bytes {
        self.hard.max(self.soft)
    }

    /// What the system may use outside of pods before pods within their requests reach the threshold. What is set aside
    /// for huge pages counts for neither.
    pub fn system_may_use(&self) -> Bytes {
        self.divided().saturating_sub(self.allocatable).saturating_sub(self.threshold())
    }

    /// What pods and the system have together.
    fn divided(&self) -> Bytes {
        self.capacity.saturating_sub(self.huge_pages)
    }

    /// How much more would have to be reserved, so that pods within their requests do not reach the threshold. Where the
    /// use of the system is not known, it is taken as above zero.
    pub fn missing(&self) -> Option<Bytes> {
        let may_use = self.system_may_use();
        match self.system_uses {
            Some(uses) if uses > may_use => Some(uses.saturating_sub(may_use)),
            // The part of the threshold that no reservation covers.
            None if may_use == Bytes::ZERO => {
                Some((self.allocatable.saturating_add(self.threshold())).saturating_sub(self.divided()))
            }
            Some(_) | None => None,
        }
    }
}

/// The findings of a check, beside those of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What a kubelet refuses.
    pub errors: Vec<Problem>,
    /// What is valid and yet probably a mistake.
    pub warnings: Vec<Problem>,
    /// How the node's memory is divided, where there is a kubelet and the size is known.
    pub headroom: Option<Headroom>,
}

/// Compares a configuration with a node.
pub fn check(configuration: &Configuration, node: &Node) -> Findings {
    let kubelet = &configuration.kubelet;
    let mut reported = Reported { kubelet, errors: Vec::new(), warnings: Vec::new() };
    reported.soft_thresholds(node);
    reported.soft_thresholds_of_slices(configuration);
    reported.uncertain_thresholds(node);
    reported.hidden_paths(configuration);
    let Plausible { errors, warnings } = implausible_thresholds(configuration, node);
    reported.errors.extend(errors);
    reported.warnings.extend(warnings);
    let headroom = if node.has_kubelet { Headroom::of(kubelet, node) } else { None };
    if let Some(headroom) = &headroom {
        reported.headroom(headroom);
    }
    if kubelet.kernel_memcg_notification && node.cgroup_v2 == Some(true) {
        let why = "no effect on cgroup v2, where the kubelet has no such notification; Plimsoll's own hooks report a \
                   crossing at once";
        reported.warn("kernelMemcgNotification", None, "true", why);
    }
    if kubelet.fail_swap_on && node.has_kubelet && !node.swaps.is_empty() {
        let why = format!(
            "this kubelet does not start while there is swap ({}); expected swapoff, or failSwapOn: false and \
             memorySwap.swapBehavior",
            node.swaps.join(", ")
        );
        reported.warn("failSwapOn", None, "true", &why);
    }
    reported.daemon_sets(&node.pods);
    reported.static_pods(&node.static_pods);
    let Reported { kubelet: _, errors, warnings } = reported;
    Findings { errors, warnings, headroom }
}

/// What is to be said of thresholds on memory beside the memory of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plausible {
    /// Those that are always met, or for good once they are.
    pub errors: Vec<Problem>,
    /// Those that probably are not meant.
    pub warnings: Vec<Problem>,
}

/// Compares thresholds on memory with what the machine has, and with what is available now, as the eviction policy counts
/// both. An amount that is always met, or a minimum reclaim that keeps one met for good, is an error in Plimsoll's own file
/// alone: a kubelet runs by it.
pub fn implausible_thresholds(configuration: &Configuration, node: &Node) -> Plausible {
    let Configuration { kubelet, own_thresholds, eviction_policy, .. } = configuration;
    let reported = Reported { kubelet, errors: Vec::new(), warnings: Vec::new() };
    let mut found = Plausible::default();
    let Some(memory) = node.memory else { return found };
    let pool = if *eviction_policy == EvictionPolicy::Kubelet { Bytes::ZERO } else { node.huge_pages };
    let capacity = memory.saturating_sub(pool);
    let available = node.available.map(|available| available.saturating_sub(pool));
    let has = if pool == Bytes::ZERO {
        shown(capacity)
    } else {
        format!("{} beside what is set aside for huge pages", shown(capacity))
    };
    let mut is_reclaim_reported = false;
    let of_memory = |threshold: &&Threshold<Quantity>| threshold.signal == Signal::MemoryAvailable;
    for threshold in kubelet.thresholds.iter().filter(of_memory) {
        let Some((key, name, value)) = kubelet.eviction.written(threshold) else { continue };
        let exact = threshold.exact();
        let at = exact.bytes(capacity).unwrap_or_default();
        let problem = |why: &str| reported.problem(key, Some(name), value, why);
        let is_amount = matches!(exact.amount, Some(ThresholdAmount::At(_)));
        let min_reclaim = threshold.min_reclaim.as_ref().and_then(effect).map(|amount| amount.of_bytes(capacity));
        let is_out_of_reach = at < capacity && min_reclaim.is_some_and(|more| at.saturating_add(more) >= capacity);
        if is_out_of_reach && !is_reclaim_reported {
            is_reclaim_reported = true;
            let map = "evictionMinimumReclaim";
            let value = kubelet.eviction.min_reclaim.get(name).cloned().unwrap_or_default();
            let why = format!(
                "with the threshold of {} the machine, which has {has}, never has so much available, so that evictions would \
                 not end; expected less",
                shown(at)
            );
            let list = if own_thresholds.contains(&map) { &mut found.errors } else { &mut found.warnings };
            list.push(reported.problem(map, Some(name), &value, &why));
        }
        if at >= capacity && is_amount {
            let why = format!("the machine has {has}, so that this is always met; expected less");
            let list = if own_thresholds.contains(&key) { &mut found.errors } else { &mut found.warnings };
            list.push(problem(&why));
        } else if at.0 > capacity.0 / 2 {
            let why = format!("{} is more than half of what the machine has, {has}", shown(at));
            found.warnings.push(problem(&why));
        } else if let Some(available) = available.filter(|available| *available < at) {
            let why = format!("met right now: {} is available, and the threshold is {}", shown(available), shown(at));
            found.warnings.push(problem(&why));
        }
    }
    found
}

struct Reported<'a> {
    kubelet: &'a Kubelet,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Reported<'_> {
    /// A problem with a key, or with an entry of its map, at its place.
    fn problem(&self, key: &str, entry: Option<&str>, value: &str, expected: &str) -> Problem {
        let settings = &self.kubelet.settings;
        let of_entry = entry.and_then(|entry| settings.map(key).find(|(name, _)| *name == entry));
        let of_key = settings.get(key).map(|setting| &setting.origin);
        let origin = of_entry.map(|(_, entry)| &entry.origin).or(of_key).unwrap_or(&Origin::Default);
        let (file, line) = origin.place();
        Problem {
            file: file.to_owned(),
            line,
            key: place(key, entry, origin),
            value: Some(value.to_owned()),
            expected: expected.to_owned(),
        }
    }

    fn warn(&mut self, key: &str, entry: Option<&str>, value: &str, why: &str) {
        self.warnings.push(self.problem(key, entry, value, why));
    }

    /// A soft threshold that is not above the hard one has no effect.
    fn soft_thresholds(&mut self, node: &Node) {
        let thresholds = &self.kubelet.thresholds;
        for soft in thresholds.iter().filter(|threshold| !threshold.is_hard()) {
            let Some(hard) = thresholds.iter().find(|hard| hard.is_hard() && hard.signal == soft.signal) else {
                continue;
            };
            if is_above(soft, hard, node) != Some(false) {
                continue;
            }
            let [soft, hard] = [soft, hard].map(|threshold| self.kubelet.eviction.written(threshold));
            let (Some((key, name, soft)), Some((_, _, hard))) = (soft, hard) else { continue };
            self.warn(key, Some(name), soft, &not_above(hard));
        }
    }

    /// A threshold that is not above what the kernel's counters may be off by.
    fn uncertain_thresholds(&mut self, node: &Node) {
        let (Some(capacity), Some(uncertainty)) = (node.memory, node.uncertainty) else { return };
        let memory = |threshold: &&Threshold<Quantity>| threshold.signal == Signal::MemoryAvailable;
        for threshold in self.kubelet.thresholds.iter().filter(memory) {
            let at = threshold.exact().bytes(capacity).unwrap_or_default();
            if at == Bytes::ZERO || at > uncertainty {
                continue;
            }
            let Some((key, name, value)) = self.kubelet.eviction.written(threshold) else { continue };
            let why = format!(
                "the CPUs of this machine keep back parts of the kernel's counters, so that available memory may be off by \
                 {} until they fold them in; expected more",
                shown(uncertainty)
            );
            self.warn(key, Some(name), value, &why);
        }
    }

    /// Paths that the shipped unit does not see (`ProtectHome=`).
    fn hidden_paths(&mut self, configuration: &Configuration) {
        let machine = &configuration.machine;
        for (key, path) in [
            ("machine.podFacts", machine.pod_facts.as_ref()),
            ("machine.staticPods", machine.static_pods.as_ref()),
            ("machine.stateDirectory", Some(&machine.state_directory)),
            ("machine.journalDirectory", Some(&machine.journal_directory)),
            ("machine.killSwitch", machine.kill_switch.as_ref()),
            ("machine.kubeletRoot", machine.kubelet_root.as_ref()),
            ("machine.runtimeSocket", machine.runtime_socket.as_ref()),
            ("machine.imageRoot", machine.image_root.as_ref()),
            ("machine.containerRoot", machine.container_root.as_ref()),
            ("machine.cluster.kubeconfig", machine.cluster.kubeconfig.as_ref()),
        ] {
            let Some(path) = path else { continue };
            let Some(hidden) = HIDDEN.into_iter().find(|hidden| path.starts_with(hidden)) else { continue };
            let (file, line) = configuration.origin(key).place();
            let why = format!("below {hidden}, which the shipped unit hides (ProtectHome=yes); expected another place");
            self.warnings.push(Problem {
                file: file.to_owned(),
                line,
                key: key.to_owned(),
                value: Some(path.display().to_string()),
                expected: why,
            });
        }
    }

    /// The same as [`Self::soft_thresholds`] for slices. Their limits are not known here, so that a percentage and an
    /// amount are not compared.
    fn soft_thresholds_of_slices(&mut self, configuration: &Configuration) {
        let (file, line) = configuration.origin("machine.slices").place();
        let slices = configuration.machine.slices.iter().zip(&configuration.policy.slices);
        for (index, (slice, SliceThresholds { thresholds })) in slices.enumerate() {
            let found = |is_hard| thresholds.iter().find(|threshold| threshold.is_hard() == is_hard)?.amount;
            let is_above = found(false).zip(found(true)).and_then(|(soft, hard)| is_amount_above(soft, hard));
            let (Some(soft), Some(hard), Some(false)) = (&slice.eviction_soft, &slice.eviction_hard, is_above) else {
                continue;
            };
            self.warnings.push(Problem {
                file: file.to_owned(),
                line,
                key: format!("machine.slices[{index}].evictionSoft.memory.available"),
                value: Some(soft.memory_available.clone()),
                expected: not_above(&hard.memory_available),
            });
        }
    }

    fn headroom(&mut self, headroom: &Headroom) {
        let reserved = headroom.kube_reserved.saturating_add(headroom.system_reserved);
        let taken = self.kubelet.taken_from_allocatable(headroom.hard);
        if reserved.saturating_add(taken) > headroom.capacity {
            let with = if taken == Bytes::ZERO {
                String::new()
            } else {
                format!("with the hard threshold of {} ", shown(taken))
            };
            let has = shown(headroom.capacity);
            let expected = format!("{with}it is more than there is, {has}, and the kubelet does not start");
            let problem = self.problem("systemReserved", Some("memory"), &written(reserved), &expected);
            self.errors.push(problem);
        } else if let Some(missing) = headroom.missing() {
            let uses = headroom.system_uses.map_or_else(
                || "as soon as the system uses anything itself".to_owned(),
                |uses| format!("for the system uses {}", shown(uses)),
            );
            let more = if missing == Bytes::ZERO {
                "what the system itself uses".to_owned()
            } else if headroom.system_uses.is_some() {
                format!("{} more", shown(missing))
            } else {
                format!("{} more, and what the system itself uses", shown(missing))
            };
            let why = format!(
                "pods within their requests ({} in all) can reach the threshold of {}, {uses}; expected kubeReserved and \
                 systemReserved to cover {more}",
                shown(headroom.allocatable),
                shown(headroom.threshold()),
            );
            self.warn("systemReserved", Some("memory"), &written(headroom.system_reserved), &why);
        }
    }

    /// One warning for each DaemonSet, since its pods are alike.
    fn daemon_sets(&mut self, pods: &[Pod]) {
        let mut sets: BTreeMap<&str, (usize, &Pod)> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| pod.priority <= 0) {
            if let Some(set) = &pod.daemon_set {
                sets.entry(set).or_insert((0, pod)).0 += 1;
            }
        }
        for (set, (count, pod)) in sets {
            let pods = if count == 1 { pod.name.clone() } else { format!("{} and {} more", pod.name, count - 1) };
            self.warnings.push(Problem {
                file: "pods".to_owned(),
                line: None,
                key: format!("DaemonSet {set}"),
                value: Some(format!("priority {}", pod.priority)),
                expected: format!(
                    "{pods}: evicted like any other, made again on this node at once, and over the threshold again; expected a \
                     priorityClassName with a high priority, unless it may only run where there is room"
                ),
            });
        }
    }

    fn static_pods(&mut self, pods: &[StaticPod]) {
        for StaticPod { file, name, priority_class, has_priority } in pods {
            let (Some((class, line)), false) = (priority_class, has_priority) else { continue };
            self.warnings.push(Problem {
                file: file.clone(),
                line: Some(*line),
                key: format!("static pod {name}: spec.priorityClassName"),
                value: Some(class.clone()),
                expected:
                    "no component resolves this name for a static pod, so that its priority is 0 for eviction and \
                     shutdown; expected spec.priority with the class's number beside it"
                        .to_owned(),
            });
        }
    }
}

/// The message for a soft threshold that is not above the hard one.
fn not_above(hard: &str) -> String {
    format!("not above the hard threshold of {hard}, which acts first; expected more")
}

/// Whether a soft threshold is above a hard one; not known where one is a percentage of an unknown size.
fn is_above(soft: &Threshold<Quantity>, hard: &Threshold<Quantity>, node: &Node) -> Option<bool> {
    let (soft, hard) = (soft.exact(), hard.exact());
    is_amount_above(soft.amount?, hard.amount?).or_else(|| {
        let capacity = node.memory.filter(|_| soft.signal == Signal::MemoryAvailable)?;
        Some(soft.bytes(capacity)? > hard.bytes(capacity)?)
    })
}

/// The same of amounts alone; not known of a percentage and an amount.
fn is_amount_above(soft: ThresholdAmount, hard: ThresholdAmount) -> Option<bool> {
    match (soft, hard) {
        (ThresholdAmount::At(soft), ThresholdAmount::At(hard)) => Some(soft > hard),
        (ThresholdAmount::Share(soft), ThresholdAmount::Share(hard)) => Some(soft > hard),
        (ThresholdAmount::At(_), ThresholdAmount::Share(_)) | (ThresholdAmount::Share(_), ThresholdAmount::At(_)) => {
            None
        }
    }
}

/// Bytes as a configuration has them.
fn written(bytes: Bytes) -> String {
    Quantity::binary(bytes.0.into()).to_string()
}

/// Bytes as Kubernetes prints them, and with their unit where that has no suffix.
pub fn shown(bytes: Bytes) -> String {
    let quantity = written(bytes);
    if quantity.ends_with(|last: char| last.is_ascii_digit()) { quantity + " B" } else { quantity }
}

/// Reads the file of a static pod, in YAML or JSON.
pub fn parse_static_pod(text: &str, file: &str) -> Result<StaticPod, Vec<Problem>> {
    let mut problems = Problems::new(file);
    let document = read(text, &mut problems);
    let found = document.as_ref().and_then(|document| {
        let spec = document.get("spec")?;
        let set = |name| spec.get(name).filter(|node| !matches!(node.value, Value::Null));
        let name = document.get("metadata").and_then(|metadata| metadata.get("name"));
        Some(StaticPod {
            file: file.to_owned(),
            name: name.map_or_else(|| "?".to_owned(), |name| name.value.shown()),
            priority_class: set("priorityClassName").map(|class| (class.value.shown(), class.line)),
            has_priority: set("priority").is_some(),
        })
    });
    found.ok_or_else(|| {
        if problems.found.is_empty() {
            problems.add(None, "spec", None, "missing; expected a pod, as the kubelet does of every file here");
        }
        problems.found
    })
}
