//! Dead containers and unused images, which the container runtime is asked to remove by order of the core alone.
//!
//! One order is carried out at a time, and the newest counts: another one, its end, or that of its core stops what is under
//! way before the next removal.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_config::Configuration;
use plimsoll_cri::{Collect, Collected, Collector, Dial, Error, History, Runtime};
use plimsoll_inventory::{RemovalError, RemovalOrder, RemovalResult};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_units::MonotonicNs;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::runtime::{known, pause_after};

/// How often images are listed for their age and the order of use, as the kubelet does (`realImageGCManager.Start`).
const LISTED_EVERY: Duration = Duration::from_mins(5);

/// The way to the task that removes.
pub(super) struct Removal {
    orders: watch::Sender<Option<RemovalOrder>>,
    /// Pods that are over.
    ended: watch::Sender<BTreeSet<Uid>>,
    results: mpsc::Receiver<(RemovalOrder, RemovalResult)>,
    /// What an earlier process remembered of images.
    before: watch::Sender<History>,
    /// What is remembered of images.
    noted: watch::Receiver<History>,
    /// What is answered here.
    refused: Option<RemovalResult>,
}

impl Default for Removal {
    /// Without a runtime: every order is refused.
    fn default() -> Self {
        Self {
            orders: watch::Sender::default(),
            ended: watch::Sender::default(),
            results: mpsc::channel(1).1,
            before: watch::Sender::default(),
            noted: watch::Sender::default().subscribe(),
            refused: None,
        }
    }
}

impl Removal {
    /// Starts the task, which asks for a connection of its own: a list of names must not wait for a removal.
    pub(super) fn start(configuration: &Configuration, sockets: Vec<PathBuf>, dial: Dial) -> Self {
        let never = configuration.machine.images_never_removed.clone();
        let collector = Collector::new(configuration.kubelet.image_min_age, never, monotonic);
        let (results, received) = mpsc::channel(1);
        let noted = watch::Sender::<History>::default();
        let removal = Self { results: received, noted: noted.subscribe(), ..Self::default() };
        let (ended, before) = (removal.ended.subscribe(), removal.before.subscribe());
        let remover = Remover { runtime: None, sockets, dial, collector, ended, before, noted };
        tokio::spawn(remover.serve(removal.orders.subscribe(), results));
        removal
    }

    /// Carries it out in place of what is under way.
    pub(super) fn order(&mut self, order: RemovalOrder) {
        if self.orders.receiver_count() == 0 {
            self.refused = Some(RemovalResult::failed(order.number, RemovalError::NoRuntime));
        }
        self.orders.send_replace(Some(order));
    }

    /// The core that ordered it has ended.
    pub(super) fn stop(&mut self) {
        self.refused = None;
        self.orders.send_replace(None);
    }

    /// These pods are over.
    pub(super) fn learn(&self, ended: BTreeSet<Uid>) {
        self.ended.send_replace(ended);
    }

    /// This was remembered of images by an earlier process.
    pub(super) fn resume(&self, images: History) {
        self.before.send_replace(images);
    }

    /// By which comes what is remembered of images, whenever that has changed.
    pub(super) fn noted(&self) -> watch::Receiver<History> {
        self.noted.clone()
    }

    /// The next result of the newest order, or of the one that this stops. Each core counts its orders anew: what came of
    /// an earlier one's order is not for this one.
    pub(super) async fn next(&mut self) -> RemovalResult {
        if let Some(refused) = self.refused.take() {
            return refused;
        }
        loop {
            match self.results.recv().await {
                Some((order, result)) => {
                    let newest = *self.orders.borrow();
                    if newest.is_some_and(|newest| newest.stopping() == order.stopping()) {
                        return result;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }
}

/// Whether a removal may be begun at `now` for an order, with this one the newest.
fn goes_on(order: &RemovalOrder, newest: Option<RemovalOrder>, now: MonotonicNs) -> bool {
    newest == Some(*order) && now < order.until && !order.what.is_nothing()
}

/// The task.
struct Remover {
    runtime: Option<Runtime>,
    sockets: Vec<PathBuf>,
    dial: Dial,
    collector: Collector,
    ended: watch::Receiver<BTreeSet<Uid>>,
    before: watch::Receiver<History>,
    noted: watch::Sender<History>,
}

type Orders = watch::Receiver<Option<RemovalOrder>>;

impl Remover {
    /// Carries out orders, and lists images from time to time, for as long as orders may come.
    async fn serve(mut self, mut orders: Orders, results: mpsc::Sender<(RemovalOrder, RemovalResult)>) {
        let (mut due, mut failures) = (Instant::now(), 0);
        loop {
            let mut before = self.before.clone();
            let note = async {
                sleep_until(due).await;
                self.note().await
            };
            tokio::select! {
                // An order waits for no list: one that is dropped is made again.
                biased;
                changed = orders.changed() => {
                    let order = *orders.borrow_and_update();
                    if changed.is_err() {
                        return;
                    }
                    if let Some(order) = order
                        && results.send((order, self.carry_out(order, &orders).await)).await.is_err()
                    {
                        return;
                    }
                }
                Ok(()) = before.changed() => {
                    self.collector.resume(self.before.borrow_and_update().clone());
                    // What was noted before is without that, and may have been kept in its place.
                    self.publish();
                }
                noted = note => {
                    failures = match noted {
                        Ok(()) => 0,
                        Err(error) => {
                            tracing::debug!(failures, "images are not listed: {error}");
                            failures + 1
                        }
                    };
                    let pause = if failures == 0 { LISTED_EVERY } else { pause_after(Duration::ZERO, failures) };
                    due = Instant::now() + pause;
                }
            }
        }
    }

    async fn note(&mut self) -> Result<(), Error> {
        self.collector.note(known(&mut self.runtime, &self.sockets, &self.dial).await?).await?;
        self.publish();
        Ok(())
    }

    /// Has what is remembered of images kept, where that has changed.
    fn publish(&self) {
        self.noted.send_if_modified(|noted| {
            let is_changed = noted != self.collector.history();
            if is_changed {
                noted.clone_from(self.collector.history());
            }
            is_changed
        });
    }

    async fn carry_out(&mut self, order: RemovalOrder, orders: &Orders) -> RemovalResult {
        let goes_on = || goes_on(&order, *orders.borrow(), monotonic());
        let (collected, ended) =
            if goes_on() { self.remove(&order, &goes_on).await } else { (Collected::default(), Ok(())) };
        self.publish();
        let error = match ended {
            Err(error) => {
                tracing::warn!(order = order.number, "not all that is dead or unused was removed: {error}");
                Some(RemovalError::Runtime)
            }
            Ok(()) if !goes_on() => Some(RemovalError::Stopped),
            Ok(()) => None,
        };
        let Collected { containers, sandboxes, images, freed, unused } = collected;
        RemovalResult { number: order.number, containers, sandboxes, images, freed, unused, error }
    }

    async fn remove(
        &mut self,
        order: &RemovalOrder,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> (Collected, Result<(), Error>) {
        let Self { runtime, sockets, dial, collector, ended, before: _, noted: _ } = self;
        let ended = ended.borrow().clone();
        let is_over = |uid: &str| ended.contains(&Uid::of(uid));
        let asked = Collect { what: order.what, bytes: order.bytes, is_over: &is_over, goes_on };
        match known(runtime, sockets, dial).await {
            Ok(runtime) => collector.collect(runtime, &asked).await,
            Err(error) => (Collected::default(), Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_policy::kubelet::Reclaim;
    use plimsoll_units::Bytes;
    use std::io::ErrorKind;
    use tokio::time::timeout;

    const WHAT: Reclaim = Reclaim { containers: true, images: true };
    const ORDER: RemovalOrder =
        RemovalOrder { number: 3, what: WHAT, bytes: Bytes(u64::MAX), until: MonotonicNs(u64::MAX) };

    async fn result(removal: &mut Removal) -> RemovalResult {
        timeout(Duration::from_mins(1), removal.next()).await.expect("there is a result")
    }

    #[test]
    fn what_an_earlier_process_remembered_of_images_is_to_be_kept_again_at_once() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let configuration = plimsoll_config::parse("", "f").expect("it is in order");
            let refused = Dial::by(|_: &std::path::Path| async { Err(ErrorKind::ConnectionRefused.into()) });
            let removal = Removal::start(&configuration, vec!["/nowhere".into()], refused);
            let mut noted = removal.noted();
            let mut before = History::default();
            before.restore("sha256:1", r#"{"first":1,"last_used":1}"#);
            assert!(before.has("sha256:1"));
            removal.resume(before.clone());
            timeout(Duration::from_mins(1), noted.changed()).await.expect("it is kept").expect("the task is there");
            assert_eq!(*noted.borrow(), before);
        });
    }

    #[test]
    fn an_order_that_cannot_be_carried_out_has_a_result_that_says_why() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let mut without = Removal::default();
            without.order(ORDER);
            assert_eq!(result(&mut without).await, RemovalResult::failed(3, RemovalError::NoRuntime));
            let configuration = plimsoll_config::parse("", "f").expect("it is in order");
            let refused = Dial::by(|_: &std::path::Path| async { Err(ErrorKind::ConnectionRefused.into()) });
            let mut removal = Removal::start(&configuration, vec!["/nowhere".into()], refused);
            for (order, error) in [
                (ORDER, RemovalError::Runtime),
                (RemovalOrder { number: 4, until: MonotonicNs(1), ..ORDER }, RemovalError::Stopped),
                (RemovalOrder { number: 5, ..ORDER }.stopping(), RemovalError::Stopped),
            ] {
                removal.order(order);
                assert_eq!(result(&mut removal).await, RemovalResult::failed(order.number, error));
            }
        });
    }

    #[test]
    fn nothing_more_is_begun_for_an_order_that_is_not_the_newest_or_too_late() {
        let (now, other) = (MonotonicNs(7), RemovalOrder { number: 4, ..ORDER });
        let late = RemovalOrder { until: now, ..ORDER };
        for (order, newest, expected) in [
            (ORDER, Some(ORDER), true),
            (ORDER, Some(other), false),
            (ORDER, Some(ORDER.stopping()), false),
            (ORDER, None, false),
            (late, Some(late), false),
            (ORDER.stopping(), Some(ORDER.stopping()), false),
        ] {
            assert_eq!(goes_on(&order, newest, now), expected, "{order:?} {newest:?}");
        }
    }

    #[test]
    fn an_order_does_not_wait_for_a_list_and_one_that_is_stopped_has_a_result_of_its_own() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let configuration = plimsoll_config::parse("", "f").expect("it is in order");
            let (asked, mut was_asked) = mpsc::channel(4);
            let hangs = Dial::by(move |_: &std::path::Path| {
                let asked = asked.clone();
                async move {
                    asked.send(()).await.expect("it is received");
                    std::future::pending().await
                }
            });
            let mut removal = Removal::start(&configuration, vec!["/nowhere".into()], hangs);
            was_asked.recv().await.expect("images are listed");
            removal.order(ORDER.stopping());
            assert_eq!(result(&mut removal).await, RemovalResult::failed(3, RemovalError::Stopped));
            removal.order(ORDER);
            was_asked.recv().await.expect("it is carried out");
        });
    }

    #[test]
    fn what_came_of_an_order_of_an_earlier_core_is_not_for_the_next_one() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let (results, received) = mpsc::channel(4);
            let mut removal = Removal { results: received, ..Removal::default() };
            let _remover = removal.orders.subscribe();
            let of = |order: RemovalOrder, images| {
                let done = RemovalResult { images, error: None, ..RemovalResult::failed(3, RemovalError::Stopped) };
                results.try_send((order, done)).expect("there is room");
            };
            removal.order(ORDER);
            removal.stop();
            let next = RemovalOrder { until: MonotonicNs(9), ..ORDER };
            removal.order(next);
            of(ORDER, 1);
            of(next, 2);
            assert_eq!(result(&mut removal).await.images, 2);
            // What was removed until it was stopped counts.
            removal.order(next.stopping());
            of(next, 3);
            assert_eq!(result(&mut removal).await.images, 3);
        });
    }
}
