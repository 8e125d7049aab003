//! Pods that run: a container's memory.high, which the container runtime is asked to raise, and pods that it is asked to
//! stop, by order of the core alone.
//!
//! Of nothing here is the outcome reported but that a pod is being stopped: the core reads in the kernel what came of it.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_cri::{ContainerId, Dial, Error, RunningPod, Runtime};
use plimsoll_inventory::{RelaxOrder, StopOrder, StopResult};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::Uid;
use plimsoll_units::MonotonicNs;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::runtime::known;

/// So many orders of a kind wait at most; more are answered as those that cannot be carried out.
const WAITING: usize = 64;

/// An order about a pod that runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunningOrder {
    Relax(RelaxOrder),
    Stop(StopOrder),
}

/// The ways to the tasks that carry orders out. Absent without a runtime: nothing is begun then.
pub(super) struct Running {
    stops: Option<mpsc::Sender<StopOrder>>,
    relaxes: Option<mpsc::Sender<RelaxOrder>>,
    give: mpsc::Sender<StopResult>,
    results: mpsc::Receiver<StopResult>,
}

impl Default for Running {
    fn default() -> Self {
        let (give, results) = mpsc::channel(2 * WAITING);
        Self { stops: None, relaxes: None, give, results }
    }
}

impl Running {
    /// Starts the tasks, each of which asks for a connection of its own: a list of names must not wait for them, nor a pod that
    /// is to be stopped for a limit that is to be raised.
    pub(super) fn start(sockets: Vec<PathBuf>, dial: Dial) -> Self {
        let (stops, to_stop) = mpsc::channel(WAITING);
        let (relaxes, to_relax) = mpsc::channel(WAITING);
        let running = Self { stops: Some(stops), relaxes: Some(relaxes), ..Self::default() };
        let task = Task { runtime: None, sockets, dial };
        tokio::spawn(task.clone().serve_stops(to_stop, running.give.clone()));
        tokio::spawn(task.serve_relaxes(to_relax));
        running
    }

    /// Has it carried out. It is waited for nowhere.
    pub(super) fn order(&self, order: RunningOrder) {
        match order {
            RunningOrder::Relax(order) => {
                // The core reads whether it was raised.
                let _ = self.relaxes.as_ref().map(|relaxes| relaxes.try_send(order));
            }
            RunningOrder::Stop(order) => {
                if self.stops.as_ref().is_none_or(|stops| stops.try_send(order).is_err()) {
                    // Where there is no room for that either, the core does without.
                    let _ = self.give.try_send(StopResult { uid: order.uid, is_begun: false });
                }
            }
        }
    }

    /// The next result.
    pub(super) async fn next(&mut self) -> StopResult {
        match self.results.recv().await {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }
}

/// What a task needs.
#[derive(Clone)]
struct Task {
    runtime: Option<Runtime>,
    sockets: Vec<PathBuf>,
    dial: Dial,
}

/// Whether an order may still be begun, and for how long.
fn left(until: MonotonicNs) -> Option<Duration> {
    Some(until.since(monotonic())).filter(|left| !left.is_zero())
}

impl Task {
    async fn serve_relaxes(mut self, mut orders: mpsc::Receiver<RelaxOrder>) {
        while let Some(order) = orders.recv().await {
            self.relax(order).await;
        }
    }

    async fn serve_stops(mut self, mut orders: mpsc::Receiver<StopOrder>, results: mpsc::Sender<StopResult>) {
        while let Some(order) = orders.recv().await {
            let is_begun = self.stop(order).await;
            if results.send(StopResult { uid: order.uid, is_begun }).await.is_err() {
                return;
            }
        }
    }

    /// What runs of a pod.
    async fn find(&mut self, uid: Uid) -> Result<RunningPod, Error> {
        let runtime = known(&mut self.runtime, &self.sockets, &self.dial).await?;
        runtime.running_pod(|other| Uid::of(other) == uid).await
    }

    /// Has a limit raised. That is not waited for any longer than it may be begun: other orders wait.
    async fn relax(&mut self, RelaxOrder { container, high, until }: RelaxOrder) {
        let Some(left) = left(until) else { return };
        // 64 digits are an id.
        let Ok(id) = ContainerId::try_from(container.to_string()) else { return };
        let set = async {
            let runtime = known(&mut self.runtime, &self.sockets, &self.dial).await?;
            runtime.set_memory_high(&id, high).await
        };
        match timeout(left, set).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("memory.high of container {id} is not raised to {high}: {error}"),
            Err(_) => tracing::warn!("memory.high of container {id} is not raised to {high} within {left:?}"),
        }
    }

    /// Begins to stop a pod. Gives whether that is done.
    async fn stop(&mut self, StopOrder { uid, grace_seconds, until }: StopOrder) -> bool {
        let Some(time) = left(until) else { return false };
        let pod = match timeout(time, self.find(uid)).await {
            Ok(Ok(pod)) => pod,
            Ok(Err(error)) => {
                tracing::warn!("a pod is not stopped through the container runtime: {error}");
                return false;
            }
            Err(_) => return false,
        };
        let Some(mut runtime) = self.runtime.clone().filter(|_| !pod.containers.is_empty() && left(until).is_some())
        else {
            return false;
        };
        tokio::spawn(async move {
            let grace = Duration::from_secs(grace_seconds.into());
            if let Err(error) = runtime.stop_pod(&pod, grace).await {
                tracing::warn!("a pod was not stopped through the container runtime to its end: {error}");
            }
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_inventory::ContainerNumber;
    use plimsoll_units::Bytes;
    use std::io::ErrorKind;
    use std::path::Path;

    const UID: Uid = Uid(7);

    fn order(until: MonotonicNs) -> RunningOrder {
        RunningOrder::Stop(StopOrder { uid: UID, grace_seconds: 3, until })
    }

    async fn result(running: &mut Running) -> StopResult {
        timeout(Duration::from_mins(1), running.next()).await.expect("there is a result")
    }

    #[test]
    fn a_pod_that_is_not_stopped_is_said_to_be_none_whatever_the_reason() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let nothing = StopResult { uid: UID, is_begun: false };
            let mut without = Running::default();
            without.order(order(MonotonicNs(u64::MAX)));
            assert_eq!(result(&mut without).await, nothing);
            let refused = Dial::by(|_: &Path| async { Err(ErrorKind::ConnectionRefused.into()) });
            let mut running = Running::start(vec!["/nowhere".into()], refused);
            for until in [MonotonicNs(u64::MAX), MonotonicNs(1)] {
                running.order(order(until));
                assert_eq!(result(&mut running).await, nothing);
            }
        });
    }

    #[test]
    fn an_order_that_is_too_late_is_not_begun_and_one_that_hangs_delays_the_next_no_longer_than_its_time() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio.block_on(async {
            let (asked, mut was_asked) = mpsc::channel(4);
            let hangs = Dial::by(move |_: &Path| {
                let asked = asked.clone();
                async move {
                    asked.send(()).await.expect("it is received");
                    std::future::pending().await
                }
            });
            let mut task = Task { runtime: None, sockets: vec!["/nowhere".into()], dial: hangs };
            let container = ContainerNumber::of(&[b'a'; 64]).expect("an id");
            task.relax(RelaxOrder { container, high: Bytes(1), until: MonotonicNs(1) }).await;
            assert!(was_asked.try_recv().is_err(), "its time is over");
            let soon = monotonic().after(Duration::from_millis(50));
            task.relax(RelaxOrder { container, high: Bytes(1), until: soon }).await;
            assert!(was_asked.try_recv().is_ok() && monotonic() >= soon);
        });
    }
}
