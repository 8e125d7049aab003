//! What `check` reports of the API server: whether it answers, what the agent's token may not do there, and which pods it
//! lists.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use plimsoll_config::{Configuration, Taint};
use plimsoll_inventory::Source;
use plimsoll_kube::{Right, SERVICE_ACCOUNT, client, dial_to, list, missing_rights};
use rustix::io::Errno;
use tokio::time::{Instant, timeout_at};

use super::pod_facts::UNREAD;
use super::{Row, bounded, row};
use crate::services::{ClusterSettings, Listed, PodReader, facts_of, node_name};

/// For the look-up of a name, the connection and all answers together.
const LIMIT: Duration = Duration::from_secs(5);

/// What answered, or why nothing did.
pub(super) type ClusterFacts = Result<Answer, String>;

/// An API server that answered.
pub(super) struct Answer {
    address: String,
    node: String,
    missing: Vec<&'static Right>,
    /// The pods of the node, or why it does not list them.
    pods: Result<Listed, String>,
}

impl Answer {
    /// The pods of the node, where it lists them.
    pub(super) fn listed(&self) -> Option<&Listed> {
        self.pods.as_ref().ok()
    }
}

/// Asks the API server; absent where none is configured.
pub(super) fn ask(configuration: &Configuration, account: Option<Result<OwnedFd, Errno>>) -> Option<ClusterFacts> {
    configuration.machine.cluster.is_on().then(|| answer(configuration, account).map_err(|error| format!("{error:#}")))
}

fn answer(configuration: &Configuration, account: Option<Result<OwnedFd, Errno>>) -> anyhow::Result<Answer> {
    let cluster = &configuration.machine.cluster;
    let account = account.transpose().with_context(|| format!("cannot open {SERVICE_ACCOUNT}"))?;
    let access = ClusterSettings::access_of(configuration, account)?;
    let access = access.ok_or_else(|| anyhow::anyhow!("none is configured"))?;
    let (node, taints) = (node_name(configuration)?, cluster.taint != Taint::None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let deadline = Instant::now() + LIMIT;
    let asked = async {
        // A resolver waits for as long as it likes, in a thread that ends with this process.
        let (access, address) = tokio::task::spawn_blocking(move || {
            let address = access.resolve();
            (access, address)
        })
        .await?;
        let address = address?;
        let (client, _) = client(access, dial_to(address));
        let missing =
            missing_rights(&client, &node, taints).await.map_err(|why| anyhow::anyhow!("{address}: {why}"))?;
        // What it answered of rights is kept where this takes too long.
        let pods = match timeout_at(deadline, list(&client, &node)).await {
            Ok(Ok(list)) => facts_of(list.as_bytes(), &mut PodReader::default()).map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {LIMIT:?}")),
        };
        Ok(Answer { address: address.to_string(), node, missing, pods })
    };
    // The clock of a time limit is the runtime's.
    let answer = runtime.block_on(async { timeout_at(deadline, asked).await });
    runtime.shutdown_background();
    answer.unwrap_or_else(|_| anyhow::bail!("it does not answer within {LIMIT:?}"))
}

pub(super) fn cluster_row(facts: &ClusterFacts) -> Row {
    let name = "API server";
    let Answer { address, node, missing, pods } = match facts {
        Ok(answer) => answer,
        Err(why) => return row(name, false, bounded(why), Source::ApiServer.lost()),
    };
    let (mut troubles, mut advice) = (Vec::new(), Vec::new());
    if !missing.is_empty() {
        let rights: Vec<_> = missing.iter().map(ToString::to_string).collect();
        troubles.push(format!("the agent may not {}", rights.join(", ")));
        let lost: Vec<_> = missing.iter().map(|right| right.lost).collect();
        advice.push(format!("{}: give it the rights of cluster.md", lost.join("; ")));
    }
    match pods {
        Ok(Listed { first_error: None, .. }) => {}
        Ok(Listed { first_error: Some(error), unread, .. }) => {
            troubles.push(format!("of the pods that it lists {unread} cannot be read; line {error}"));
            advice.push(UNREAD.to_owned());
        }
        Err(why) => {
            troubles.push(format!("it does not list the pods: {why}"));
            advice.push(Source::ApiServer.lost().to_owned());
        }
    }
    if troubles.is_empty() {
        troubles.push("the agent may do all that it needs there".to_owned());
    }
    let found = format!("{address}, for the node {node}: {}", troubles.join("; "));
    row(name, advice.is_empty(), bounded(&found), &advice.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_be_asked_is_a_row_that_says_what_is_lost() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let kubeconfig = folder.path().join("kubeconfig");
        let mut configuration = Configuration::default();
        assert!(ask(&configuration, None).is_none(), "none is configured");
        configuration.machine.cluster.kubeconfig = Some(kubeconfig.clone());
        let show = |configuration: &Configuration| cluster_row(&ask(configuration, None).expect("one is configured"));
        let Row { found, advice, .. } = show(&configuration);
        assert!(found.contains("kubeconfig") && advice == Source::ApiServer.lost(), "{found}");
        std::fs::write(&kubeconfig, "{}").expect("writable");
        assert!(show(&configuration).found.contains("current-context"));
    }

    #[test]
    fn what_the_token_may_not_do_is_named_with_what_is_lost() {
        let answer = |missing, pods| Ok(Answer { address: "10.0.0.1:6443".into(), node: "n1".into(), missing, pods });
        assert_eq!(cluster_row(&answer(Vec::new(), Ok(Listed::default()))).advice, "");
        let Row { found, advice, .. } = cluster_row(&answer(Vec::new(), Err("it is busy".into())));
        assert!(found.ends_with("it does not list the pods: it is busy") && !advice.is_empty(), "{found}: {advice}");
        let rights = Right::all().iter().collect::<Vec<_>>();
        let Row { found, advice, .. } = cluster_row(&answer(rights, Err("403".into())));
        assert!(found.contains("may not list pods, watch pods, patch pods/status"), "{found}");
        assert!(found.ends_with("; it does not list the pods: 403"), "{found}");
        assert!(advice.contains("evictions have no events; "), "{advice}");
        let listed = facts_of(br#"{"items": [{"metadata": {"uid": 7}}]}"#, &mut PodReader::default());
        let Row { found, advice, .. } = cluster_row(&answer(Vec::new(), Ok(listed.expect("it is a list"))));
        assert!(found.contains("of the pods that it lists 1 cannot be read; line ") && advice == UNREAD, "{found}");
    }
}
