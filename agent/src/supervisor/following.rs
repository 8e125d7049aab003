//! Going on with what another kubelet is configured with.

use super::{CORE_GRACE, ChildProcess, Linked, Supervisor, log_warnings};
use crate::inherited_config::InheritedConfig;
use crate::running_kubelet::Changed;
use crate::services;

impl Supervisor {
    /// All processes are started anew with it, the core when it has
    /// finished what it began. What is kept for the next core holds on.
    pub(super) fn go_on_with(&mut self, Changed { options, configuration, read }: Changed) {
        match InheritedConfig::new(&read) {
            Ok(inherited) => self.inherited_config = inherited,
            Err(error) => {
                tracing::warn!(
                    "the kubelet's new configuration does not hold until the agent is started again: {error:#}"
                );
                return;
            }
        }
        tracing::warn!("the kubelet was started with another configuration, and the agent goes on with that");
        self.watchdog.forget();
        self.core.stop(CORE_GRACE);
        self.undo();
        self.take_queues();
        self.stop_others();
        (self.to_reporter, self.to_services) = (None, None);
        let log_level = self.options.log_level;
        self.options = options;
        self.options.log_level = log_level;
        self.observes_disks = services::disks_are_configured(&configuration);
        let needs_services = self.observes_disks || services::knows_pods(&configuration);
        self.services = needs_services.then(|| ChildProcess::new("services"));
        (self.scanner, self.broker) = (Linked::scanner(&configuration), Linked::broker(&configuration));
        self.runtime_sockets.follow(&configuration);
        (self.core, self.reporter) = (ChildProcess::new("core"), ChildProcess::new("reporter"));
        self.configuration = configuration;
        log_warnings(&self.configuration);
    }
}
