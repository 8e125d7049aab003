//! The answer as text.

use std::fmt::{Result, Write as _};

use plimsoll_policy::{Plan, Ranked, Verdict, text};
use plimsoll_replay::printable;
use plimsoll_units::{Bytes, counted};

use super::memory::{Advice, Cache, Capacity, Kept};
use super::oom::Victim;
use super::thresholds::{Distance, Other, Unit};
use super::{Answer, caveat, pods};

/// How many of each kind are printed.
const MOST: usize = 10;

/// A distance in words.
fn far(amount: i128, unit: Unit) -> String {
    let number = u64::try_from(amount.unsigned_abs()).unwrap_or(u64::MAX);
    let text = figure(number, unit);
    if amount < 0 { format!("crossed by {text}") } else { format!("{text} away") }
}

fn figure(number: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => Bytes(number).to_string(),
        Unit::Inodes => counted(number, "inode", "inodes").to_string(),
        Unit::Processes => counted(number, "process", "processes").to_string(),
    }
}

const fn kind(hard: bool) -> &'static str {
    if hard { "hard" } else { "soft" }
}

impl Answer<'_> {
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, f: &mut String) -> Result {
        writeln!(f, "now: {}", text::line(self.policy, &self.plan, None, |workload| self.name(workload)))?;
        self.caveat(f, &self.plan)?;
        self.thresholds(f)?;
        self.capacity(f)?;
        writeln!(f, "\neviction order:")?;
        self.ranked(f, &self.plan, "    no workloads (machine.workloads)")?;
        for (path, plan) in &self.slices {
            let path = printable(path);
            // The heading names the slice.
            let line = text::line(self.policy, plan, None, |workload| self.name(workload));
            writeln!(f, "\neviction order in {path}, now: {line}")?;
            self.caveat(f, plan)?;
            self.ranked(f, plan, "    no workloads in it (machine.workloads)")?;
        }
        if let Some(pods) = &self.pods {
            write_pods(f, pods)?;
        }
        writeln!(f, "\nprocesses that the OOM killer would select:")?;
        for victim in &self.oom {
            write_victim(f, victim)?;
        }
        self.cache(f)?;
        let above = self.reserved.iter().filter(|it| it.working_set_bytes > it.reserved_bytes);
        let mut above_reservation = String::new();
        for Kept { cgroup, by, reserved_bytes, working_set_bytes } in above {
            writeln!(
                above_reservation,
                "    {}: uses {working_set_bytes} of {reserved_bytes} ({by})",
                printable(cgroup)
            )?;
        }
        if !above_reservation.is_empty() {
            write!(f, "\nslices above their reservation:\n{above_reservation}")?;
        }
        Ok(())
    }

    fn caveat(&self, f: &mut String, plan: &Plan) -> Result {
        caveat(self.policy, plan).map_or(Ok(()), |caveat| writeln!(f, "    {caveat}"))
    }

    fn thresholds(&self, f: &mut String) -> Result {
        if self.distances.is_empty() && self.others.is_empty() {
            writeln!(f, "no threshold is configured")?;
        }
        for Distance { slice, hard, threshold_bytes, kubelet_bytes, mem_available_bytes } in &self.distances {
            let of = printable(slice.as_deref().unwrap_or("the machine"));
            let kubelet = far(*kubelet_bytes, Unit::Bytes);
            write!(f, "{} threshold of {of}, {threshold_bytes}: {kubelet} by the kubelet's reading", kind(*hard))?;
            match mem_available_bytes {
                Some(mem_available) => writeln!(f, ", {} by the kernel's", far(*mem_available, Unit::Bytes))?,
                None => writeln!(f)?,
            }
        }
        for Other { signal, hard, unit, written, threshold, distance, source } in &self.others {
            let known = threshold.map(|at| figure(at, *unit)).or_else(|| written.as_deref().map(printable));
            let at = known.map_or_else(String::new, |known| format!(", {known}"));
            write!(f, "{} threshold of {}{at}: ", kind(*hard), printable(signal))?;
            match distance {
                Some(distance) => writeln!(f, "{} ({})", far(*distance, *unit), printable(source))?,
                None => writeln!(f, "not read, because {}", printable(source))?,
            }
        }
        Ok(())
    }

    fn capacity(&self, f: &mut String) -> Result {
        let Capacity { whole, allocatable, requests, promised } = self.capacity;
        write!(f, "capacity {whole}, allocatable {allocatable} (less reservations and the hard threshold), ")?;
        match (requests, self.pods.as_ref().map(|pods| pods.count)) {
            (Some(requests), count) => {
                let pods = counted(count.unwrap_or(0), "pod requests", "pods together request");
                write!(f, "{pods} {requests}, ")?;
            }
            (None, Some(_)) => write!(f, "no pod of the list runs here, ")?,
            (None, None) => write!(f, "the requests of pods are not known without --pods, ")?,
        }
        writeln!(f, "promised to workloads by memory.low and memory.min {promised}")
    }

    fn ranked(&self, f: &mut String, plan: &Plan, none: &str) -> Result {
        if plan.ranked.is_empty() {
            writeln!(f, "{none}")?;
        }
        for ranked in plan.ranked.iter().take(MOST) {
            let verdict = verdict(ranked, plan.actions.is_empty());
            writeln!(f, "    {}: {verdict}; {}", self.name(ranked.workload), text::keys(self.policy, plan, ranked))?;
        }
        and_more(f, plan.ranked.len())
    }

    fn cache(&self, f: &mut String) -> Result {
        if self.cache.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nactive page cache, which the kubelet's figure counts as used:")?;
        for Cache { cgroup, pod, active_file_bytes, working_set_bytes, peak_bytes, max_bytes: _, advice } in
            self.cache.iter().take(MOST)
        {
            write!(f, "    {}", printable(cgroup))?;
            if let Some(pod) = pod {
                write!(f, " (pod {})", printable(pod))?;
            }
            let advice = match advice {
                Advice::RequestIsLimit => "its request is its limit, as it should be",
                Advice::RaiseRequest => "set its request to its limit",
                Advice::SetBoth => "it has neither request nor limit: set both to the same amount",
                Advice::RequestUnknown => {
                    "request and limit are not known without --pods; set its request to its limit if they differ"
                }
                Advice::PromiseIsLimit => "its memory.low is its memory.max, as it should be",
                Advice::RaisePromise => "set its memory.low to its memory.max",
                Advice::LookInside => "everything in it together",
            };
            let measured = peak_bytes.unwrap_or(*working_set_bytes);
            writeln!(f, ": {active_file_bytes} of {working_set_bytes}; {advice}; peak {measured}")?;
        }
        and_more(f, self.cache.len())
    }
}

fn verdict(ranked: &Ranked, is_quiet: bool) -> String {
    match ranked.verdict {
        Verdict::NotNeeded if is_quiet => "may be evicted".to_owned(),
        verdict => verdict.to_string(),
    }
}

fn and_more(f: &mut String, count: usize) -> Result {
    if count > MOST { writeln!(f, "    and {} more; --output json has them all", count - MOST) } else { Ok(()) }
}

/// Pods that are never evicted are printed whatever their rank: the reason is what users ask for.
fn write_pods(f: &mut String, pods: &pods::Answer) -> Result {
    writeln!(f, "\npods in the order of the eviction policy, and those that are never evicted:")?;
    if pods.pods.is_empty() {
        writeln!(f, "    no pod of the list runs here")?;
    }
    let mut open = 0;
    for pod in &pods.pods {
        if pod.protected.is_none() {
            open += 1;
            if open > MOST {
                continue;
            }
        }
        let uses = pod.usage_bytes.map_or_else(|| "usage unknown".to_owned(), |it| format!("uses {it}"));
        write!(f, "    {} ({}, priority {}): {}; {uses}", printable(&pod.pod), pod.qos, pod.priority, pod.verdict)?;
        if let Some(swapped) = pod.swapped_bytes.filter(|it| *it > Bytes::ZERO) {
            write!(f, " and {swapped} in swap")?;
        }
        write!(f, ", requests {}", pod.request_bytes)?;
        if let Some(started) = &pod.started {
            write!(f, ", started {started}")?;
        }
        match pod.oom_score_adj {
            None => {}
            Some((least, most)) if least == most => write!(f, ", expected oom_score_adj {least}")?,
            Some((least, most)) => write!(f, ", expected oom_score_adj {least} to {most}")?,
        }
        if pod.is_exposed {
            let why = "without machine.podFacts or machine.cluster `run` knows no pods: list it in machine.never";
            write!(f, "; but machine.workloads selects it, and {why}")?;
        }
        writeln!(f)?;
    }
    and_more(f, open)?;
    for cgroup in pods.unlisted.iter().take(MOST) {
        writeln!(f, "    {}: a pod that is not in the list", printable(cgroup))?;
    }
    and_more(f, pods.unlisted.len())
}

fn write_victim(f: &mut String, victim: &Victim) -> Result {
    let Victim { pid, name, cgroup, pod, score, is_computed, resident_bytes, swapped_bytes } = victim;
    let how = if *is_computed { "score, computed," } else { "score" };
    let place = cgroup.as_deref().map_or_else(String::new, |path| format!(" in /{}", printable(path)));
    let pod = pod.as_deref().map_or_else(String::new, |pod| format!(" of pod {}", printable(pod)));
    writeln!(
        f,
        "    {name} (process {pid}){place}{pod}: {how} {score}, {resident_bytes} resident, {swapped_bytes} in swap"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_read_as_words() {
        assert_eq!(far(5 << 20, Unit::Bytes), "5.0 MiB away");
        assert_eq!(far(-(1 << 20), Unit::Bytes), "crossed by 1.0 MiB");
        assert_eq!(far(-7, Unit::Inodes), "crossed by 7 inodes");
        assert_eq!(far(1, Unit::Inodes), "1 inode away");
        assert_eq!(far(1, Unit::Processes), "1 process away");
        assert_eq!(far(2, Unit::Processes), "2 processes away");
    }
}
