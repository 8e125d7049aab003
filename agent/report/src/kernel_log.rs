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

use crate::record::{Braked, EnforcementRecord, HealthRecord, Killed, Record};
use crate::text::escaped;

/// How many bytes of a cgroup's name there is room for: the kernel refuses records of more than some 970 bytes.
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
}

/// Writes the lines.
#[derive(Debug)]
pub(crate) struct KernelLog {
    /// Absent where it could not be opened.
    file: Option<File>,
    waiting: Vec<Kill>,
    /// A cgroup, escaped, that grew by so much although it was frozen: it is killed next.
    unheld: Option<(String, Bytes)>,
}

impl KernelLog {
    pub(crate) fn new(file: Option<File>) -> Self {
        Self { file, waiting: Vec::new(), unheld: None }
    }

    pub(crate) fn record(&mut self, record: &Record<'_>) {
        match record {
            Record::Enforcement(record) => self.enforcement(record),
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
            | Record::Threshold(_)
            | Record::Disk(_)
            | Record::Machine(_) => {}
        }
    }

    fn enforcement(&mut self, record: &EnforcementRecord<'_>) {
        match *record {
            EnforcementRecord::Brake { path, what: Braked::StillGrows(grown), at: _ } => {
                self.unheld = Some((escaped(path), grown));
            }
            EnforcementRecord::Kill { plan, path, usage, at, what: Killed::Begun } => {
                let path = escaped(path);
                match self.unheld.take().filter(|(unheld, _)| *unheld == path) {
                    Some((_, grown)) => self.kill_unheld(&path, grown),
                    None => self.kill(plan, &path, usage, at),
                }
            }
            EnforcementRecord::Brake { .. }
            | EnforcementRecord::Kill { .. }
            | EnforcementRecord::StoppedInKernel { .. }
            | EnforcementRecord::Released { .. }
            | EnforcementRecord::Reclaimed { .. } => {}
        }
    }

    /// A kill was begun for the figures of the plan with this number.
    fn kill(&mut self, plan: u64, path: &str, usage: Option<Bytes>, at: MonotonicNs) {
        if self.waiting.len() >= WAITING {
            self.flush();
        }
        let usage = usage.map_or_else(|| "unknown".to_owned(), |usage| usage.to_string());
        self.waiting.push(Kill { plan, at, text: format!("killed {}: usage {usage}", end(path)) });
    }

    /// A kill was begun because a cgroup grew by so much although it was frozen.
    fn kill_unheld(&mut self, path: &str, grown: Bytes) {
        self.write(&format!("killed {}: it grew {grown} while it was frozen", end(path)));
    }

    /// The plan with this number is known. Lines that wait for earlier ones are written without figures.
    pub(crate) fn plan(&mut self, number: u64, figures: Option<&Figures>) {
        for Kill { plan, at: _, text } in std::mem::take(&mut self.waiting) {
            match figures.filter(|_| plan == number) {
                Some(figures) => self.write(&format!("{text}, {figures}")),
                None => self.write(&text),
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

/// The end of an escaped path, which names the workload.
fn end(path: &str) -> String {
    let cut = path.len().saturating_sub(NAME);
    match path.get(cut..) {
        Some(end) if cut > 0 => format!("...{end}"),
        _ => path.to_owned(),
    }
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

    const FIGURES: Figures = Figures::Memory {
        kubelet: Bytes::mib(90),
        mem_available: Some(Bytes::mib(80)),
        threshold: Some(Bytes::mib(100)),
    };

    #[test]
    fn a_line_has_the_figures_of_its_own_plan() {
        let (mut log, file) = log();
        log.kill(7, "work.slice/a", Some(Bytes::mib(300)), MonotonicNs(1));
        assert_eq!(written(&file), "");
        log.plan(7, Some(&FIGURES));
        log.kill(8, "work.slice/b", None, MonotonicNs(2));
        log.plan(9, Some(&FIGURES));
        log.kill_unheld("work.slice/c", Bytes::mib(3));
        assert_eq!(
            written(&file),
            "<4>plimsoll: killed work.slice/a: usage 300.0 MiB, available 90.0 MiB by the kubelet's formula \
             and 80.0 MiB by the kernel's estimate, threshold 100.0 MiB\n\
             <4>plimsoll: killed work.slice/b: usage unknown\n\
             <4>plimsoll: killed work.slice/c: it grew 3.0 MiB while it was frozen\n"
        );
    }

    #[test]
    fn a_line_waits_for_a_second_at_most() {
        let (mut log, file) = log();
        log.kill(7, "a", None, MonotonicNs(5));
        log.sweep(MonotonicNs(1_000_000_005));
        assert_eq!(written(&file), "");
        log.sweep(MonotonicNs(1_000_000_006));
        assert_eq!(written(&file), "<4>plimsoll: killed a: usage unknown\n");
        for _ in 0..=WAITING {
            log.kill(8, "b", None, MonotonicNs(5));
        }
        assert_eq!(written(&file).lines().count(), 1 + WAITING);
    }

    #[test]
    fn the_longest_name_leaves_room_for_the_figures() {
        let (mut log, file) = log();
        let most = Bytes(u64::MAX);
        log.kill(7, &escaped(&[b'\n'; crate::record::PATH]), Some(most), MonotonicNs(1));
        log.plan(7, Some(&Figures::Memory { kubelet: most, mem_available: Some(most), threshold: Some(most) }));
        let text = written(&file);
        assert!(text.len() < 900 && text.ends_with(", threshold 15.9 EiB\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
