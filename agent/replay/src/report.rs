//! A turn as text, and every number of it as JSON. Names come from outside: what is not printable ASCII is escaped.

use plimsoll_policy::message::{Cause, Message, SIGNAL_LABEL};
use plimsoll_policy::{Action, Config, Plan, Ranked, Removal, text};
use plimsoll_report::plan_fields;
use plimsoll_report::text::printable;
use plimsoll_units::MonotonicNs;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::disks::SCOPE;

/// What was decided on one sample.
pub struct Turn<'a> {
    /// When, on the clock of the recording.
    pub at: MonotonicNs,
    /// What that clock's zero is in nanoseconds since 1970, if that is known.
    pub epoch_ns: Option<i64>,
    /// What the agent itself reported at that time, where the recording has it.
    pub reported: Option<&'a str>,
    pub(crate) names: &'a [String],
    /// The messages of evicted workloads, by the workload's index.
    pub(crate) messages: &'a [(u32, Message)],
    pub(crate) config: &'a Config,
    /// The plan.
    pub plan: &'a Plan,
    pub(crate) slice: Option<&'a str>,
    /// It is about disks, with a state of its own.
    pub(crate) is_of_disks: bool,
    /// What would be removed.
    pub(crate) removal: Option<Removal>,
}

impl Turn<'_> {
    /// When, in RFC 3339; seconds on the recording's clock where the wall clock is not known.
    pub fn time(&self) -> String {
        let since = i128::from(self.at.0);
        let known = self.epoch_ns.and_then(|epoch| jiff::Timestamp::from_nanosecond(since + i128::from(epoch)).ok());
        known.map_or_else(
            || format!("{}.{:03} s", since / 1_000_000_000, since / 1_000_000 % 1000),
            |time| format!("{time:.3}"),
        )
    }

    /// The slice that the turn is about, or that it is about disks; absent for the machine.
    pub fn scope(&self) -> Option<&str> {
        if self.is_of_disks { Some(SCOPE) } else { self.slice }
    }

    /// What a turn about disks would have removed.
    pub const fn removal(&self) -> Option<Removal> {
        self.removal
    }

    /// Whether the plan has an action.
    pub fn acts(&self) -> bool {
        !self.plan.actions.is_empty()
    }

    /// Outcome and conditions, to be compared with those of the turn before.
    pub fn state(&self) -> String {
        format!("{:?} {:?}", self.plan.outcome, self.plan.conditions)
    }

    /// The decision as one line.
    pub fn line(&self) -> String {
        let slice = self.slice.map(printable);
        let line = text::line(self.config, self.plan, slice.as_deref(), |index| self.name(index));
        let condition = |condition| text::condition(self.config, self.plan, condition);
        let conditions: Vec<String> = self.plan.conditions.iter().map(condition).collect();
        let line = self.removal.map_or_else(|| line.clone(), |removal| format!("{line}; {}", removed(&removal)));
        if conditions.is_empty() { line } else { format!("{line}; conditions {}", conditions.join(", ")) }
    }

    /// All workloads in the order of eviction: name, verdict, and the keys that ranked it. Empty where nothing had to be
    /// evicted.
    pub fn candidates(&self) -> Vec<[String; 3]> {
        let row = |ranked: &Ranked| {
            let keys = text::keys(self.config, self.plan, ranked).to_string();
            [self.name(ranked.workload), ranked.verdict.to_string(), keys]
        };
        self.plan.ranked.iter().map(row).collect()
    }

    /// The message of the event of each evicted workload: name and message.
    pub fn messages(&self) -> Vec<[String; 2]> {
        let reported = |(pod, message): &(u32, Message)| [self.name(*pod), printable(message.to_string().trim_end())];
        self.messages.iter().map(reported).collect()
    }

    /// Every number.
    pub fn json(&self) -> Value {
        let mut fields = plan_fields(self.config, self.plan, self.slice, |index| self.name(index));
        fields.insert("evictions".to_owned(), self.evictions().into());
        fields.insert("is_of_disks".to_owned(), self.is_of_disks.into());
        let removal = self.removal.map(|Removal { signal, what, bytes }| {
            json!({"signal": signal.name(), "containers": what.containers, "images": what.images, "bytes": bytes})
        });
        fields.insert("removal".to_owned(), removal.into());
        fields.insert("at_ns".to_owned(), self.at.0.into());
        fields.insert("time".to_owned(), self.time().into());
        fields.insert("line".to_owned(), self.line().into());
        fields.insert("reported".to_owned(), self.reported.map(printable).into());
        Value::Object(fields)
    }

    /// The evicted workloads, each with its grace and its message.
    fn evictions(&self) -> Vec<Value> {
        let evictions = self.plan.actions.iter().filter_map(|action| match *action {
            Action::Evict { workload, grace_seconds, .. } => Some((workload, grace_seconds)),
            Action::EscalateToKill { workload, .. } => Some((workload, 0)),
            Action::Reclaim(_) => None,
        });
        let reported = |(workload, grace_seconds)| {
            let message = self.messages.iter().find(|(of, _)| *of == workload).map(|(_, message)| message);
            let annotations = message.into_iter().flat_map(Message::annotations);
            json!({
                "pod": self.name(workload),
                "grace_seconds": grace_seconds,
                "message": message.map(|message| printable(&message.to_string())),
                "annotations": annotations.map(|(key, text)| (key, printable(&text))).collect::<BTreeMap<_, _>>(),
                SIGNAL_LABEL: message.and_then(Message::cause).map(Cause::label),
            })
        };
        evictions.map(reported).collect()
    }

    fn name(&self, index: u32) -> String {
        self.names.get(index as usize).map_or_else(|| "?".to_owned(), |name| printable(name))
    }
}

/// What would be removed, in words.
fn removed(removal: &Removal) -> String {
    let Removal { signal, what, bytes } = removal;
    let containers = what.containers.then_some("dead containers");
    let images = what.images.then_some("unused images");
    let parts: Vec<&str> = [containers, images].into_iter().flatten().collect();
    let what = if parts.is_empty() { "nothing, as these disks are".to_owned() } else { parts.join(" and ") };
    let much = bytes.map_or_else(String::new, |bytes| format!(" of {bytes}"));
    format!("remove {what}{much} for {}", signal.name())
}
