//! Names of pods from all sources, and what of them the reporter has to be sent next.

use std::collections::VecDeque;
use std::ops::Bound;
use std::os::fd::OwnedFd;

use plimsoll_inventory::MOST_PODS;
use plimsoll_policy::Uid;
use plimsoll_report::{Ended, NAME_MESSAGE, NameMessage, PodNames, Witnessed};
use tokio::net::UnixDatagram;

use super::runtime::Named;

/// Pods that others ended and that wait for a reporter: the oldest are left out.
const MOST_ENDED: usize = 64;

/// What is known. It changes seldom, and is sent as a whole then.
#[derive(Default)]
pub(super) struct NameFeed {
    /// What the file says: an API server's list.
    of_file: Named,
    /// What the container runtime says.
    of_runtime: Named,
    /// Both.
    known: Option<Named>,
    /// What was done to pods by others, and whether that has to be sent.
    witnessed: (Witnessed, bool),
    /// Those of them that have to be sent. What a reporter was sent, another one is not.
    ended: VecDeque<Ended>,
    /// The way to the newest reporter.
    way: Option<UnixDatagram>,
    next: Option<Next>,
}

/// What is sent next.
enum Next {
    Begin,
    /// The first pod after this one.
    After(Bound<Uid>),
}

impl NameFeed {
    /// A new reporter was sent nothing yet.
    ///
    /// # Errors
    /// Where its socket is none.
    pub(super) fn begin(&mut self, way: OwnedFd) -> std::io::Result<()> {
        self.way = Some(UnixDatagram::from_std(way.into())?);
        self.next = self.known.as_ref().map(|_| Next::Begin);
        self.witnessed.1 = self.witnessed.0 != Witnessed::default();
        Ok(())
    }

    /// This was done to pods by others until now, and to these since it was last said.
    pub(super) fn count(&mut self, witnessed: Witnessed, ended: Vec<Ended>) {
        self.witnessed = (witnessed, true);
        self.ended.extend(ended);
        self.ended.drain(..self.ended.len().saturating_sub(MOST_ENDED));
    }

    /// The file names these now.
    pub(super) fn learn_of_file(&mut self, named: Named) {
        self.of_file = named;
        self.plan();
    }

    /// The runtime names these now.
    pub(super) fn learn_of_runtime(&mut self, named: Named) {
        self.of_runtime = named;
        self.plan();
    }

    /// The namespace and the name of a pod; empty where they are not known.
    pub(super) fn of(&self, uid: Uid) -> (String, String) {
        let pod = self.known.as_ref().and_then(|known| known.get(&uid)).map_or("", PodNames::pod);
        let (namespace, name) = pod.split_once('/').unwrap_or(("", pod));
        (namespace.to_owned(), name.to_owned())
    }

    fn plan(&mut self) {
        let mut known = self.of_file.clone();
        for (uid, names) in &self.of_runtime {
            if let Some(known) = known.get_mut(uid) {
                known.add_containers_of(names);
            } else if known.len() < MOST_PODS {
                known.insert(*uid, names.clone());
            }
        }
        let known = Some(known);
        if self.known != known {
            self.known = known;
            self.next = Some(Next::Begin);
        }
    }

    /// Sends the next message, once there is one and room for it. Where the reporter has ended nothing is sent until there
    /// is another one.
    pub(super) async fn send_next(&mut self) {
        let (Some(way), known) = (&self.way, self.known.as_ref()) else { return std::future::pending().await };
        if let (witnessed, true) = self.witnessed {
            match way.send(NameMessage::Witnessed(witnessed).encode(&mut [0; NAME_MESSAGE])).await {
                Ok(_) => self.witnessed.1 = false,
                Err(error) => self.end(&error),
            }
            return;
        }
        if let Some(ended) = self.ended.front() {
            match way.send(NameMessage::Ended(*ended).encode(&mut [0; NAME_MESSAGE])).await {
                Ok(_) => _ = self.ended.pop_front(),
                Err(error) => self.end(&error),
            }
            return;
        }
        let (Some(known), Some(next)) = (known, &self.next) else { return std::future::pending().await };
        let (message, following) = match next {
            Next::Begin => (NameMessage::Begin, Some(Next::After(Bound::Unbounded))),
            Next::After(place) => match known.range((*place, Bound::Unbounded)).next() {
                Some((uid, names)) => (NameMessage::Pod(names.clone()), Some(Next::After(Bound::Excluded(*uid)))),
                None => (NameMessage::Complete, None),
            },
        };
        match way.send(message.encode(&mut [0; NAME_MESSAGE])).await {
            Ok(_) => self.next = following,
            Err(error) => self.end(&error),
        }
    }

    fn end(&mut self, error: &std::io::Error) {
        tracing::debug!("names of pods are not sent until the reporter is started again: {error}");
        self.way = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_report::EndedBy;
    use plimsoll_state::handover;
    use plimsoll_units::MonotonicNs;
    use rustix::net::{RecvFlags, recv};

    fn named(pods: &[(u128, &str)]) -> Named {
        pods.iter().map(|(uid, name)| (Uid(*uid), PodNames::new(Uid(*uid), "n", name))).collect()
    }

    #[test]
    fn a_reporter_is_sent_all_names_when_one_changed_and_a_new_one_at_once() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let mut feed = NameFeed::default();
            let begin = |feed: &mut NameFeed| {
                let (theirs, ours) = handover::messages_pair().expect("sockets");
                feed.begin(ours).expect("a socket");
                theirs
            };
            let received = async |feed: &mut NameFeed, socket: &OwnedFd| {
                while feed.next.is_some() && feed.way.is_some() {
                    feed.send_next().await;
                }
                let mut buffer = [0; NAME_MESSAGE];
                let all = std::iter::from_fn(|| {
                    let (length, _) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT).ok()?;
                    Some(buffer[..length].to_vec())
                });
                all.collect::<Vec<_>>()
            };
            let messages = |named: &Named| {
                let pods = named.values().cloned().map(NameMessage::Pod);
                let all = [NameMessage::Begin].into_iter().chain(pods).chain([NameMessage::Complete]);
                all.map(|message| message.encode(&mut [0; NAME_MESSAGE]).to_vec()).collect::<Vec<_>>()
            };
            let socket = begin(&mut feed);
            assert!(received(&mut feed, &socket).await.is_empty(), "nothing is known yet");
            feed.learn_of_runtime(named(&[(1, "a"), (u128::MAX, "b")]));
            assert_eq!(received(&mut feed, &socket).await, messages(&named(&[(1, "a"), (u128::MAX, "b")])));
            feed.learn_of_runtime(named(&[(1, "a"), (u128::MAX, "b")]));
            assert!(received(&mut feed, &socket).await.is_empty(), "it is the same");
            // The API's name counts, with the containers of both.
            let [mut file, mut runtime, mut both] =
                [named(&[(1, "api")]), named(&[(1, "a"), (2, "c")]), named(&[(1, "api"), (2, "c")])];
            let of = |named: &mut Named, digits: &[&str]| {
                let pod = named.get_mut(&Uid(1)).expect("it is there");
                for digit in digits {
                    pod.add_container(&digit.repeat(64), digit);
                }
            };
            of(&mut file, &["a"]);
            of(&mut runtime, &["a", "b"]);
            of(&mut both, &["a", "b"]);
            feed.learn_of_file(file);
            // Begun, and then there is something new.
            feed.send_next().await;
            feed.send_next().await;
            feed.learn_of_runtime(runtime);
            let all = received(&mut feed, &socket).await;
            assert_eq!(all[2..], messages(&both));
            drop(socket);
            feed.learn_of_runtime(Named::new());
            let socket = begin(&mut feed);
            let mut left = named(&[(1, "api")]);
            of(&mut left, &["a"]);
            assert_eq!(received(&mut feed, &socket).await, messages(&left));
            drop(socket);
            feed.learn_of_file(Named::new());
            feed.send_next().await;
            assert!(feed.way.is_none(), "it has ended");
            let socket = begin(&mut feed);
            assert_eq!(received(&mut feed, &socket).await, messages(&Named::new()));
        });
    }

    #[test]
    fn what_was_done_by_others_is_sent_before_names_and_to_each_new_reporter() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let mut feed = NameFeed::default();
            let witnessed = Witnessed { oom_killed_containers: 2, ..Witnessed::default() };
            let ended = Ended { uid: Uid(1), by: EndedBy::OomKiller, at: MonotonicNs(1) };
            for round in 0..2 {
                let (theirs, ours) = handover::messages_pair().expect("sockets");
                feed.begin(ours).expect("a socket");
                if round == 0 {
                    feed.learn_of_file(named(&[(1, "a")]));
                    feed.count(witnessed, vec![ended]);
                }
                feed.send_next().await;
                let mut buffer = [0; NAME_MESSAGE];
                let (length, _) = recv(&theirs, &mut buffer[..], RecvFlags::DONTWAIT).expect("it was sent");
                let expected = NameMessage::Witnessed(witnessed);
                assert_eq!(buffer[..length], *expected.encode(&mut [0; NAME_MESSAGE]), "round {round}");
                if round == 0 {
                    feed.send_next().await;
                    let (length, _) = recv(&theirs, &mut buffer[..], RecvFlags::DONTWAIT).expect("it was sent");
                    let expected = NameMessage::Ended(ended);
                    assert_eq!(buffer[..length], *expected.encode(&mut [0; NAME_MESSAGE]), "once");
                }
                feed.send_next().await;
                let (length, _) = recv(&theirs, &mut buffer[..], RecvFlags::DONTWAIT).expect("names follow");
                assert_eq!(buffer[..length], *NameMessage::Begin.encode(&mut [0; NAME_MESSAGE]));
            }
        });
    }
}
