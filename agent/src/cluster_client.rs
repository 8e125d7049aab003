//! A client of the cluster's API server for a command: it connects itself, and ends with it.

use std::time::Duration;

use anyhow::Context as _;
use plimsoll_config::{ConfigError, Configuration, Problem};
use plimsoll_kube::{Access, SERVICE_ACCOUNT, client, dial_to, list};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use tokio::runtime::{Builder, Runtime};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::services::{ClusterSettings, node_name};

/// How long a list of pods may take in all: a person waits for it.
const LIST: Duration = Duration::from_secs(5);

/// Where the API server is, and what it is shown: by the directory of the pod's service account, opened as
/// [`service_account`](crate::supervisor::service_account) does, or a kubeconfig.
///
/// # Errors
/// Where no cluster is configured, or what is named cannot be read.
pub(crate) fn access(
    configuration: &Configuration,
    account: Option<&Result<OwnedFd, Errno>>,
) -> anyhow::Result<Access> {
    let account = account.map(|opened| match opened {
        Ok(directory) => directory.try_clone().map_err(anyhow::Error::from),
        Err(errno) => Err(anyhow::Error::from(*errno)),
    });
    let account = account.transpose().with_context(|| format!("cannot open {SERVICE_ACCOUNT}"))?;
    ClusterSettings::access_of(configuration, account)?.ok_or_else(|| {
        let expected =
            "no cluster is configured: set machine.cluster.kubeconfig or machine.cluster.inCluster".to_owned();
        let (file, key) = ("default".to_owned(), "machine.cluster".to_owned());
        ConfigError(vec![Problem { file, line: None, key, value: None, expected }]).into()
    })
}

/// One thread, with a clock and sockets.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// The pods of this node as the API server lists them, in JSON. Asked once, within [`LIST`].
///
/// Not by the journal: that has the numbers that the core is sent, and no names; it belongs to another user, and the agent
/// that runs has it locked. Where the API server does not answer, a list in a file does (`--pods`).
///
/// # Errors
/// Where it is not reached in time, or refuses.
pub(crate) fn pods(configuration: &Configuration, account: Option<&Result<OwnedFd, Errno>>) -> anyhow::Result<String> {
    pods_within(configuration, account, LIST)
}

fn pods_within(
    configuration: &Configuration,
    account: Option<&Result<OwnedFd, Errno>>,
    limit: Duration,
) -> anyhow::Result<String> {
    let (access, node) = (access(configuration, account)?, node_name(configuration)?);
    let runtime = runtime()?;
    let asked = async {
        // A resolver may take longer, and cannot be ended.
        let found = spawn_blocking(|| access.resolve().map(|address| (access, address))).await?;
        let (access, address) = found?;
        let (client, _) = client(access, dial_to(address));
        let listed = list(&client, &node).await;
        listed.with_context(|| format!("the API server at {address} does not list the pods of node {node}"))
    };
    // The clock of a time limit is the runtime's.
    let listed = runtime.block_on(async { timeout(limit, asked).await });
    runtime.shutdown_background();
    listed.with_context(|| format!("the API server does not answer within {limit:?}"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Instant;

    /// A self-signed authority, of which no test has the key.
    const AUTHORITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/authority.pem");

    /// With a kubeconfig for a server at this address.
    fn configuration(folder: &tempfile::TempDir, address: &str) -> Configuration {
        let path = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             clusters: [{{name: a, cluster: {{server: 'https://{address}', certificate-authority: {AUTHORITY}}}}}]\n\
             users: [{{name: a, user: {{token: t}}}}]\n"
        );
        std::fs::write(&path, text).expect("writable");
        let text = format!("machine: {{cluster: {{kubeconfig: {}, nodeName: n1}}}}", path.display());
        plimsoll_config::parse(&text, "f").expect("it is in order")
    }

    #[test]
    fn an_api_server_that_is_away_or_silent_is_an_error_in_time_that_says_so() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let of = |listener: &TcpListener| listener.local_addr().expect("it has one").to_string();
        // Its port is free again.
        let away = of(&TcpListener::bind("127.0.0.1:0").expect("a port"));
        for (address, expected) in [(away, "does not list the pods of node n1"), (of(&silent), "within 300ms")] {
            let (configuration, begun) = (configuration(&folder, &address), Instant::now());
            let error = pods_within(&configuration, None, Duration::from_millis(300)).expect_err("nothing answers");
            assert!(format!("{error:#}").contains(expected), "{address}: {error:#}");
            assert!(begun.elapsed() < LIST, "{address}: {:?}", begun.elapsed());
        }
        let none = pods(&Configuration::default(), None).expect_err("no cluster is configured");
        assert!(none.is::<ConfigError>() && none.to_string().contains("machine.cluster.kubeconfig"), "{none}");
    }
}
