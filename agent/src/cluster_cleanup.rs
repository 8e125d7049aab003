//! `plimsoll cluster-cleanup`: removes from nodes' objects what agents that are gone have left there.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll_kube::{Client, client, dial_to, is_gone, node, stale};
use tokio::time::timeout;

use crate::cluster_client;
use crate::options::Options;
use crate::services::node_name;

/// Exit codes, as `--help` has them.
const CODES: &str = "Exit codes: 0 none of the nodes that were meant has conditions or taints of Plimsoll's; 1 those of some \
nodes are left, which are named, or nodes could not be listed; 2 wrong arguments or configuration.";

/// How long one node may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Options of `plimsoll cluster-cleanup`.
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Clean up all nodes, and not the configuration's alone; by the service account of the pod that this runs in unless
    /// the configuration names a kubeconfig.
    #[arg(long)]
    all_nodes: bool,
    /// Clean up those nodes alone whose agent is gone: its newest heartbeat is older than ten minutes, two periods. Nodes
    /// with an agent are left as they are. By the same account.
    #[arg(long, conflicts_with = "all_nodes")]
    stale: bool,
}

/// Removes Plimsoll's conditions and taints, and nothing else.
pub(crate) fn main(Arguments { options, all_nodes, stale }: &Arguments) -> anyhow::Result<u8> {
    let mut configuration = options.load(None)?;
    let cluster = &mut configuration.machine.cluster;
    cluster.in_cluster |= (*all_nodes || *stale) && cluster.kubeconfig.is_none();
    let account = configuration.machine.cluster.in_cluster.then(crate::supervisor::service_account);
    let access = cluster_client::access(&configuration, account.as_ref())?;
    let address = access.resolve()?;
    cluster_client::runtime()?.block_on(async {
        let (client, _) = client(access, dial_to(address));
        let names = match (*all_nodes, *stale) {
            (true, _) => listed(node::names(&client)).await?,
            (_, true) => listed(stale::names(&client)).await?,
            (false, false) => vec![node_name(&configuration)?],
        };
        let mut failed = Vec::new();
        for name in &names {
            match timeout(PATIENCE, clean(&client, name, *stale)).await {
                Ok(Ok(true)) => println!("node {name} has no conditions and taints of Plimsoll's"),
                Ok(Ok(false)) => println!("node {name} has an agent again"),
                // It was listed before.
                Ok(Err(error)) if *all_nodes && is_gone(&error) => println!("node {name} is gone"),
                Ok(Err(error)) => failed.push(format!("{name}: {error}")),
                Err(_) => failed.push(format!("{name}: {address} did not answer within a minute")),
            }
        }
        ensure!(failed.is_empty(), "conditions and taints of these nodes are left: {}", failed.join("; "));
        Ok(0)
    })
}

/// Whether they were removed; with `stale` they are left where an agent is there again.
async fn clean(client: &Client, name: &str, stale: bool) -> plimsoll_kube::Result<bool> {
    if stale { stale::clean(client, name).await } else { node::clean(client, name).await.map(|()| true) }
}

async fn listed(names: impl Future<Output = plimsoll_kube::Result<Vec<String>>>) -> anyhow::Result<Vec<String>> {
    let listed = timeout(PATIENCE, names).await.context("the API server did not answer within a minute")?;
    listed.context("nodes cannot be listed")
}
