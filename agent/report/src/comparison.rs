//! A dry run beside what the kubelet and the OOM killer do: whether a pod that would have been evicted was ended by one of
//! them, and how much later, and which pods they ended that would not have been.

use core::time::Duration;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use plimsoll_policy::Uid;
use plimsoll_units::MonotonicNs;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::lock;
use crate::metrics::{Label, count, store};
use crate::witnessed::{Ended, EndedBy};

/// An end that comes later has another reason than what the pod would have been evicted for. A kubelet acts within its ten
/// seconds and the pod's grace.
const WINDOW: Duration = Duration::from_mins(5);
/// Pods that are kept: as many as are evicted within [`WINDOW`] at one in five seconds.
const MOST: usize = 60;
/// `ended_by` of a pod that neither ended in time.
const NOTHING: &str = "nothing";

/// What became of a pod that would have been evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Awaited,
    /// It lived on.
    Nothing,
    By(EndedBy, MonotonicNs),
}

#[derive(Clone, Debug)]
struct Row {
    uid: Uid,
    /// `namespace/name`, or, where that is not known, the path of its cgroup or its UID as digits.
    pod: String,
    /// When it would have been evicted; absent for one that would not have been.
    decided: Option<MonotonicNs>,
    end: End,
}

/// The last pods. A clone has the same.
#[derive(Clone, Default)]
pub(crate) struct Comparison {
    rows: Arc<Mutex<VecDeque<Row>>>,
    metrics: ComparisonMetrics,
}

#[derive(Clone)]
struct ComparisonMetrics {
    evictions: Family<Label, Counter>,
    missed: Family<Label, Counter>,
    lead: Histogram,
}

impl Default for ComparisonMetrics {
    fn default() -> Self {
        let lead = Histogram::new(exponential_buckets(0.125, 2.0, 12));
        Self { evictions: Family::default(), missed: Family::default(), lead }
    }
}

impl Comparison {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let comparison = Self::default();
        let ComparisonMetrics { evictions, missed, lead } = comparison.metrics.clone();
        for by in EndedBy::ALL {
            for family in [&evictions, &missed] {
                store(family, ("ended_by", by.name()), 0);
            }
        }
        store(&evictions, ("ended_by", NOTHING), 0);
        let help = "Pods that a dry run would have evicted, by what ended them within five minutes of that";
        registry.register("shadow_evictions", help, evictions);
        let help = "Pods that were ended beside a dry run that would not have evicted them";
        registry.register("shadow_missed", help, missed);
        let help = "How much later than the dry run would have evicted it a pod was ended";
        registry.register_with_unit("shadow_lead", help, Unit::Seconds, lead);
        comparison
    }

    /// A pod would have been evicted. Until it ends, the first time counts. `name`: as it is called, or its cgroup's path.
    pub(crate) fn decide(&self, uid: Uid, name: &str, at: MonotonicNs) {
        self.expire(at);
        let mut rows = lock(&self.rows);
        if rows.iter().all(|row| row.uid != uid || row.end != End::Awaited) {
            self.push(&mut rows, Row { uid, pod: name.to_owned(), decided: Some(at), end: End::Awaited });
        }
    }

    /// A pod was ended. `name`: as it is called, if that is known.
    ///
    /// One that would not have been evicted is only counted where that is missed: in a dry run, and for an OOM kill,
    /// which most often is for a container's own limit, while another pod would have been evicted.
    pub(crate) fn end(&self, ended: Ended, name: Option<&str>, is_dry_run: bool) {
        let Ended { uid, by, at } = ended;
        self.expire(at);
        let mut rows = lock(&self.rows);
        let is_short = rows.iter().any(|row| row.end == End::Awaited);
        if let Some(row) = rows.iter_mut().find(|row| row.uid == uid && row.end == End::Awaited) {
            row.end = End::By(by, at);
            let lead = at.since(row.decided.unwrap_or(at));
            count(&self.metrics.evictions, ("ended_by", by.name()));
            self.metrics.lead.observe(lead.as_secs_f64());
            let (pod, lead_seconds) = (&row.pod, lead.as_secs_f64());
            tracing::info!(
                pod,
                ended_by = by.name(),
                lead_seconds,
                "pod {pod} was ended by {by}, {lead_seconds:.1} s after the dry run would have evicted it"
            );
        } else if is_dry_run && (by == EndedBy::Kubelet || is_short) {
            let pod = name.map_or_else(|| format!("{:032x}", uid.0), str::to_owned);
            count(&self.metrics.missed, ("ended_by", by.name()));
            tracing::info!(
                pod,
                ended_by = by.name(),
                "pod {pod} was ended by {by}, and the dry run would not have evicted it"
            );
            self.push(&mut rows, Row { uid, pod, decided: None, end: End::By(by, at) });
        }
    }

    /// What was not ended until now is not waited for after [`WINDOW`].
    pub(crate) fn expire(&self, now: MonotonicNs) {
        for row in lock(&self.rows).iter_mut().filter(|row| row.end == End::Awaited) {
            if row.decided.is_some_and(|at| now.since(at) > WINDOW) {
                self.give_up(row);
            }
        }
    }

    fn push(&self, rows: &mut VecDeque<Row>, row: Row) {
        rows.push_back(row);
        if rows.len() > MOST
            && let Some(mut oldest) = rows.pop_front()
            && oldest.end == End::Awaited
        {
            self.give_up(&mut oldest);
        }
    }

    fn give_up(&self, row: &mut Row) {
        row.end = End::Nothing;
        count(&self.metrics.evictions, ("ended_by", NOTHING));
    }

    /// The last pods, the newest first, as a table for people.
    pub(crate) fn report(&self, now: MonotonicNs) -> String {
        self.expire(now);
        let rows = lock(&self.rows);
        let width = rows.iter().map(|row| row.pod.len()).max().unwrap_or_default().max("POD".len());
        let mut text = format!("{:<width$}  {:<23}  {:<10}  LATER\n", "POD", "WOULD HAVE BEEN EVICTED", "ENDED BY");
        for Row { pod, decided, end, .. } in rows.iter().rev() {
            let decided_text =
                decided.map_or_else(|| "no".to_owned(), |at| format!("{:.0} s ago", now.since(at).as_secs_f64()));
            let (by, at) = match *end {
                End::Awaited => ("-", None),
                End::Nothing => (NOTHING, None),
                End::By(by, at) => (by.name(), Some(at)),
            };
            let later = decided
                .zip(at)
                .map_or_else(|| "-".to_owned(), |(decided, at)| format!("{:.1} s", at.since(decided).as_secs_f64()));
            // Writing to a String does not fail.
            let _ = writeln!(text, "{pod:<width$}  {decided_text:<23}  {by:<10}  {later}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Uid = Uid(1);
    const OTHER: Uid = Uid(2);

    fn at(seconds: u64) -> MonotonicNs {
        MonotonicNs(0).after(Duration::from_secs(seconds))
    }

    fn ended(uid: Uid, by: EndedBy, seconds: u64) -> Ended {
        Ended { uid, by, at: at(seconds) }
    }

    /// The counters that are not 0, and the sum of the histogram, in order.
    fn counted(registry: &Registry) -> Vec<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).expect("a string");
        let lines = text.lines().filter(|line| line.contains("_total{") || line.contains("_sum "));
        let lines = lines.filter(|line| !line.ends_with(" 0") && !line.ends_with(" 0.0"));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn a_pod_that_would_have_been_evicted_counts_by_what_ended_it_and_from_the_first_time() {
        let mut registry = Registry::default();
        let comparison = Comparison::new(&mut registry);
        comparison.decide(ONE, "shop/web", at(10));
        comparison.decide(ONE, "shop/web", at(15));
        comparison.end(ended(ONE, EndedBy::Kubelet, 21), None, true);
        comparison.decide(OTHER, "shop/db", at(30));
        comparison.end(ended(OTHER, EndedBy::OomKiller, 31), None, true);
        // One that lives on.
        comparison.decide(ONE, "shop/web", at(40));
        comparison.expire(at(340));
        let before = counted(&registry);
        assert_eq!(
            before,
            [
                "shadow_evictions_total{ended_by=\"kubelet\"} 1",
                "shadow_evictions_total{ended_by=\"oom_killer\"} 1",
                "shadow_lead_seconds_sum 12.0"
            ]
        );
        comparison.expire(at(341));
        assert!(counted(&registry).contains(&"shadow_evictions_total{ended_by=\"nothing\"} 1".to_owned()));
        assert_eq!(
            comparison.report(at(350)),
            "POD       WOULD HAVE BEEN EVICTED  ENDED BY    LATER\n\
             shop/web  310 s ago                nothing     -\n\
             shop/db   320 s ago                oom_killer  1.0 s\n\
             shop/web  340 s ago                kubelet     11.0 s\n"
        );
    }

    #[test]
    fn what_the_dry_run_misses_is_counted_and_a_containers_own_limit_is_not() {
        let mut registry = Registry::default();
        let comparison = Comparison::new(&mut registry);
        comparison.end(ended(ONE, EndedBy::OomKiller, 1), Some("shop/web"), true);
        comparison.end(ended(ONE, EndedBy::Kubelet, 2), Some("shop/web"), false);
        assert_eq!(counted(&registry), [""; 0], "nothing was short, or the agent acts");
        comparison.end(ended(ONE, EndedBy::Kubelet, 3), Some("shop/web"), true);
        comparison.decide(OTHER, "shop/db", at(4));
        comparison.end(ended(ONE, EndedBy::OomKiller, 5), None, true);
        assert_eq!(
            counted(&registry),
            ["shadow_missed_total{ended_by=\"kubelet\"} 1", "shadow_missed_total{ended_by=\"oom_killer\"} 1"]
        );
        let report = comparison.report(at(6));
        let lines: Vec<_> = report.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[2..], ["shop/db 2 s ago - -", "shop/web no kubelet -"], "{report}");
        assert!(lines[1].ends_with("no oom_killer -"), "{report}");
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut registry = Registry::default();
        let comparison = Comparison::new(&mut registry);
        for number in 0..200 {
            comparison.decide(Uid(number), "a", at(1));
        }
        assert_eq!(comparison.report(at(1)).lines().count(), 1 + MOST);
        let dropped = format!("shadow_evictions_total{{ended_by=\"nothing\"}} {}", 200 - MOST);
        assert_eq!(counted(&registry), [dropped]);
    }
}
