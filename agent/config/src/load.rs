//! Plimsoll's own file: reading, checking, filling in defaults.

use crate::duration::parse_duration;
use crate::idle;
use crate::kubelet::read::{Dialect, is_misplaced, mapping, repeated};
use crate::kubelet::settings::Settings;
use crate::kubelet::typed::{place, typed};
use crate::kubelet::{KEYS, Kubelet};
use crate::model::{Brake, BrakeMode, Configuration, LogFormat, Origin, Slice, SourceChoice, Text, Workload};
use crate::tree::{Item, Problems, Section, Value, any_of, read};
use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use plimsoll_policy::kubelet::{Line, Origin as ThresholdOrigin, Signal, Threshold};
use plimsoll_policy::{Config as Policy, EvictionPolicy, SliceSet, SliceThresholds, SwapThreshold};
use plimsoll_units::{Pattern, Percentage, Quantity};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where the service unit of this project puts the agent.
const USUAL_OWN_CGROUP: &str = "plimsoll.slice/plimsoll.service";
/// Where init is on a machine with systemd.
const INIT_CGROUP: &str = "init.scope";
/// How long swap must be short, unless configured otherwise.
const SWAP_GRACE: Duration = Duration::from_secs(30);
/// No brake lasts longer, whatever is configured.
const LONGEST_BRAKE: Duration = Duration::from_secs(2);

/// What the command line or the environment says; it goes before the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// How to watch.
    pub source: Option<SourceChoice>,
    /// How often the slowest way to watch looks.
    pub poll_period: Option<Duration>,
    /// Where metrics and health are served.
    pub metrics_address: Option<SocketAddr>,
    /// Where the run record is.
    pub state_directory: Option<PathBuf>,
    /// How the log is written.
    pub log_format: Option<LogFormat>,
    /// The outermost cgroup that is the agent's alone, below the root: no workload may hold it.
    pub own_cgroup: Option<String>,
}

/// Reads Plimsoll's own file over what a kubelet is told.
pub(crate) struct Own<'a> {
    pub(crate) overrides: &'a Overrides,
    /// Something was looked at that tells what a kubelet goes by.
    pub(crate) is_reported: bool,
}

impl Own<'_> {
    pub(crate) fn read(self, own: Option<&Text>, mut settings: Settings, problems: &mut Problems) -> Configuration {
        let Self { overrides, is_reported } = self;
        let (file, text) = own.map_or(("default", ""), |own| (own.file.as_str(), own.text.as_str()));
        problems.turn_to(file);
        // A file of comments alone says nothing, which is in order.
        let says_nothing = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
        let document = if says_nothing { None } else { read(text, problems) };
        let nothing = Value::Null;
        let document = document.filter(|document| !is_misplaced(&document.value, "", problems));
        let root = document.as_ref().map_or(Item { line: 1, value: &nothing }, Item::new);
        repeated(root.value, Dialect::Own, problems);
        let mut root = root.section("", problems);
        let layer = mapping(root.entries(), Dialect::Own, &["machine", "evictionPolicy", "swap"], problems);
        let says = |key| layer.get(key).is_some_and(Option::is_some);
        let merges = says("evictionHard") || says("mergeDefaultEvictionSettings");
        settings.replace(layer);
        if !is_reported
            || merges && settings.scalar("mergeDefaultEvictionSettings").is_some_and(|(text, _)| text == "true")
        {
            settings.default_eviction_hard();
        }
        settings.defaults();
        let mut origins: BTreeMap<String, Origin> =
            KEYS.iter().filter(|key| key.is_own()).map(|key| (key.name.to_owned(), Origin::Default)).collect();
        for (key, setting) in settings.iter() {
            origins.insert(key.name.to_owned(), setting.origin.clone());
            for (name, entry) in settings.map(key.name) {
                origins.insert(format!("{}.{name}", key.name), entry.origin.clone());
            }
        }
        let kubelet = typed(settings, file, problems);
        let policy = Policy {
            thresholds: lines(&kubelet, problems),
            pressure_transition: kubelet.pressure_transition,
            // Below zero the kubelet's code gives a second, which is the least that any victim gets.
            max_pod_grace_seconds: i64::from(kubelet.max_pod_grace_seconds).max(0),
            local_storage_isolation: kubelet.local_storage_isolation,
            ..Policy::default()
        };
        problems.turn_to(file);
        let mut reader = Reader { file, problems, origins };
        let (key, item) =
            root.take("machine").unwrap_or_else(|| ("machine".to_owned(), Item { line: root.line, value: &nothing }));
        let machine = item.section(&key, reader.problems);
        let books = EvictionPolicy::ALL.map(|book| (book.name(), book));
        let eviction_policy = reader.one_of(&mut root, "evictionPolicy", EvictionPolicy::default(), &books);
        let policy = Policy { eviction_policy, swap: reader.swap(&mut root), ..policy };
        let configuration = reader.machine(machine, policy, kubelet, overrides);
        let origins = reader.origins;
        idle::warn(&configuration.kubelet, &origins, file, problems);
        // Where a threshold is wrong, or no number, that was told already.
        let is_odd = problems.warnings.iter().any(|warning| warning.key.ends_with(Signal::MemoryAvailable.name()));
        let is_meant = problems.is_meant("evictionHard") || problems.is_meant("evictionSoft");
        let is_told = is_odd || is_meant || !problems.found.is_empty();
        if let (Some(why), false) = (configuration.unwatched_memory(), is_told) {
            let (file, line) = origins.get("evictionHard").map_or(("default", None), Origin::place);
            problems.turn_to(file);
            let why = format!("{why}; expected memory.available in evictionHard or evictionSoft");
            problems.warn(line, "evictionHard", None, &why);
        }
        Configuration { origins, ..configuration }
    }
}

/// The lines on memory that are decided by. What is wrong with them as thresholds was told already. What a kubelet
/// takes although no machine has as much is taken here, too, as what comes to the same.
fn lines(kubelet: &Kubelet, problems: &mut Problems) -> Vec<Threshold> {
    let signal = Signal::MemoryAvailable;
    let mut line = |map: &'static str, zero_will_do| {
        let (_, entry) = kubelet.settings.map(map).find(|(name, _)| *name == signal.name())?;
        let (file, line) = entry.origin.place();
        let key = || place(map, Some(signal.name()), &entry.origin);
        match line_of(&entry.text, zero_will_do) {
            Ok(Found::Plain(found)) => found,
            Ok(Found::Odd { comes_to, why, expected: _ }) => {
                problems.turn_to(file);
                problems.warn(line, &key(), Some(&entry.text), why);
                comes_to
            }
            Err(refused) => {
                problems.turn_to(file);
                // A threshold that is wrong for the kubelet too was told with the kubelet's words.
                if !problems.has(line, &key()) {
                    problems.add(line, &key(), Some(&entry.text), refused);
                }
                None
            }
        }
    };
    let (hard, soft) = (line("evictionHard", false), line("evictionSoft", false));
    let min_reclaim = line("evictionMinimumReclaim", true);
    let grace = kubelet.eviction.soft_grace.get(signal.name()).and_then(|text| parse_duration(text));
    [hard.zip(Some(Duration::ZERO)), soft.zip(grace)]
        .into_iter()
        .flatten()
        .map(|(line, grace)| on_memory(line, grace, min_reclaim))
        .collect()
}

fn on_memory(line: Line, grace: Duration, min_reclaim: Option<Line>) -> Threshold {
    let min_reclaim = min_reclaim.filter(|line| !matches!(line, Line::At(amount) if amount.is_zero()));
    let origin = ThresholdOrigin::Configured;
    Threshold { signal: Signal::MemoryAvailable, line: Some(line), grace, min_reclaim, origin }
}

/// What a text says of a line; nothing where it switches the line off.
enum Found {
    /// It means what it says.
    Plain(Option<Line>),
    /// No machine has this: what it comes to, why that is hardly meant, and what would be in its place.
    Odd { comes_to: Option<Line>, why: &'static str, expected: &'static str },
}

/// A quantity or a percentage, or what was expected. `0%` and `100%` switch a threshold off, as they do in the kubelet.
fn line_of(text: &str, zero_will_do: bool) -> Result<Found, &'static str> {
    let expected = "expected a quantity such as 100Mi or a percentage such as 5%";
    let expected_share = "expected a percentage from 0% to 100%";
    if matches!(text, "0%" | "100%") && !zero_will_do {
        return Ok(Found::Plain(None));
    }
    if text.ends_with('%') {
        let share = Percentage::parse(text).map_err(|_| expected)?;
        if share.fraction().is_nan() {
            return Ok(Found::Odd {
                comes_to: None,
                why: "it is no number, which the kubelet takes all the same: nothing follows from it",
                expected: expected_share,
            });
        }
        return match share.fraction() {
            0.0..=1.0 => Ok(Found::Plain(Some(Line::Share(share)))),
            more if zero_will_do && more > 1.0 => {
                let why = "more than there is, and the kubelet takes it all the same; taken for 100%";
                Ok(Found::Odd { comes_to: Some(Line::Share(Percentage::of_one(1.0))), why, expected: expected_share })
            }
            _ => Err(expected_share),
        };
    }
    let quantity = Quantity::parse(text).map_err(|_| expected)?;
    if quantity.is_negative() {
        return Err("expected a quantity that is not negative");
    }
    if quantity.is_zero() && !zero_will_do {
        return Err("expected a quantity above zero");
    }
    let most = Line::bytes(plimsoll_units::Bytes(u64::MAX));
    Ok(quantity.bytes().map_or(
        Found::Odd {
            comes_to: Some(most),
            why: "more than any machine has, and the kubelet takes it all the same: it is always short",
            expected: "expected a quantity of at most 18446744073709551615 bytes",
        },
        |bytes| Found::Plain(Some(Line::bytes(bytes))),
    ))
}

/// Walks the document, collects problems and origins.
struct Reader<'a> {
    file: &'a str,
    problems: &'a mut Problems,
    origins: BTreeMap<String, Origin>,
}

impl Reader<'_> {
    fn came_from(&mut self, key: String, line: Option<u64>) {
        let origin = line.map_or(Origin::Default, |line| Origin::File { file: self.file.to_owned(), line });
        self.origins.insert(key, origin);
    }

    /// The value at `key`, or the default where there is none or it will not do.
    fn value<T>(
        &mut self,
        section: &mut Section<'_>,
        key: &'static str,
        default: T,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> T {
        let taken = section.take(key);
        self.came_from(section.full(key), taken.as_ref().map(|(_, item)| item.line));
        let Some((full, item)) = taken else { return default };
        let Some(text) = item.text(&full, expected, self.problems) else { return default };
        parse(text).unwrap_or_else(|| {
            item.refuse(&full, expected, self.problems);
            default
        })
    }

    fn duration(&mut self, section: &mut Section<'_>, key: &'static str, default: Duration) -> Duration {
        self.value(section, key, default, "expected a duration such as 30s, 1m30s or 500ms", parse_duration)
    }

    fn whole(&mut self, section: &mut Section<'_>, key: &'static str, default: u64, most: u64) -> u64 {
        let expected = format!("expected a whole number from 0 to {most}");
        self.value(section, key, default, &expected, |text| text.parse().ok().filter(|number| *number <= most))
    }

    fn one_of<T: Copy>(
        &mut self,
        section: &mut Section<'_>,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
    ) -> T {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        self.value(section, key, default, &format!("expected {}", any_of(&names)), |text| {
            choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice)
        })
    }

    fn yes_or_no(&mut self, section: &mut Section<'_>, key: &'static str, default: bool) -> bool {
        let taken = section.take(key);
        self.came_from(section.full(key), taken.as_ref().map(|(_, item)| item.line));
        match taken {
            None => default,
            Some((full, item)) => match item.value {
                Value::Bool(value) => *value,
                Value::Null | Value::Number(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => {
                    item.refuse(&full, "expected true or false", self.problems);
                    default
                }
            },
        }
    }

    fn machine(
        &mut self,
        mut machine: Section<'_>,
        mut policy: Policy,
        kubelet: Kubelet,
        overrides: &Overrides,
    ) -> Configuration {
        let own = overrides.own_cgroup.as_deref().unwrap_or(USUAL_OWN_CGROUP);
        let workloads = self.workloads(&mut machine, own);
        let never = self.patterns(&mut machine, "never", |_| None);
        let brake = self.brake(&mut machine, own);
        let slices = self.slices(&mut machine, &mut policy);
        policy.evict_for_unattributed =
            self.yes_or_no(&mut machine, "evictForUnattributed", policy.evict_for_unattributed);
        // Each one is remembered for a minute; more than this is no bound.
        let victims = self.whole(&mut machine, "victimsPerMinute", u64::from(policy.hard_victims_per_minute), 10_000);
        policy.hard_victims_per_minute = u32::try_from(victims).unwrap_or(u32::MAX);
        policy.soft_victims_per_minute = policy.hard_victims_per_minute;
        let stall = self.whole(&mut machine, "stallPercent", u64::from(policy.stall_percent), 100);
        policy.stall_percent = u8::try_from(stall).unwrap_or(100);
        let responsible = self.whole(&mut machine, "responsiblePercent", u64::from(policy.responsible_percent), 100);
        policy.responsible_percent = u8::try_from(responsible).unwrap_or(100);
        policy.reclaim_pause = self.duration(&mut machine, "reclaimPause", policy.reclaim_pause);

        let source = self.one_of(
            &mut machine,
            "source",
            SourceChoice::Auto,
            &[
                ("auto", SourceChoice::Auto),
                ("ebpf", SourceChoice::Ebpf),
                ("psi", SourceChoice::Psi),
                ("poll", SourceChoice::Poll),
            ],
        );
        let poll_period = self.value(
            &mut machine,
            "pollPeriod",
            Duration::from_secs(1),
            "expected a duration from 10ms to 1h",
            |text| {
                parse_duration(text)
                    .filter(|period| (Duration::from_millis(10)..=Duration::from_hours(1)).contains(period))
            },
        );
        let metrics_address = self.value(
            &mut machine,
            "metricsAddress",
            SocketAddr::from((Ipv4Addr::LOCALHOST, 9464)),
            "expected an address with a port, such as 127.0.0.1:9464 or [::1]:9464",
            |text| text.parse().ok(),
        );
        let state_directory = self.value(
            &mut machine,
            "stateDirectory",
            PathBuf::from("/run/plimsoll"),
            "expected an absolute path of a directory that does not survive a boot",
            |text| Some(PathBuf::from(text)).filter(|path| path.is_absolute()),
        );
        let log_format = self.one_of(
            &mut machine,
            "logFormat",
            LogFormat::Text,
            &[("text", LogFormat::Text), ("json", LogFormat::Json)],
        );
        machine.finish(self.problems);
        Configuration {
            policy,
            kubelet,
            warnings: Vec::new(),
            workloads,
            never,
            brake,
            slices,
            source: self.flag("source", overrides.source, source),
            poll_period: self.flag("pollPeriod", overrides.poll_period, poll_period),
            metrics_address: self.flag("metricsAddress", overrides.metrics_address, metrics_address),
            state_directory: self.flag("stateDirectory", overrides.state_directory.clone(), state_directory),
            log_format: self.flag("logFormat", overrides.log_format, log_format),
            origins: BTreeMap::new(),
        }
    }

    /// `swap: {free: 10%, grace: 30s}`.
    fn swap(&mut self, root: &mut Section<'_>) -> Option<SwapThreshold> {
        let taken = root.take("swap");
        self.came_from("swap".to_owned(), taken.as_ref().map(|(_, item)| item.line));
        let (key, item) = taken?;
        let mut section = item.section(&key, self.problems);
        let free = section.take("free");
        if free.is_none() {
            let missing = "missing; expected a quantity such as 1Gi or a percentage such as 10%";
            self.problems.add(Some(section.line), "swap.free", None, missing);
        }
        let free = free.and_then(|(key, item)| self.line(&key, &item, false));
        let grace = self.duration(&mut section, "grace", SWAP_GRACE);
        section.finish(self.problems);
        Some(SwapThreshold { free: free?, grace })
    }

    fn flag<T>(&mut self, key: &str, flag: Option<T>, value: T) -> T {
        if flag.is_some() {
            self.origins.insert(format!("machine.{key}"), Origin::Flag);
        }
        flag.unwrap_or(value)
    }

    fn workloads(&mut self, machine: &mut Section<'_>, own: &str) -> Vec<Workload> {
        let taken = machine.take("workloads");
        self.came_from(machine.full("workloads"), taken.as_ref().map(|(_, item)| item.line));
        let Some((key, item)) = taken else { return Vec::new() };
        let mut workloads = Vec::new();
        for (key, item) in item.list(&key, "expected a list such as [{match: system.slice/*}]", self.problems) {
            let mut section = item.section(&key, self.problems);
            let matching = section.take("match");
            if matching.is_none() {
                let full = section.full("match");
                self.problems.add(
                    Some(section.line),
                    &full,
                    None,
                    "missing; expected a pattern such as system.slice/*",
                );
            }
            let pattern = matching.and_then(|(key, item)| self.pattern(&key, &item, |pattern| refusal(pattern, own)));
            let priority = section.take("priority").map_or(Some(0), |(key, item)| {
                let expected = "expected a whole number; lower goes first";
                let priority = item.text(&key, expected, self.problems)?.parse().ok();
                if priority.is_none() {
                    item.refuse(&key, expected, self.problems);
                }
                priority
            });
            section.finish(self.problems);
            if let (Some(pattern), Some(priority)) = (pattern, priority) {
                workloads.push(Workload { pattern, priority });
            }
        }
        workloads
    }

    fn pattern(&mut self, key: &str, item: &Item<'_>, refusal: impl Fn(&Pattern) -> Option<String>) -> Option<Pattern> {
        let text = item.text(key, "expected a pattern such as system.slice/*", self.problems)?;
        let refused = match Pattern::parse(text) {
            Ok(pattern) => match refusal(&pattern) {
                None => return Some(pattern),
                Some(why) => why,
            },
            Err(error) => format!("character {}: {}", error.position, error.expected),
        };
        item.refuse(key, &refused, self.problems);
        None
    }

    fn patterns(
        &mut self,
        section: &mut Section<'_>,
        key: &'static str,
        refusal: impl Fn(&Pattern) -> Option<String>,
    ) -> Vec<Pattern> {
        let taken = section.take(key);
        self.came_from(section.full(key), taken.as_ref().map(|(_, item)| item.line));
        let Some((full, item)) = taken else { return Vec::new() };
        let items = item.list(&full, "expected a list of paths such as [system.slice/db.service]", self.problems);
        items.iter().filter_map(|(key, item)| self.pattern(key, item, &refusal)).collect()
    }

    fn brake(&mut self, machine: &mut Section<'_>, own: &str) -> Brake {
        let taken = machine.take("brake");
        let nothing = Value::Null;
        let (key, item) =
            taken.unwrap_or_else(|| (machine.full("brake"), Item { line: machine.line, value: &nothing }));
        let mut section = item.section(&key, self.problems);
        let modes = [("freeze", BrakeMode::Freeze), ("none", BrakeMode::None)];
        let mode = self.one_of(&mut section, "mode", BrakeMode::Freeze, &modes);
        let refused = |pattern: &Pattern| literal_only(pattern).or_else(|| refusal(pattern, own));
        let in_kernel = self.patterns(&mut section, "inKernel", refused);
        let deadline = self.value(
            &mut section,
            "deadline",
            LONGEST_BRAKE,
            "expected a duration above 0 and of at most 2s",
            |text| parse_duration(text).filter(|deadline| !deadline.is_zero() && *deadline <= LONGEST_BRAKE),
        );
        section.finish(self.problems);
        Brake { mode, in_kernel, deadline }
    }

    fn slices(&mut self, machine: &mut Section<'_>, policy: &mut Policy) -> Vec<Slice> {
        let taken = machine.take("slices");
        self.came_from(machine.full("slices"), taken.as_ref().map(|(_, item)| item.line));
        let Some((key, item)) = taken else { return Vec::new() };
        let mut slices: Vec<Slice> = Vec::new();
        let items = item.list(&key, "expected a list such as [{path: user.slice, evictionHard: ...}]", self.problems);
        if items.len() > SliceSet::MAX_SLICES {
            let expected = format!("expected at most {} slices with thresholds of their own", SliceSet::MAX_SLICES);
            self.problems.add(Some(item.line), &key, None, &expected);
        }
        for (key, item) in items {
            let mut section = item.section(&key, self.problems);
            let path = section.take("path");
            if path.is_none() {
                let full = section.full("path");
                self.problems.add(Some(section.line), &full, None, "missing; expected a path such as user.slice");
            }
            let path = path.and_then(|(key, item)| {
                self.pattern(&key, &item, |path| {
                    literal_only(path).or_else(|| {
                        let twice = slices.iter().any(|slice| slice.path == *path);
                        twice.then(|| "this slice stands in the list before".to_owned())
                    })
                })
            });
            let thresholds = self.thresholds(&mut section);
            if thresholds.as_ref().is_none_or(Vec::is_empty) && path.is_some() {
                let full = section.full("evictionHard");
                self.problems.add(Some(section.line), &full, None, "missing; a slice is listed for the lines it has");
            }
            section.finish(self.problems);
            if let Some(path) = path {
                slices.push(Slice { path });
                policy.slices.push(SliceThresholds { thresholds: thresholds.unwrap_or_default() });
            }
        }
        slices
    }

    /// The thresholds of a slice; nothing where `evictionHard` and `evictionSoft` are not there at all.
    fn thresholds(&mut self, section: &mut Section<'_>) -> Option<Vec<Threshold>> {
        let [hard, soft, grace, min_reclaim] =
            ["evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim"]
                .map(|key| section.take(key).map(|(full, item)| self.signals(&full, &item)));
        let is_given = hard.is_some() || soft.is_some();
        let line = |reader: &mut Self, entry: &Option<(String, Item<'_>)>, zero_will_do| {
            entry.as_ref().and_then(|(key, item)| reader.line(key, item, zero_will_do))
        };
        let hard = hard.flatten();
        let soft = soft.flatten();
        let grace = grace.flatten();
        let hard_threshold = line(self, &hard, false);
        let soft_threshold = line(self, &soft, false);
        let min_reclaim = line(self, &min_reclaim.flatten(), true);
        let grace_period = grace.as_ref().and_then(|(key, item)| {
            let expected = "expected a duration such as 1m30s";
            let period = parse_duration(item.text(key, expected, self.problems)?);
            if period.is_none() {
                item.refuse(key, expected, self.problems);
            }
            period
        });
        match (&soft, &grace) {
            (Some((key, item)), None) => {
                let missing = key.replace("evictionSoft", "evictionSoftGracePeriod");
                self.problems.add(Some(item.line), &missing, None, &format!("missing; {key} needs a grace period"));
            }
            (None, Some((key, item))) => {
                item.refuse(key, "there is no soft threshold that it belongs to", self.problems);
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        let thresholds = [hard_threshold.zip(Some(Duration::ZERO)), soft_threshold.zip(grace_period)]
            .into_iter()
            .flatten()
            .map(|(line, grace)| on_memory(line, grace, min_reclaim))
            .collect();
        is_given.then_some(thresholds)
    }

    /// What is said of `memory.available` in one of the threshold maps.
    fn signals<'a>(&mut self, key: &str, item: &Item<'a>) -> Option<(String, Item<'a>)> {
        let mut section = item.section(key, self.problems);
        let memory = section.take(Signal::MemoryAvailable.name());
        section.finish(self.problems);
        memory
    }

    fn line(&mut self, key: &str, item: &Item<'_>, zero_will_do: bool) -> Option<Line> {
        let expected = "expected a quantity such as 100Mi or a percentage such as 5%";
        let text = item.text(key, expected, self.problems)?;
        match line_of(text, zero_will_do) {
            Ok(Found::Plain(line)) => return line,
            // No kubelet ever took it.
            Ok(Found::Odd { expected, .. }) => item.refuse(key, expected, self.problems),
            Err(refused) => item.refuse(key, refused, self.problems),
        }
        None
    }
}

fn literal_only(pattern: &Pattern) -> Option<String> {
    (!pattern.is_literal()).then(|| "expected the path of one cgroup, without `*`".to_owned())
}

/// Why a workload pattern takes too much, if it does.
fn refusal(pattern: &Pattern, own: &str) -> Option<String> {
    if pattern.covers(INIT_CGROUP) {
        return Some(format!("it would include init ({INIT_CGROUP}); expected a pattern such as system.slice/*"));
    }
    // What holds the agent is left out when cgroups are looked for, and a wildcard may meet it; a pattern that means a
    // parent of the agent as a whole can only be a mistake.
    if pattern.holds(own) || pattern.is_literal() && pattern.matches(own) {
        return Some(format!("it would include this agent ({own}); expected a pattern such as system.slice/*"));
    }
    None
}
