//! One line in the kernel's own log for each kill, beside what the OOM killer writes there.
//!
//! A kill is reported before the plan that named it, because the core kills first. So its line waits for the plan's
//! figures, but no longer than a second.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use plimsoll_policy::kubelet::{Amount, Signal};
use plimsoll_units::{Bytes, MonotonicNs};

use crate::names::{Cgroup, Names};
use crate::record::{DiskCause, EnforcementRecord, HealthRecord, Killed, Record};

/// How many bytes of a cgroup's path and the name of its pod there is room for: the kernel refuses records of more than
/// some 970 bytes.
const NAME: usize = 490;
/// Kills that wait for their plans; where there are more, all that wait are written without figures.
const WAITING: usize = 64;
/// How long a line waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// What was available as a plan read it, and its threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Figures {
    /// Of memory.
    Memory { kubelet: Bytes, mem_available: Option<Bytes>, threshold: Option<Bytes> },
    /// Of what another signal measures.
    Other { signal: Signal, available: Amount, threshold: Amount },
}

impl Figures {
    /// Of a pod that is evicted for a disk; none where that is for a limit of its own.
    pub(crate) const fn of(cause: DiskCause) -> Option<Self> {
        match cause {
            DiskCause::Threshold { signal, available, threshold } => Some(Self::Other { signal, available, threshold }),
            DiskCause::Limit { .. } => None,
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { kubelet, mem_available, threshold } => {
                write!(f, "available {kubelet} by the kubelet's formula")?;
                if let Some(mem_available) = mem_available {
                    write!(f, " and {mem_available} by the kernel's estimate")?;
                }
                if let Some(threshold) = threshold {
                    write!(f, ", threshold {threshold}")?;
                }
                Ok(())
            }
            Self::Other { signal, available, threshold } if signal.is_bytes() => {
                write!(f, "{signal} {}, threshold {}", available.to_bytes(), threshold.to_bytes())
            }
            Self::Other { signal, available, threshold } => {
                write!(f, "{signal} {}, threshold {}", available.rounded_up(), threshold.rounded_up())
            }
        }
    }
}

/// A kill whose line waits.
#[derive(Debug)]
struct Kill {
    plan: u64,
    at: MonotonicNs,
    text: String,
    /// Its pod, to end the line.
    pod: String,
}

/// Writes the lines.
#[derive(Debug)]
pub(crate) struct KernelLog {
    /// Absent where it could not be opened.
    file: Option<File>,
    waiting: Vec<Kill>,
}

impl KernelLog {
    pub(crate) fn new(file: Option<File>) -> Self {
        Self { file, waiting: Vec::new() }
    }

    pub(crate) fn record(&mut self, record: &Record<'_>, names: &Names) {
        match record {
            Record::Enforcement(record) => self.enforcement(record, names),
            Record::Health(HealthRecord::Beat { at, .. }) => self.sweep(*at),
            Record::Health(
                HealthRecord::Inventory { .. }
                | HealthRecord::Lost { .. }
                | HealthRecord::Program { .. }
                | HealthRecord::Tampered(_)
                | HealthRecord::Failed { .. }
                | HealthRecord::Trouble { .. }
                | HealthRecord::KillSwitch { .. },
            )
            | Record::Startup(_)
            | Record::Observation(_)
            | Record::Plan(_)
            | Record::Readings(_)
            | Record::Threshold(_)
            | Record::Disk(_)
            | Record::Machine(_)
            | Record::Container(_) => {}
        }
    }

    fn enforcement(&mut self, record: &EnforcementRecord<'_>, names: &Names) {
        match *record {
            EnforcementRecord::Kill { plan, path, usage, at, what: Killed::Begun } => {
                self.kill(plan, &names.cgroup(path), usage, at);
            }
            EnforcementRecord::Brake { .. }
            | EnforcementRecord::Kill { .. }
            | EnforcementRecord::StoppedInKernel { .. }
            | EnforcementRecord::Released { .. }
            | EnforcementRecord::Reclaimed { .. }
            | EnforcementRecord::Hold { .. }
            | EnforcementRecord::HeldDown { .. } => {}
        }
    }

    /// A kill was begun for the figures of the plan with this number.
    fn kill(&mut self, plan: u64, cgroup: &Cgroup, usage: Option<Bytes>, at: MonotonicNs) {
        if self.waiting.len() >= WAITING {
            self.flush();
        }
        let usage = usage.map_or_else(|| "unknown".to_owned(), |usage| usage.to_string());
        let (path, pod) = named(cgroup);
        self.waiting.push(Kill { plan, at, text: format!("killed {path}: usage {usage}"), pod });
    }

    /// The plan with this number is known. Lines that wait for earlier ones are written without figures.
    pub(crate) fn plan(&mut self, number: u64, figures: Option<&Figures>) {
        for Kill { plan, at: _, text, pod } in std::mem::take(&mut self.waiting) {
            match figures.filter(|_| plan == number) {
                Some(figures) => self.write(&format!("{text}, {figures}{pod}")),
                None => self.write(&format!("{text}{pod}")),
            }
        }
    }

    /// Writes, at `now`, lines whose plans did not come without figures.
    fn sweep(&mut self, now: MonotonicNs) {
        if self.waiting.first().is_some_and(|first| now.since(first.at) > PATIENCE) {
            self.flush();
        }
    }

    /// Writes all that waits, without figures.
    pub(crate) fn flush(&mut self) {
        self.plan(0, None);
    }

    fn write(&mut self, text: &str) {
        if let Some(file) = &mut self.file {
            // Priority 4 is a warning. One write is one line; one that is refused is in the log anyway.
            let _ = file.write_all(format!("<4>plimsoll: {text}\n").as_bytes());
        }
    }
}

/// The end of a cgroup's path, which names the workload, and what is said of its pod at the end of a line.
fn named(cgroup: &Cgroup) -> (String, String) {
    let pod = cgroup.name().map_or_else(String::new, |name| format!(", {name}"));
    let path = &cgroup.path;
    let cut = path.len().saturating_sub(NAME.saturating_sub(pod.len()));
    let path = match path.get(cut..) {
        Some(end) if cut > 0 => format!("...{end}"),
        _ => path.clone(),
    };
    (path, pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(file: &File) -> String {
        let mut text = vec![0; 8192];
        let length = std::os::unix::fs::FileExt::read_at(file, &mut text, 0).expect("readable");
        text.truncate(length);
        String::from_utf8(text).expect("text")
    }

    fn log() -> (KernelLog, File) {
        let file = tempfile::tempfile().expect("a temporary file");
        (KernelLog::new(Some(file.try_clone().expect("a second descriptor"))), file)
    }

    fn cgroup(path: &str) -> Cgroup {
        Names::default().cgroup(path.as_bytes())
    }

    const FIGURES: Figures = Figures::Memory {
        kubelet: Bytes::mib(90),
        mem_available: Some(Bytes::mib(80)),
        threshold: Some(Bytes::mib(100)),
    };

    #[test]
    fn a_line_has_the_figures_of_its_own_plan() {
        let (mut log, file) = log();
        log.kill(7, &cgroup("work.slice/a"), Some(Bytes::mib(300)), MonotonicNs(1));
        assert_eq!(written(&file), "");
        log.plan(7, Some(&FIGURES));
        log.kill(8, &cgroup("work.slice/b"), None, MonotonicNs(2));
        log.plan(9, Some(&FIGURES));
        assert_eq!(
            written(&file),
            "<4>plimsoll: killed work.slice/a: usage 300.0 MiB, available 90.0 MiB by the kubelet's formula \
             and 80.0 MiB by the kernel's estimate, threshold 100.0 MiB\n\
             <4>plimsoll: killed work.slice/b: usage unknown\n"
        );
    }

    #[test]
    fn a_line_waits_for_a_second_at_most() {
        let (mut log, file) = log();
        log.kill(7, &cgroup("a"), None, MonotonicNs(5));
        log.sweep(MonotonicNs(1_000_000_005));
        assert_eq!(written(&file), "");
        log.sweep(MonotonicNs(1_000_000_006));
        assert_eq!(written(&file), "<4>plimsoll: killed a: usage unknown\n");
        for _ in 0..=WAITING {
            log.kill(8, &cgroup("b"), None, MonotonicNs(5));
        }
        assert_eq!(written(&file).lines().count(), 1 + WAITING);
    }

    #[test]
    fn the_longest_names_leave_room_for_the_figures() {
        let (mut log, file) = log();
        let most = Bytes(u64::MAX);
        let path = cgroup(&"\n".repeat(crate::record::PATH - 1)).path;
        let [pod, container] = ["p".repeat(317), "c".repeat(63)].map(Some);
        let figures = Figures::Memory { kubelet: most, mem_available: Some(most), threshold: Some(most) };
        for cgroup in [Cgroup { path: path.clone(), ..Cgroup::default() }, Cgroup { path, pod, container }] {
            log.kill(7, &cgroup, Some(most), MonotonicNs(1));
            log.plan(7, Some(&figures));
        }
        let text = written(&file);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| line.len() < 900) && lines.len() == 2, "{text}");
        assert!(lines[0].ends_with(", threshold 15.9 EiB") && lines[1].ends_with('c'), "{text}");
        assert!(lines[1].contains("...") && lines[1].contains(", threshold 15.9 EiB, pod pp"), "{text}");
    }
}
