//! `plimsoll config`: a configuration with the origin of each value, the same in another form, and its errors. Changes
//! nothing.

use std::fmt::Write as _;

use std::path::{Path, PathBuf};

use plimsoll_config::kubelet::Role;
use plimsoll_config::{
    ConfigError, Configuration, Findings, Form, Headroom, Node, Pod, Problem, Report, Row, StaticPod, check, convert,
    parse_static_pod, rows, shown, unreadable,
};
use plimsoll_inventory::Protected;
use plimsoll_node::cgroup::{Handle, Root};
use plimsoll_node::meminfo::{MemInfo, page_bytes};
use plimsoll_node::os::{CGROUP_ROOT, CgroupMode};
use plimsoll_node::zoneinfo::{Drift, Zones};
use plimsoll_pods::{ReadError, read_pods};
use plimsoll_units::{Bytes, Quantity};
use serde_json::{Value, json};

use crate::core;
use crate::log::{complain, print};
use crate::options::{Options, Output};

/// What to do with the configuration.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const CODES: &str = "Exit codes: 0 done; 2 wrong arguments or configuration, with one error a line.";

const CHECK_CODES: &str = "Exit codes: 0 no errors or warnings; 2 wrong arguments, or errors, one a line; 4 warnings \
only.";
const WARNED: u8 = 4;
const WRONG: u8 = 2;

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print every value, defaults included, with its origin.
    #[command(after_help = CODES)]
    Show(Show),
    /// Print the same configuration in another form. What that form cannot hold is named on standard error.
    #[command(after_help = CODES)]
    Convert(Convert),
    /// Print every error in a configuration, and warnings of common mistakes.
    #[command(after_help = CHECK_CODES)]
    Check(Check),
}

#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    options: Options,
    /// For people, or one JSON object.
    #[arg(long, default_value = "text")]
    output: Output,
}

#[derive(Debug, clap::Args)]
struct Convert {
    #[command(flatten)]
    options: Options,
    /// The form: Plimsoll's own file, a kubelet's file (KubeletConfiguration), or a kubelet's flags, one a line.
    #[arg(long)]
    to: To,
}

#[derive(Debug, clap::Args)]
struct Check {
    #[command(flatten)]
    options: Options,
    /// The memory of the node that the configuration is for. Then nothing of this machine is read.
    #[arg(long, value_name = "QUANTITY", value_parser = bytes)]
    capacity: Option<Bytes>,
    /// What of that memory is set aside for huge pages. Read on this machine.
    #[arg(long, value_name = "QUANTITY", value_parser = bytes)]
    huge_pages: Option<Bytes>,
    /// What that node uses outside of pods. Measured on this machine, if it is one with pods.
    #[arg(long, value_name = "QUANTITY", value_parser = bytes)]
    system_uses: Option<Bytes>,
    /// Pods to check, as `kubectl get pods -A -o json` or the kubelet's /pods prints them.
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// Files of static pods to check: a directory or one file. On this machine: what staticPodPath names.
    #[arg(long, value_name = "PATH")]
    manifests: Option<PathBuf>,
    /// For people, or one JSON object.
    #[arg(long, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum To {
    Plimsoll,
    Kubelet,
    Flags,
}

/// Runs the command and returns its exit code.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<u8> {
    match &arguments.command {
        Command::Show(show) => {
            let report = in_order(&show.options)?;
            match show.output {
                Output::Text => print(&text(&rows(&report.configuration))),
                Output::Json => print(&format!("{}\n", object(&report))),
            }
        }
        Command::Check(arguments) => return Ok(check_main(arguments)),
        Command::Convert(Convert { options, to }) => {
            let report = in_order(options)?;
            let form = match to {
                To::Plimsoll => Form::Plimsoll,
                To::Kubelet => Form::Kubelet,
                To::Flags => Form::Flags,
            };
            let converted = convert(&report.configuration, form);
            print(&converted.text);
            for lost in converted.lost {
                complain(&format!("left out: {}: {}", lost.key, lost.why));
            }
        }
    }
    Ok(0)
}

fn examine(options: &Options) -> Report {
    options.examine(core::own_cgroup(&Protected::read()))
}

/// A configuration without errors; its warnings are printed.
fn in_order(options: &Options) -> Result<Report, ConfigError> {
    let report = examine(options);
    for warning in &report.warnings {
        complain(&format!("warning: {warning}"));
    }
    if report.errors.is_empty() { Ok(report) } else { Err(ConfigError(report.errors)) }
}

fn bytes(text: &str) -> Result<Bytes, String> {
    let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
    quantity.bytes().ok_or_else(|| "a quantity of bytes is expected, such as 10Gi".into())
}

fn check_main(arguments: &Check) -> u8 {
    let mut report = examine(&arguments.options);
    let is_valid = report.errors.is_empty();
    // Where values are refused, these may be among them.
    report.warnings.extend(no_workloads(&arguments.options, &report.configuration).filter(|_| is_valid));
    let mut node = node(arguments, &report.configuration.kubelet.static_pod_path, &mut report.errors);
    // Where values are refused, the thresholds and reservations are not those that were meant.
    node.memory = node.memory.filter(|_| is_valid);
    let Findings { errors, warnings, headroom } = check(&report.configuration, &node);
    report.errors.extend(errors);
    report.warnings.extend(warnings);
    let code = match (report.errors.is_empty(), report.warnings.is_empty()) {
        (false, _) => WRONG,
        (true, false) => WARNED,
        (true, true) => 0,
    };
    match arguments.output {
        Output::Text => print(&check_text(&report, headroom.as_ref(), node.uncertainty)),
        Output::Json => {
            let object = json!({
                "code": code,
                "errors": report.errors,
                "warnings": report.warnings,
                "headroom": headroom.as_ref().map(headroom_object),
                "uncertainty": node.uncertainty.map(|bytes| bytes.0),
            });
            print(&format!("{object}\n"));
        }
    }
    code
}

/// A file of Plimsoll's own by which nothing is ever evicted. Without one, a kubelet's configuration is checked.
fn no_workloads(options: &Options, configuration: &Configuration) -> Option<Problem> {
    let machine = &configuration.machine;
    let file = options.config.as_ref().filter(|_| machine.workloads.is_empty() && !machine.knows_pods())?;
    Some(Problem {
        file: file.display().to_string(),
        line: None,
        key: "machine.workloads".to_owned(),
        value: None,
        expected:
            "missing, and neither machine.podFacts nor machine.cluster is set: nothing can be evicted; expected one \
                   of the three"
                .to_owned(),
    })
}

/// The node of the configuration, as far as it is known.
fn node(arguments: &Check, static_pod_path: &str, errors: &mut Vec<Problem>) -> Node {
    let Check { options, capacity, huge_pages, system_uses, pods, manifests, output: _ } = arguments;
    let pods = pods.as_deref().and_then(|path| reported(read(path).and_then(|text| self::pods(&text, path)), errors));
    let mut node = Node {
        has_kubelet: options.names_kubelet() || capacity.is_some(),
        memory: *capacity,
        huge_pages: huge_pages.unwrap_or_default(),
        system_uses: *system_uses,
        pods: pods.unwrap_or_default(),
        ..Node::default()
    };
    let mut manifests = manifests.clone();
    if capacity.is_none() {
        let reading = MemInfo::open().ok().and_then(|file| file.read().ok());
        let pods = pods_use();
        node.has_kubelet |= pods.is_some();
        node.memory = reading.map(|reading| reading.total);
        node.available = reading.map(|reading| reading.kubelet_available());
        let huge_pages = huge_pages.or_else(|| reading?.hugetlb);
        node.huge_pages = huge_pages.unwrap_or_default();
        node.system_uses = system_uses.or_else(|| {
            let reading = reading?;
            Some(reading.total.saturating_sub(reading.kubelet_available()).saturating_sub(pods?))
        });
        node.uncertainty = Zones::read().ok().map(|zones| {
            let Drift { kubelet, mem_available } = zones.drift();
            mem_available.max(kubelet).to_bytes(page_bytes())
        });
        node.cgroup_v2 = Some(CgroupMode::detect() == CgroupMode::Unified);
        node.swaps = std::fs::read_to_string("/proc/swaps").map(|text| swaps(&text)).unwrap_or_default();
        manifests = manifests.or_else(|| {
            let path = PathBuf::from(static_pod_path);
            (!static_pod_path.is_empty() && path.exists()).then_some(path)
        });
    }
    node.static_pods = manifests.map(|path| static_pods(&path, errors)).unwrap_or_default();
    node
}

/// What all pods use, by the kubelet's formula; absent where they have no cgroup.
fn pods_use() -> Option<Bytes> {
    let root = Root::open(Path::new(CGROUP_ROOT)).ok()?;
    let pods = [&b"kubepods.slice"[..], b"kubepods"];
    let pods = pods.into_iter().find_map(|path| Handle::open_to_read(&root, path).ok().flatten())?;
    Some(pods.usage().ok()?.saturating_sub(pods.page_cache().ok()?.inactive_file))
}

/// The names in `/proc/swaps`, below its head. The crate procfs has no reader of that file.
fn swaps(text: &str) -> Vec<String> {
    text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// As the kubelet reads them: one file, or those in a directory whose names do not begin with a dot.
fn static_pods(path: &Path, errors: &mut Vec<Problem>) -> Vec<StaticPod> {
    let mut files = match std::fs::read_dir(path) {
        Ok(entries) => entries
            .flatten()
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.') && entry.path().is_file())
            .map(|entry| entry.path())
            .collect(),
        Err(_) => vec![path.to_owned()],
    };
    files.sort();
    let parsed = files.iter().filter_map(|path| {
        reported(read(path).and_then(|text| parse_static_pod(&text, &path.display().to_string())), errors)
    });
    parsed.collect()
}

/// What the check reads of a list of pods.
fn pods(text: &str, path: &Path) -> Result<Vec<Pod>, Vec<Problem>> {
    let problem = |ReadError { line, key, why }| Problem {
        file: path.display().to_string(),
        line: Some(line as u64),
        key: if key == "." { String::new() } else { key },
        value: None,
        expected: why,
    };
    let of = |pod: &plimsoll_pods::Pod| Pod {
        name: pod.full_name(),
        daemon_set: pod.daemon_set.as_ref().map(|owner| format!("{}/{}", pod.namespace, owner.name)),
        priority: pod.facts.priority,
    };
    let pods = read_pods(text.as_bytes()).map_err(|error| vec![problem(error)])?;
    Ok(pods.iter().map(of).collect())
}

fn read(path: &Path) -> Result<String, Vec<Problem>> {
    std::fs::read_to_string(path).map_err(|error| {
        vec![Problem {
            file: path.display().to_string(),
            line: None,
            key: String::new(),
            value: None,
            expected: unreadable(&error),
        }]
    })
}

fn reported<T>(result: Result<T, Vec<Problem>>, errors: &mut Vec<Problem>) -> Option<T> {
    result.map_err(|problems| errors.extend(problems)).ok()
}

fn check_text(report: &Report, headroom: Option<&Headroom>, uncertainty: Option<Bytes>) -> String {
    let mut text = String::new();
    // Writing into a String does not fail.
    for error in &report.errors {
        let _ = writeln!(text, "error    {error}");
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "warning  {warning}");
    }
    if report.errors.is_empty() && report.warnings.is_empty() {
        let _ = writeln!(text, "in order");
    }
    let uncertain = uncertainty.map(|bytes| {
        (
            "off by at most",
            Some(bytes),
            "the available memory that is read, by what CPUs keep back of the kernel's counters",
        )
    });
    let figures = headroom.map(figures).into_iter().flatten().chain(uncertain);
    for (row, (name, bytes, note)) in figures.enumerate() {
        let head = if row == 0 { "\nmemory\n" } else { "" };
        let amount = bytes.map_or_else(|| "not known".into(), shown);
        let _ = writeln!(text, "{head}  {name:<17} {amount:>12}  {note}");
    }
    if headroom.is_some() {
        let _ = writeln!(text, "  rule: {}", Headroom::RULE);
    }
    text
}

/// Each figure with its name and its formula.
fn figures(headroom: &Headroom) -> [(&'static str, Option<Bytes>, &'static str); 11] {
    [
        ("capacity", Some(headroom.capacity), ""),
        ("huge pages", Some(headroom.huge_pages), "set aside, not available to anything else"),
        ("kubeReserved", Some(headroom.kube_reserved), ""),
        ("systemReserved", Some(headroom.system_reserved), ""),
        ("hard threshold", Some(headroom.hard), ""),
        ("soft threshold", Some(headroom.soft), ""),
        ("greater of both", Some(headroom.threshold()), ""),
        (
            "allocatable",
            Some(headroom.allocatable),
            "capacity less reservations, hard threshold and huge pages: what pods can request",
        ),
        ("less reservations", Some(headroom.less_reservations), "what older documents call allocatable"),
        (
            "system may use",
            Some(headroom.system_may_use()),
            "before pods within their requests reach the greater threshold",
        ),
        ("system uses", headroom.system_uses, "outside of pods"),
    ]
}

fn headroom_object(headroom: &Headroom) -> Value {
    json!({
        "capacity": headroom.capacity.0,
        "hugePages": headroom.huge_pages.0,
        "kubeReserved": headroom.kube_reserved.0,
        "systemReserved": headroom.system_reserved.0,
        "hard": headroom.hard.0,
        "soft": headroom.soft.0,
        "threshold": headroom.threshold().0,
        "allocatable": headroom.allocatable.0,
        "lessReservations": headroom.less_reservations.0,
        "systemMayUse": headroom.system_may_use().0,
        "systemUses": headroom.system_uses.map(|bytes| bytes.0),
        "missing": headroom.missing().map(|bytes| bytes.0),
        "rule": Headroom::RULE,
    })
}

fn text(rows: &[Row]) -> String {
    let cells: Vec<[String; 3]> = rows
        .iter()
        .map(|row| {
            let value = match &row.value {
                Value::Null => "-".to_owned(),
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            let role = match row.role {
                Role::Used => "",
                Role::Offline => " (replay and explain only)",
                Role::Shown => " (shown only)",
            };
            [row.key.clone(), value, format!("{}{role}", row.origin)]
        })
        .collect();
    let width = |column: usize, most: usize| {
        cells.iter().map(|row| row[column].chars().count()).filter(|width| *width <= most).max().unwrap_or(0)
    };
    let (keys, values) = (width(0, 60), width(1, 40));
    let mut text = String::new();
    for [key, value, origin] in &cells {
        // Writing into a String does not fail.
        let _ = writeln!(text, "{key:keys$}  {value:values$}  {origin}");
    }
    text
}

fn object(report: &Report) -> Value {
    let rows = rows(&report.configuration).into_iter().map(|row| {
        let (file, line) = row.origin.place();
        json!({
            "key": row.key,
            "value": row.value,
            "origin": row.origin.to_string(),
            "file": file,
            "line": line,
            "used": row.role == Role::Used,
            "role": match row.role {
                Role::Used => "used",
                Role::Offline => "replay and explain only",
                Role::Shown => "shown only",
            },
        })
    });
    json!({ "rows": rows.collect::<Vec<_>>(), "warnings": report.warnings })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_config::{Overrides, Text, Texts, examine_texts};

    fn report() -> Report {
        let text = "kubeletArguments:\n  eviction-hard: ['memory.available<500Mi']\n  system-reserved: ['1.5Gi']\n";
        let node_config = Some(Text { file: "node-config.yaml".to_owned(), text: text.to_owned() });
        examine_texts(&Texts { node_config, ..Texts::default() }, &Overrides::default())
    }

    #[test]
    fn values_are_printed_with_their_places() {
        let text = text(&rows(&report().configuration));
        for line in [
            "evictionHard.memory.available     500Mi               kubeletArguments.eviction-hard in node-config.yaml:2",
            "evictionSoft                      -                   default",
            "systemReserved.memory             1.5Gi               kubeletArguments.system-reserved in \
             node-config.yaml:3 (replay and explain only)",
            "evictionPolicy                          plimsoll            default",
            "swap                              -                   default (replay and explain only)",
            "failSwapOn                        true                default (shown only)",
            "machine.brake.mode                freeze              default",
        ] {
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert!(text.lines().any(|printed| words(printed) == words(line)), "{line}\n{text}");
        }
    }

    #[test]
    fn errors_warnings_and_figures_are_printed() {
        let (memory, huge_pages) = (Some(Bytes::mib(10 * 1024)), Bytes::mib(1024));
        let node = Node { has_kubelet: true, memory, huge_pages, ..Node::default() };
        let mut report = report();
        let findings = check(&report.configuration, &node);
        report.errors.extend(parse_static_pod("", "manifest.yaml").expect_err("it is none"));
        let text = check_text(&report, findings.headroom.as_ref(), Some(Bytes::mib(13)));
        for line in [
            "error    manifest.yaml: spec: missing; expected a pod, as the kubelet does of every file here",
            "warning  node-config.yaml:3: kubeletArguments.system-reserved: \"1.5Gi\": a resource is missing, and the kubelet \
             refuses it; taken for memory, as `plimsoll config convert` writes it",
            "  systemReserved          1536Mi  ",
            "  greater of both          500Mi  ",
            "  huge pages                 1Gi  set aside, not available to anything else",
            "  allocatable             7180Mi  capacity less reservations, hard threshold and huge pages: what pods can request",
            "  system may use          1536Mi  before pods within their requests reach the greater threshold",
            "  system uses          not known  outside of pods",
            "  off by at most            13Mi  the available memory that is read, by what CPUs keep back of the kernel's counters",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line}\n{text}");
        }
        assert!(text.contains(Headroom::RULE));
        report.errors.clear();
        report.warnings.clear();
        assert_eq!(check_text(&report, None, None), "in order\n");
        // Also where no kubelet is.
        let of_counters = check_text(&report, None, Some(Bytes::mib(13)));
        assert!(of_counters.starts_with("in order\n\nmemory\n  off by at most            13Mi  "), "{of_counters}");
    }

    #[test]
    fn an_amount_that_has_no_suffix_has_a_unit() {
        let text = "evictionHard: {memory.available: 10%}";
        let configuration = plimsoll_config::parse(text, "f").expect("it is valid");
        let node = Node { has_kubelet: true, memory: Some(Bytes::mib(10 * 1024)), ..Node::default() };
        let text = check_text(&report(), check(&configuration, &node).headroom.as_ref(), None);
        assert!(text.lines().any(|line| line.trim_end() == "  hard threshold    1073741840 B"), "{text}");
    }

    #[test]
    fn swap_areas_stand_below_the_head() {
        let text =
            "Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/sda2  partition\t8\t0\t-2\n/swapfile file 8 0 -3\n";
        assert_eq!(swaps(text), ["/dev/sda2", "/swapfile"]);
        assert_eq!(swaps("Filename Type\n"), Vec::<String>::new());
        assert_eq!(swaps(""), Vec::<String>::new());
    }

    #[test]
    fn programs_get_one_object() {
        let object = object(&report());
        let row = object["rows"].as_array().and_then(|rows| rows.first()).expect("a row");
        assert_eq!(
            *row,
            json!({
                "key": "evictionHard.memory.available",
                "value": "500Mi",
                "origin": "kubeletArguments.eviction-hard in node-config.yaml:2",
                "file": "node-config.yaml",
                "line": 2,
                "used": true,
                "role": "used",
            })
        );
        assert_eq!(object["warnings"][0]["key"], "kubeletArguments.system-reserved");
    }
}
