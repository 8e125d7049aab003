//! Where the API server is: looked up by a thread of its own, since a resolver may take long, and again until it is found.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;

use crate::services::ClusterSettings;

/// Between two tries.
const AGAIN: Duration = Duration::from_secs(10);

/// The address, once it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct ApiServer(Arc<OnceLock<SocketAddr>>);

impl ApiServer {
    /// Begins to look it up.
    pub(super) fn look_up(settings: ClusterSettings) -> anyhow::Result<Self> {
        Self::by(move || Ok(settings.access().resolve()?))
    }

    fn by(resolve: impl Fn() -> anyhow::Result<SocketAddr> + Send + 'static) -> anyhow::Result<Self> {
        let found = Self::default();
        let place = found.clone();
        let thread = std::thread::Builder::new().name("resolver".into()).spawn(move || {
            let mut is_logged = false;
            loop {
                match resolve() {
                    Ok(address) => {
                        if is_logged {
                            tracing::info!("the API server is at {address}");
                        }
                        // It is set here alone.
                        let _ = place.0.set(address);
                        return;
                    }
                    Err(error) if !is_logged => tracing::warn!("the API server is not connected to: {error:#}"),
                    Err(_) => {}
                }
                is_logged = true;
                std::thread::sleep(AGAIN);
            }
        });
        thread.context("cannot start the thread that looks up the API server")?;
        Ok(found)
    }

    /// Where it is; absent until that is known.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.0.get().copied()
    }
}

impl From<SocketAddr> for ApiServer {
    fn from(address: SocketAddr) -> Self {
        Self(Arc::new(OnceLock::from(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Instant;

    #[test]
    fn a_resolver_that_does_not_answer_is_waited_for_by_nothing_and_what_it_says_later_counts() {
        let (answer, answers) = mpsc::channel();
        let found = ApiServer::by(move || Ok(answers.recv()?)).expect("a thread");
        assert_eq!(found.address(), None);
        let address = SocketAddr::from(([192, 0, 2, 1], 6443));
        answer.send(address).expect("it waits");
        let begun = Instant::now();
        while found.address().is_none() && begun.elapsed() < Duration::from_mins(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(found.address(), Some(address));
    }
}
