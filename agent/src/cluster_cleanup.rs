//! `plimsoll cluster-cleanup`: removes from nodes' objects what agents that are gone have left there.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use plimsoll_kube::{Client, Dial, SERVICE_ACCOUNT, client, node};
use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::time::timeout;

use crate::options::Options;
use crate::services::{ClusterSettings, node_name};

/// How long one node may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Options of `plimsoll cluster-cleanup`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Of all nodes, and not of the configuration's alone; by the service account of the pod that this runs in unless the
    /// configuration names a kubeconfig.
    #[arg(long)]
    all_nodes: bool,
}

/// Removes Plimsoll's conditions and taints, and nothing else.
pub(crate) fn main(Arguments { options, all_nodes }: &Arguments) -> anyhow::Result<u8> {
    let mut configuration = options.load(None)?;
    let cluster = &mut configuration.machine.cluster;
    cluster.in_cluster |= *all_nodes && cluster.kubeconfig.is_none();
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let account = cluster.in_cluster.then(|| openat(CWD, SERVICE_ACCOUNT, how, Mode::empty()));
    let account = account.transpose().with_context(|| format!("cannot open {SERVICE_ACCOUNT}"))?;
    let Some(access) = ClusterSettings::access_of(&configuration, account)? else {
        bail!("no cluster is configured: set machine.cluster.kubeconfig or machine.cluster.inCluster")
    };
    let address = access.resolve()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, _) = client(access, Dial::to(address));
        let names = if *all_nodes { names(&client).await? } else { vec![node_name(&configuration)?] };
        let mut failed = Vec::new();
        for name in &names {
            match timeout(PATIENCE, node::clean(&client, name)).await {
                Ok(Ok(())) => println!("node {name} has no conditions and taints of Plimsoll's"),
                Ok(Err(error)) => failed.push(format!("{name}: {error}")),
                Err(_) => failed.push(format!("{name}: {address} did not answer within a minute")),
            }
        }
        ensure!(failed.is_empty(), "conditions and taints of these nodes are left: {}", failed.join("; "));
        Ok(0)
    })
}

async fn names(client: &Client) -> anyhow::Result<Vec<String>> {
    let listed =
        timeout(PATIENCE, node::names(client)).await.context("the API server did not answer within a minute")?;
    listed.context("nodes cannot be listed")
}
