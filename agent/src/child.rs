//! What the supervisor starts each of its processes with.

use std::os::fd::OwnedFd;

use anyhow::ensure;
use plimsoll_config::{Configuration, LogFormat};
use plimsoll_report::{LevelFilter, Log};
use rustix::process::{Pid, getppid};

use crate::options::Options;
use crate::{inherit, inherited_config};

/// The OOM killer's adjustment of `services`, the scanner and the broker: as other processes of the machine have it, so that
/// their sizes decide. They inherit the supervisor's, and are the ones that can be spared and that a list of pods may make
/// large. A higher one would have them be first while they are small, which gives nothing back, just when what happens has to be
/// reported.
pub(crate) const SPARED_OOM_SCORE: i16 = 0;

/// The arguments that the core, the reporter, `services`, the scanner and the broker have in common.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArguments {
    #[command(flatten)]
    pub(crate) options: Options,
    /// The socket by which queues are handed over: those of a core to the reporter, and the way to a core to services,
    /// the scanner and the broker.
    #[arg(long)]
    queues: i32,
    /// The configuration as the supervisor read it.
    #[arg(long)]
    inherited_config: Option<i32>,
    /// For services: the directory of the service account, which may be in a container's mounts.
    #[arg(long)]
    service_account: Option<i32>,
    /// For the scanner: the way by which it asks what the kernel counts for projects.
    #[arg(long)]
    quotas: Option<i32>,
    /// For services: the way by which manifests of static pods are asked for.
    #[arg(long)]
    manifests: Option<i32>,
    /// The supervisor's process.
    #[arg(long)]
    pub(crate) supervisor: Option<i32>,
}

impl ChildArguments {
    /// Takes over the socket by which queues are handed over. May be called once.
    ///
    /// # Errors
    /// Where this process was not started by the supervisor.
    pub(crate) fn socket(&self) -> anyhow::Result<OwnedFd> {
        inherit::take(self.queues)
    }

    /// Takes over the directory of the service account, if one was handed over. May be called once.
    ///
    /// # Errors
    /// Where this process was not started by the supervisor.
    pub(crate) fn service_account(&self) -> anyhow::Result<Option<OwnedFd>> {
        self.service_account.map(inherit::take).transpose()
    }

    /// Takes over the way by which the scanner asks what the kernel counts for projects, if there is one. May be called once.
    ///
    /// # Errors
    /// Where this process was not started by the supervisor.
    pub(crate) fn quotas(&self) -> anyhow::Result<Option<OwnedFd>> {
        self.quotas.map(inherit::take).transpose()
    }

    /// Takes over the way by which manifests of static pods are asked for, if one was handed over. May be called once.
    ///
    /// # Errors
    /// Where this process was not started by the supervisor.
    pub(crate) fn manifests(&self) -> anyhow::Result<Option<OwnedFd>> {
        self.manifests.map(inherit::take).transpose()
    }

    /// Reads the inherited configuration; the files where none was inherited. May be called once.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub(crate) fn configuration(&self, own_cgroup: Option<String>) -> anyhow::Result<Configuration> {
        inherited_config::configuration(&self.options, self.inherited_config, own_cgroup)
    }

    /// Starts this process's log on standard output, with what could not be had until then. Gives it with its level.
    ///
    /// # Errors
    /// Where its thread cannot be started.
    pub(crate) fn start_log(&self, format: LogFormat, troubles: Vec<String>) -> anyhow::Result<(Log, LevelFilter)> {
        let level = self.options.log_level();
        let log = Log::start(format, level, std::io::stdout(), || {})?;
        log.install()?;
        for trouble in troubles {
            tracing::warn!("{trouble}");
        }
        Ok((log, level))
    }

    /// Call it after this process asked for the signal of its parent's death: where the supervisor died before, it would
    /// never be ended.
    ///
    /// # Errors
    /// Where it did.
    pub(crate) fn ensure_supervised(&self) -> anyhow::Result<()> {
        self.supervisor.map_or(Ok(()), ensure_child_of)
    }
}

/// Fails where the supervisor died already and this process was given to another parent.
pub(crate) fn ensure_child_of(supervisor: i32) -> anyhow::Result<()> {
    let parent = getppid().map(Pid::as_raw_pid);
    ensure!(parent == Some(supervisor), "the supervisor is gone");
    Ok(())
}
