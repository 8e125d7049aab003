//! What a core was sent, and what it has to be sent next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::Duration;

use plimsoll_inventory::{
    CORE_MESSAGE, CoreMessage, DiskReading, DiskRole, MESSAGE, Message, PodFacts, PodMessage, RemovalResult, Source,
    StopResult, StorageLimit, StorageMessage,
};
use plimsoll_policy::Uid;
use plimsoll_units::counted;
use tokio::net::UnixDatagram;

use super::journal::Known;

/// The way to a core: a socket of whole messages, which is sent to as one of datagrams is.
pub(super) struct Core(UnixDatagram);

impl Core {
    pub(super) fn new(socket: OwnedFd) -> std::io::Result<Self> {
        UnixDatagram::from_std(socket.into()).map(Self)
    }

    /// Sends it, once there is room.
    ///
    /// # Errors
    /// Where the core has ended.
    pub(super) async fn send(&self, message: Message) -> std::io::Result<()> {
        let mut buffer = [0; MESSAGE];
        self.0.send(message.encode(&mut buffer)).await.map(drop)
    }

    /// Waits for its next message. What is none is passed over.
    ///
    /// # Errors
    /// Where the core has ended.
    pub(super) async fn message(&self) -> std::io::Result<CoreMessage> {
        // What is longer than a message is seen to be.
        let mut buffer = [0; CORE_MESSAGE + 1];
        loop {
            match self.0.recv(&mut buffer).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => {
                    if let Some(message) = CoreMessage::decode(&buffer[..length]) {
                        return Ok(message);
                    }
                }
            }
        }
    }
}

/// What is known, and what the newest core was sent of it.
#[derive(Default)]
pub(super) struct Feed {
    known: Option<BTreeMap<Uid, PodFacts>>,
    /// The same of static pods, by their manifests: where the list does not have one, this counts.
    of_manifests: Known,
    sent: BTreeMap<Uid, PodFacts>,
    /// Limits of local storage, as they are known and as they were sent.
    limits: BTreeMap<Uid, Vec<StorageLimit>>,
    sent_limits: BTreeMap<Uid, Vec<StorageLimit>>,
    /// Pods that have ended, if there are no others than these and those that are known.
    ended: Option<BTreeSet<Uid>>,
    /// Which of these the core was sent since the last [`PodMessage::Complete`], and whether that there are no others.
    round: (BTreeSet<Uid>, bool),
    /// The core knows that all is sent once more: it may know pods of an earlier process that have gone since.
    has_begun: bool,
    /// No longer than what is known and what was sent together, limits included, with the pods that have ended and three more.
    next: VecDeque<PodMessage>,
    /// The last reading of each disk, what that cost, and whether it has to be sent.
    disks: [Option<(DiskReading, Duration, bool)>; DiskRole::ALL.len()],
    /// What came of its last order, if it has to be sent.
    removed: Option<RemovalResult>,
    /// What came of its orders to stop pods, and has to be sent: no more than it has given.
    stops: VecDeque<StopResult>,
    /// Pods that the API server has as failed, or has no more, which has to be sent: of each one that was evicted at most.
    recorded: VecDeque<Uid>,
    /// What writable layers take, as the runtime said last, and how much of that was sent.
    layers: (Vec<StorageMessage>, usize),
    /// Whether the node's object has the annotation that switches the agent off, and whether that has to be sent; nothing until
    /// it was read.
    switch: Option<(bool, bool)>,
    /// Whether each source works, and whether that has to be sent; nothing of one that is not read.
    sources: [Option<(bool, bool)>; Source::ALL.len()],
}

impl Feed {
    /// A new core was sent nothing yet.
    pub(super) fn begin(&mut self) {
        self.sent.clear();
        self.sent_limits.clear();
        self.round = Default::default();
        self.has_begun = false;
        self.removed = None;
        self.stops.clear();
        // It holds no pod down that was evicted before it.
        self.recorded.clear();
        self.layers.1 = 0;
        self.disks.iter_mut().flatten().for_each(|(_, _, is_next)| *is_next = true);
        self.sources.iter_mut().flatten().for_each(|(_, is_next)| *is_next = true);
        self.switch.iter_mut().for_each(|(_, is_next)| *is_next = true);
        self.plan();
    }

    /// This is what is left on disks now, and what reading each cost; of others, what was left before.
    pub(super) fn measure(&mut self, readings: Vec<(DiskReading, Duration)>) {
        for (reading, cost) in readings {
            self.disks[reading.role as usize] = Some((reading, cost, true));
        }
    }

    /// The node's object has the annotation now, or has it not.
    pub(super) fn switch(&mut self, is_there: bool) {
        if self.switch.is_none_or(|(was_there, _)| was_there != is_there) {
            self.switch = Some((is_there, true));
        }
    }

    /// Whether the source works now.
    pub(super) fn note(&mut self, source: Source, works: bool) {
        let known = &mut self.sources[source as usize];
        if known.is_none_or(|(worked, _)| worked != works) {
            *known = Some((works, true));
        }
    }

    /// The sources that do not work.
    pub(super) fn failing(&self) -> impl Iterator<Item = Source> {
        let known = Source::ALL.into_iter().zip(self.sources);
        known.filter(|(_, known)| known.is_some_and(|(works, _)| !works)).map(|(source, _)| source)
    }

    /// This is what writable layers take, of all pods.
    pub(super) fn measure_layers(&mut self, round: Vec<StorageMessage>) {
        self.layers = (round, 0);
    }

    /// This came of an order of the newest core.
    pub(super) const fn report(&mut self, removed: RemovalResult) {
        self.removed = Some(removed);
    }

    /// This came of an order to stop a pod of the newest core.
    pub(super) fn report_stop(&mut self, stopped: StopResult) {
        self.stops.push_back(stopped);
    }

    /// The API server has this pod as failed, or as one that is being deleted, or has it no more.
    pub(super) fn report_recorded(&mut self, uid: Uid) {
        if !self.recorded.contains(&uid) {
            self.recorded.push_back(uid);
        }
    }

    /// This is all that is known now, and these have ended; absent where there may be others.
    pub(super) fn learn(&mut self, known: Known, ended: Option<BTreeSet<Uid>>) {
        self.known = Some(known.pods);
        self.ended = ended;
        self.limits = known.limits;
        self.plan();
    }

    /// This is what manifests say of static pods now. Nothing is sent of them before there is a list: the core takes it that it
    /// has been sent all then.
    pub(super) fn learn_of_manifests(&mut self, known: Known) {
        self.of_manifests = known;
        self.plan();
    }

    /// Whether the list has this pod.
    pub(super) fn lists(&self, uid: &Uid) -> bool {
        self.known.as_ref().is_some_and(|known| known.contains_key(uid))
    }

    /// This was known before: it holds until something newer was read.
    pub(super) fn restore(&mut self, known: Known) {
        if self.known.is_none() && !known.pods.is_empty() {
            tracing::info!("{} known as they were kept", counted(known.pods.len(), "pod is", "pods are"));
            self.learn(known, None);
        }
    }

    /// Of a round that is under way what was sent is not sent again: it comes to its end also where changes come faster than
    /// rounds. What has changed goes first. Where pods that were sent as ended are not any more, another round follows.
    fn plan(&mut self) {
        let Self { known, of_manifests, sent, limits, sent_limits, ended, round, has_begun, next, .. } = self;
        next.clear();
        // What was never read is not sent as nothing.
        let Some(listed) = known else { return };
        let others = of_manifests.pods.iter().filter(|(uid, _)| !listed.contains_key(uid));
        let known: BTreeMap<&Uid, &PodFacts> = listed.iter().chain(others).collect();
        next.extend((!*has_begun).then_some(PodMessage::Begin));
        next.extend(sent.keys().filter(|uid| !known.contains_key(uid)).map(|uid| PodMessage::Gone(*uid)));
        let of = |limits: &BTreeMap<Uid, Vec<StorageLimit>>, uid| limits.get(&uid).cloned().unwrap_or_default();
        for facts in known.values() {
            let is_listed = listed.contains_key(&facts.uid);
            let limits = of(if is_listed { limits } else { &of_manifests.limits }, facts.uid);
            if sent.get(&facts.uid) != Some(*facts) || of(sent_limits, facts.uid) != limits {
                next.push_back(PodMessage::Pod(**facts));
                next.extend(limits.into_iter().map(PodMessage::Limit));
            }
        }
        if let Some(ended) = ended {
            next.extend(ended.difference(&round.0).map(|uid| PodMessage::Ended(*uid)));
            next.extend((!round.1).then_some(PodMessage::NoOthers));
        }
        next.push_back(PodMessage::Complete);
    }

    /// Sends the next message, once there is one and room for it.
    ///
    /// # Errors
    /// Where the core has ended.
    pub(super) async fn send_next(&mut self, core: Option<&Core>) -> std::io::Result<()> {
        let Some(core) = core else { return std::future::pending().await };
        // Before all else: nothing may begin.
        if let Some((is_there, is_next @ true)) = &mut self.switch {
            core.send(Message::KillSwitch(*is_there)).await?;
            *is_next = false;
            return Ok(());
        }
        // Then this: a pod's grace runs.
        if let Some(stopped) = self.stops.front() {
            core.send(Message::Stop(*stopped)).await?;
            self.stops.pop_front();
            return Ok(());
        }
        // The kubelet may wait for what hangs in a pod that is held down.
        if let Some(uid) = self.recorded.front() {
            core.send(Message::Recorded(*uid)).await?;
            self.recorded.pop_front();
            return Ok(());
        }
        // Before the readings: the core waits for one that is newer.
        if let Some(removed) = self.removed {
            core.send(Message::Removed(removed)).await?;
            self.removed = None;
            return Ok(());
        }
        if let Some((reading, cost, is_next)) = self.disks.iter_mut().flatten().find(|(_, _, is_next)| *is_next) {
            core.send(Message::Disk(*reading, *cost)).await?;
            *is_next = false;
            return Ok(());
        }
        for (source, known) in Source::ALL.into_iter().zip(&mut self.sources) {
            if let Some((works, is_next @ true)) = known {
                core.send(Message::Source(source, *works)).await?;
                *is_next = false;
                return Ok(());
            }
        }
        let Some(message) = self.next.front().copied() else { return self.send_layer(core).await };
        core.send(Message::Pod(message)).await?;
        self.next.pop_front();
        match message {
            PodMessage::Begin => self.has_begun = true,
            PodMessage::Pod(facts) => {
                self.sent.insert(facts.uid, facts);
                self.sent_limits.remove(&facts.uid);
            }
            PodMessage::Limit(limit) => self.sent_limits.entry(limit.uid).or_default().push(limit),
            PodMessage::Gone(uid) => {
                self.sent.remove(&uid);
                self.sent_limits.remove(&uid);
            }
            PodMessage::Ended(uid) => drop(self.round.0.insert(uid)),
            PodMessage::NoOthers => self.round.1 = true,
            PodMessage::Complete => {
                let (ended, are_all) = std::mem::take(&mut self.round);
                if are_all.then_some(ended) != self.ended {
                    self.plan();
                }
            }
        }
        Ok(())
    }

    /// The same of writable layers.
    async fn send_layer(&mut self, core: &Core) -> std::io::Result<()> {
        let (round, sent) = &mut self.layers;
        let Some(message) = round.get(*sent) else { return std::future::pending().await };
        core.send(Message::Layer(*message)).await?;
        *sent += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_inventory::{Limited, RemovalOrder, Room};
    use plimsoll_policy::kubelet::Reclaim;
    use plimsoll_state::handover;
    use plimsoll_units::{Bytes, MonotonicNs};
    use rustix::io::Errno;
    use rustix::net::{RecvFlags, SendFlags, recv, send};

    fn pods(uids: &[u128], priority: i32) -> BTreeMap<Uid, PodFacts> {
        let facts = |uid: &u128| PodFacts { uid: Uid(*uid), priority, ..PodFacts::default() };
        uids.iter().map(|uid| (Uid(*uid), facts(uid))).collect()
    }

    fn known(pods: BTreeMap<Uid, PodFacts>) -> Known {
        Known { pods, ..Known::default() }
    }

    #[test]
    fn what_was_kept_holds_until_something_is_read_and_never_after() {
        let mut feed = Feed::default();
        feed.restore(Known::default());
        assert_eq!(feed.known, None, "nothing was kept, which says nothing of pods");
        feed.restore(known(pods(&[1], 0)));
        assert_eq!(feed.known, Some(pods(&[1], 0)));
        feed.learn(known(pods(&[2], 0)), None);
        feed.restore(known(pods(&[1], 0)));
        assert_eq!(feed.known, Some(pods(&[2], 0)));
    }

    #[test]
    fn that_there_are_no_other_pods_is_sent_each_time_with_those_that_have_ended_and_never_of_what_was_kept() {
        let mut feed = Feed::default();
        feed.restore(known(pods(&[1], 0)));
        assert!(!feed.next.contains(&PodMessage::NoOthers));
        for ended in [BTreeSet::from([Uid(2), Uid(3)]), BTreeSet::new()] {
            feed.learn(known(BTreeMap::new()), Some(ended.clone()));
            let mut expected: Vec<_> = ended.into_iter().map(PodMessage::Ended).collect();
            expected.extend([PodMessage::NoOthers, PodMessage::Complete]);
            let begins = usize::from(feed.next.front() == Some(&PodMessage::Begin));
            assert_eq!(feed.next.iter().skip(begins).copied().collect::<Vec<_>>(), expected);
        }
        feed.learn(known(BTreeMap::new()), None);
        assert!(!feed.next.contains(&PodMessage::NoOthers), "one could not be read");
    }

    #[test]
    fn what_manifests_say_is_sent_with_a_list_and_counts_for_pods_that_this_does_not_have() {
        let limit = |uid: u128, bytes: u64| {
            let limit = StorageLimit { uid: Uid(uid), on: Limited::Volume(1), bytes: Bytes(bytes) };
            BTreeMap::from([(Uid(uid), vec![limit])])
        };
        let planned = |feed: &Feed| -> Vec<_> {
            let of = |message: &PodMessage| match message {
                PodMessage::Pod(facts) => Some((facts.uid.0, u64::try_from(facts.priority).expect("it is set"))),
                PodMessage::Limit(limit) => Some((limit.uid.0, limit.bytes.0)),
                _ => None,
            };
            feed.next.iter().filter_map(of).collect()
        };
        let mut feed = Feed::default();
        feed.learn_of_manifests(Known { pods: pods(&[1, 2], 5), limits: limit(2, 50) });
        assert!(feed.next.is_empty(), "there is no list yet");
        feed.learn(Known { pods: pods(&[2, 3], 7), limits: limit(2, 70) }, None);
        assert_eq!(planned(&feed), [(1, 5), (2, 7), (2, 70), (3, 7)]);
        assert_eq!([1, 2, 3].map(|uid| feed.lists(&Uid(uid))), [false, true, true]);
        feed.learn(known(pods(&[3], 7)), None);
        assert_eq!(planned(&feed), [(1, 5), (2, 5), (2, 50), (3, 7)]);
        feed.sent = pods(&[1, 2], 5);
        feed.learn_of_manifests(known(pods(&[1], 5)));
        assert!(feed.next.contains(&PodMessage::Gone(Uid(2))) && planned(&feed) == [(3, 7)]);
    }

    #[test]
    fn a_core_is_sent_what_changed_and_a_new_one_everything() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut feed = Feed::default();
            let connect = || {
                let (ours, theirs) = handover::messages_pair().expect("sockets");
                (Core::new(ours).expect("a runtime"), theirs)
            };
            let received = async |feed: &mut Feed, core: &Core, socket: &OwnedFd| {
                while !feed.next.is_empty() {
                    feed.send_next(Some(core)).await.expect("it runs");
                }
                let mut buffer = [0; MESSAGE];
                std::iter::from_fn(move || {
                    let (length, _) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT).ok()?;
                    match Message::decode(&buffer[..length])? {
                        Message::Pod(message) => Some(message),
                        _ => panic!("nothing but pods is known"),
                    }
                })
                .collect::<Vec<_>>()
            };
            let of =
                |uids: &[u128], priority| pods(uids, priority).into_values().map(PodMessage::Pod).collect::<Vec<_>>();
            let [begin, complete] = [PodMessage::Begin, PodMessage::Complete].map(|message| vec![message]);
            let (core, socket) = connect();
            feed.begin();
            assert_eq!(received(&mut feed, &core, &socket).await, [], "nothing was read yet");
            feed.learn(known(pods(&[1, 2], 0)), None);
            assert_eq!(
                received(&mut feed, &core, &socket).await,
                [begin.clone(), of(&[1, 2], 0), complete.clone()].concat()
            );
            let mut changed = pods(&[2], 5);
            changed.extend(pods(&[3], 0));
            feed.learn(known(changed), None);
            let gone = vec![PodMessage::Gone(Uid(1))];
            let expected = [gone, of(&[2], 5), of(&[3], 0), complete.clone()].concat();
            assert_eq!(received(&mut feed, &core, &socket).await, expected);
            let (core, socket) = connect();
            feed.begin();
            // What is learned meanwhile does not begin it once more.
            feed.send_next(Some(&core)).await.expect("it runs");
            feed.send_next(Some(&core)).await.expect("it runs");
            let limit = StorageLimit { uid: Uid(4), on: Limited::Volume(1), bytes: Bytes(3) };
            feed.learn(Known { limits: BTreeMap::from([(Uid(4), vec![limit])]), ..known(pods(&[2, 4], 5)) }, None);
            let expected = [begin, of(&[2, 4], 5), vec![PodMessage::Limit(limit)], complete.clone()].concat();
            assert_eq!(received(&mut feed, &core, &socket).await, expected);
            feed.learn(known(pods(&[2, 4], 5)), None);
            assert_eq!(
                received(&mut feed, &core, &socket).await,
                [of(&[4], 5), complete].concat(),
                "no limit any more"
            );
            drop(socket);
            feed.begin();
            feed.send_next(Some(&core)).await.expect_err("it has ended");
        });
    }

    /// Sends the next message, and gives it as a core receives it.
    async fn sent(feed: &mut Feed, core: &Core, socket: &OwnedFd) -> PodMessage {
        feed.send_next(Some(core)).await.expect("it runs");
        let mut buffer = [0; MESSAGE];
        let (length, _) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT).expect("it was sent");
        let Some(Message::Pod(message)) = Message::decode(&buffer[..length]) else {
            panic!("nothing but pods is known")
        };
        message
    }

    /// A feed, and a core that it sends to.
    fn scene() -> (Feed, Core, OwnedFd) {
        let (ours, theirs) = handover::messages_pair().expect("sockets");
        (Feed::default(), Core::new(ours).expect("a runtime"), theirs)
    }

    #[test]
    fn a_round_comes_to_its_end_also_where_changes_come_faster_and_has_all_of_them() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (mut feed, core, socket) = scene();
            let (mut priority, mut ended) = (0, (100..400).map(Uid).collect::<BTreeSet<_>>());
            feed.learn(known(pods(&[1, 2], priority)), Some(ended.clone()));
            feed.begin();
            let (mut pods_sent, mut ended_sent) = (BTreeMap::new(), BTreeSet::new());
            for count in 0.. {
                assert!(count < 500, "it is sent Complete");
                match sent(&mut feed, &core, &socket).await {
                    PodMessage::Pod(facts) => drop(pods_sent.insert(facts.uid, facts)),
                    PodMessage::Ended(uid) => drop(ended_sent.insert(uid)),
                    PodMessage::Complete => break,
                    _ => {}
                }
                if count % 10 == 0 {
                    priority += 1;
                    ended.insert(Uid(1000 + count));
                }
                feed.learn(known(pods(&[1, 2], priority)), Some(ended.clone()));
            }
            assert_eq!((pods_sent, ended_sent), (pods(&[1, 2], priority), ended));
            assert!(feed.next.is_empty());
        });
    }

    #[test]
    fn what_a_round_has_sent_that_holds_no_more_is_made_good_by_another_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let of = |uids: &[u128]| uids.iter().copied().map(Uid).collect::<BTreeSet<_>>();
            let [one, two, three] = [1, 2, 3].map(|uid| PodMessage::Ended(Uid(uid)));
            let (no_others, complete) = (PodMessage::NoOthers, PodMessage::Complete);
            for (first, then, last, expected) in [
                (2, Some(of(&[2, 3])), one, vec![two, three, no_others, complete, two, three, no_others, complete]),
                (4, None, no_others, vec![complete, complete]),
                (2, None, one, vec![complete]),
                (4, Some(of(&[1, 2])), no_others, vec![complete]),
                (4, Some(of(&[1, 2, 3])), no_others, vec![three, complete]),
            ] {
                let (mut feed, core, socket) = scene();
                feed.learn(known(BTreeMap::new()), Some(of(&[1, 2])));
                let mut before = PodMessage::Begin;
                for _ in 0..first {
                    before = sent(&mut feed, &core, &socket).await;
                }
                assert_eq!(before, last);
                feed.learn(known(BTreeMap::new()), then);
                let mut all = Vec::new();
                while !feed.next.is_empty() {
                    all.push(sent(&mut feed, &core, &socket).await);
                }
                assert_eq!(all, expected, "after {last:?}");
            }
            let (mut feed, core, socket) = scene();
            feed.learn(known(BTreeMap::new()), Some(of(&[1])));
            while sent(&mut feed, &core, &socket).await != one {}
            feed.begin();
            assert_eq!(feed.next, [PodMessage::Begin, one, no_others, complete], "a new core was sent nothing");
        });
    }

    #[test]
    fn the_newest_reading_of_each_disk_is_sent_once_to_each_core() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut feed = Feed::default();
            let reading = |role, left| DiskReading {
                role,
                bytes: Some(Room { left, all: 9 }),
                inodes: None,
                at: MonotonicNs(left),
                layout: None,
            };
            let cost = Duration::from_micros;
            let (old, new, other) = (
                (reading(DiskRole::Node, 1), cost(1)),
                (reading(DiskRole::Node, 2), cost(2)),
                (reading(DiskRole::Container, 3), cost(3)),
            );
            feed.measure(vec![old, other]);
            feed.measure(vec![new]);
            for _ in 0..2 {
                let (ours, socket) = handover::messages_pair().expect("sockets");
                let core = Core::new(ours).expect("a runtime");
                feed.begin();
                for (reading, cost) in [new, other] {
                    feed.send_next(Some(&core)).await.expect("it runs");
                    let mut buffer = [0; MESSAGE];
                    let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT).expect("it was sent");
                    assert_eq!(Message::decode(&buffer[..length]), Some(Message::Disk(reading, cost)));
                }
                assert!(feed.disks.iter().flatten().all(|(_, _, is_next)| !is_next));
            }
        });
    }

    #[test]
    fn writable_layers_are_sent_after_pods_once_to_each_core() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut feed = Feed::default();
            let old = vec![StorageMessage::Measured(Uid(1)), StorageMessage::Round];
            let new = vec![StorageMessage::Measured(Uid(2)), StorageMessage::Round];
            feed.measure_layers(old);
            feed.learn(known(pods(&[2], 0)), None);
            for turn in 0..2 {
                let (ours, socket) = handover::messages_pair().expect("sockets");
                let core = Core::new(ours).expect("a runtime");
                feed.begin();
                feed.send_next(Some(&core)).await.expect("it runs");
                feed.measure_layers(new.clone());
                let pods = [PodMessage::Pod(pods(&[2], 0)[&Uid(2)]), PodMessage::Complete].map(Message::Pod);
                let layers = new.iter().copied().map(Message::Layer);
                for expected in [Message::Pod(PodMessage::Begin)].into_iter().chain(pods).chain(layers) {
                    let mut buffer = [0; MESSAGE];
                    if let Err(Errno::AGAIN) = recv(&socket, &mut buffer[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                        feed.send_next(Some(&core)).await.expect("it runs");
                    }
                    let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT).expect("it was sent");
                    assert_eq!(Message::decode(&buffer[..length]), Some(expected), "core {turn}");
                }
                assert_eq!(feed.layers.1, new.len());
            }
        });
    }

    #[test]
    fn an_order_is_received_what_is_none_is_passed_over_and_its_result_goes_to_the_core_that_gave_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let what = Reclaim { containers: true, images: false };
            let order = RemovalOrder { number: 7, what, bytes: Bytes(9), until: MonotonicNs(u64::MAX) };
            let removed = RemovalResult { number: 7, containers: 2, ..RemovalResult::default() };
            let mut feed = Feed::default();
            let (ours, socket) = handover::messages_pair().expect("sockets");
            let core = Core::new(ours).expect("a runtime");
            let mut buffer = [0; CORE_MESSAGE];
            let order = CoreMessage::Remove(order);
            for message in [&b"garbage"[..], &[255; 32], &[0; CORE_MESSAGE + 1], order.encode(&mut buffer)] {
                send(&socket, message, SendFlags::NOSIGNAL).expect("room");
            }
            assert_eq!(core.message().await.expect("it was sent"), order);
            feed.report(removed);
            feed.send_next(Some(&core)).await.expect("it runs");
            let mut buffer = [0; MESSAGE];
            let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT).expect("it was sent");
            assert_eq!(Message::decode(&buffer[..length]), Some(Message::Removed(removed)));
            feed.report(removed);
            feed.begin();
            assert_eq!(feed.removed, None, "the next core did not order it");
            drop(socket);
            assert_eq!(core.message().await.expect_err("it has ended").kind(), ErrorKind::UnexpectedEof);
        });
    }
}
