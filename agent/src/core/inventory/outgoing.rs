//! What the inventory thread sends: updates to the watching thread, records to the reporter.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_inventory::{ConditionState, DiskReading, Receipt, RemovalResult, Sink, StopResult, Update};
use plimsoll_node::cgroup::Handle;
use plimsoll_policy::Uid;
use plimsoll_state::queue::Producer;
use plimsoll_state::{Protected, Protections};
use plimsoll_units::CgroupId;

use super::handle::{InventoryHandle, Request};
use super::wake;
use crate::core::thresholds::Machine;
use crate::record::{HealthRecord, Record};

/// News for the watching thread.
#[derive(Debug)]
pub(in crate::core) enum News {
    /// Of a workload or slice.
    Table(Update),
    /// The figures that thresholds are computed with have changed.
    Machine(Machine),
    /// The tree was walked for a decision: the updates before this are what was found.
    Walked,
    /// The source's programs in the kernel do not run any more.
    SourceLost,
    /// What an earlier process had frozen is thawed now, or gone.
    Thawed(CgroupId),
    /// What is left on a disk, and what reading that cost, as another process says.
    Disk(DiskReading, Duration),
    /// What came of an order to remove, as another process says.
    Removed(RemovalResult),
    /// What was received of evictions and conditions, as another process says.
    Receipt(Receipt),
    /// What a condition was before this process began, as another process says.
    Condition(ConditionState),
    /// What came of an order to stop a pod, as another process says.
    Stop(StopResult),
    /// The API server has the status of this pod, or has it no more, as another process says.
    Recorded(Uid),
    /// A container of this workload is throttled for so long, although its memory.high was raised.
    Throttled(CgroupId, Duration),
    /// The kill switch is thrown, or taken back.
    KillSwitch(bool),
}

/// Its ways out.
pub(in crate::core) struct Outgoing {
    /// What was sent before there is a watching thread.
    pub(super) first: Option<Vec<News>>,
    news: rtrb::Producer<News>,
    /// Shows whether this thread is asked to end.
    handle: InventoryHandle,
    /// Handles that the watching thread does not need any more.
    returned: rtrb::Consumer<Arc<Handle>>,
    /// Made readable when there are news.
    wake: OwnedFd,
    queue: Producer,
    /// Where it is written which pods are protected; absent where pods are not known.
    protections: Option<Protections>,
    is_unpublished: bool,
    /// The last text of each trouble that is there, and whether another process has logged it.
    troubles: HashMap<&'static str, (String, bool)>,
}

impl Outgoing {
    pub(in crate::core) fn new(
        news: rtrb::Producer<News>,
        handle: InventoryHandle,
        returned: rtrb::Consumer<Arc<Handle>>,
        wake: OwnedFd,
        queue: Producer,
        protections: Option<Protections>,
    ) -> Self {
        let (first, troubles) = (Some(Vec::new()), HashMap::new());
        Self { first, news, handle, returned, wake, queue, protections, is_unpublished: false, troubles }
    }

    /// Wakes the watching thread and the reporter, each if there is something for it.
    pub(super) fn publish(&mut self) {
        if std::mem::take(&mut self.is_unpublished) {
            wake(&self.wake);
        }
        self.queue.wake();
    }

    /// Sends news. Where the watching thread has not taken the earlier ones, this thread waits.
    pub(super) fn send(&mut self, mut news: News) {
        self.is_unpublished = true;
        if let Some(first) = &mut self.first {
            return first.push(news);
        }
        self.close_returned();
        while let Err(rtrb::PushError::Full(back)) = self.news.push(news) {
            // At the end it takes none any more.
            if self.news.is_abandoned() || self.handle.is_asked(Request::End) {
                return;
            }
            news = back;
            wake(&self.wake);
            self.close_returned();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes the handles that the watching thread gave back.
    pub(super) fn close_returned(&mut self) {
        while self.returned.pop().is_ok() {}
    }

    /// What does not work in another process, which has logged it; `None`: it works.
    pub(super) fn trouble_elsewhere(&mut self, what: &'static str, text: Option<&'static str>) {
        self.note(what, text.map(str::to_owned), true);
    }

    /// Another reporter was sent none of them.
    pub(super) fn repeat_troubles(&mut self) {
        for (what, (text, is_logged)) in &self.troubles {
            let record = HealthRecord::Trouble { what, text: Some(clip(text)), is_logged: *is_logged };
            Record::from(record).send(&mut self.queue);
        }
    }

    /// Reports it once until another text comes for the same, or it worked again.
    fn note(&mut self, what: &'static str, text: Option<String>, is_logged: bool) {
        let is_new = match &text {
            Some(text) => self.troubles.get(what).is_none_or(|(known, _)| known != text),
            None => self.troubles.contains_key(what),
        };
        if is_new {
            self.report(HealthRecord::Trouble { what, text: text.as_deref().map(clip), is_logged });
        }
        match text {
            Some(text) => _ = self.troubles.insert(what, (text, is_logged)),
            None => _ = self.troubles.remove(what),
        }
    }

    pub(super) fn report<'a>(&mut self, record: impl Into<Record<'a>>) {
        record.into().send(&mut self.queue);
    }
}

impl Sink for Outgoing {
    fn update(&mut self, update: Update) {
        self.send(News::Table(update));
    }

    fn protect(&mut self, protected: &Protected, gone: &[Uid]) -> bool {
        let Some(protections) = &self.protections else { return true };
        let written = protections.write(protected, gone);
        let why = |error| format!("the next core will not know that pods are protected: {error}");
        let is_written = written.is_ok();
        self.trouble("protections", written.err().map(why));
        is_written
    }

    fn trouble(&mut self, tried: &'static str, text: Option<String>) {
        self.note(tried, text, false);
    }
}

/// The beginning of a text that fits a record.
pub(super) fn clip(text: &str) -> &str {
    const MOST: usize = 400;
    &text[..text.floor_char_boundary(MOST)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_clipped_between_characters() {
        let text = "é".repeat(300);
        assert!(clip(&text).len() <= 400 && clip(&text).chars().all(|c| c == 'é'));
        assert_eq!(clip("short"), "short");
    }
}
