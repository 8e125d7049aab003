//! A machine with a threshold, an agent that watches it, and bystanders that must survive.
//!
//! The order is always the same: bystanders, the threshold below what is available, the agent, and then what grows.

use crate::agent::{Agent, Settings};
use crate::cgroup::{self, Cgroup};
use crate::hog_tests::{Hog, guest};
use crate::machine::{self, wait_for};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// One mebibyte.
pub(crate) const MIB: u64 = 1 << 20;

/// Long enough for what takes a fraction of a second on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// How long the agent's report of a kill is waited for.
const REPORTED: Duration = Duration::from_secs(2);

/// What a scenario plays in.
pub(crate) struct Scene {
    /// The agent.
    pub(crate) agent: Agent,
    /// How it was set up.
    pub(crate) settings: Settings,
    bystanders: Vec<(&'static str, Child)>,
    oom_kills: u64,
}

/// Cgroups of processes that hold a little memory each: above and below the hog in priority, and outside of its slice.
const BYSTANDERS: &[&str] = &["work.slice/high", "work.slice/low", "other.slice/idle"];

/// The threshold that lies `room` MiB below what is available now.
pub(crate) fn threshold_below(room: u64) -> Result<u64> {
    machine::meminfo("MemAvailable")?
        .checked_sub(room * MIB)
        .with_context(|| format!("there are no {room} MiB available; give the machine more memory"))
}

impl Scene {
    /// A threshold `room` MiB below what is available, and an agent with the usual settings.
    pub(crate) fn set(room: u64) -> Result<Self> {
        Self::set_with(room, |_| {})
    }

    /// The same, with settings changed before the agent starts.
    pub(crate) fn set_with(room: u64, change: impl FnOnce(&mut Settings)) -> Result<Self> {
        let mut scene = Self::launch_with(room, change)?;
        scene.agent.wait_ready(Duration::from_mins(1))?;
        Ok(scene)
    }

    /// The same, without waiting for the agent to be ready.
    pub(crate) fn launch_with(room: u64, change: impl FnOnce(&mut Settings)) -> Result<Self> {
        let mut bystanders = Vec::new();
        // A reservation counts as far as that of the slices around it.
        for slice in ["work.slice", "other.slice"] {
            Cgroup::create(slice)?.write("memory.low", "512M")?;
        }
        for name in BYSTANDERS {
            let cgroup = Cgroup::create(name)?;
            // It keeps to its reservation, whatever its priority.
            cgroup.write("memory.low", "32M")?;
            let child = guest().args(["idle", "--mib", "4", "--cgroup"]).arg(cgroup.path()).spawn()?;
            wait_for("a bystander is in place", PATIENCE, || Ok(cgroup.current()? >= 4 * MIB))?;
            bystanders.push((*name, child));
        }
        // What the agent takes for itself is not part of the room.
        let agent_bytes = 24 * MIB;
        let mut settings = Settings::with_threshold(threshold_below(room)?.saturating_sub(agent_bytes));
        change(&mut settings);
        let agent = Agent::launch(&settings)?;
        Ok(Self { agent, settings, bystanders, oom_kills: machine::oom_kills()? })
    }

    /// All bystanders live and the OOM killer did not fire.
    pub(crate) fn check(&mut self) -> Result<()> {
        let kills = machine::oom_kills()? - self.oom_kills;
        ensure!(kills == 0, "the OOM killer fired {kills} times");
        for (name, child) in &mut self.bystanders {
            let ended = child.try_wait()?;
            if ended.is_some() {
                // It kills first and reports later.
                let reported = || Ok(!self.agent.kills(name, "begun").is_empty());
                let _ = wait_for("the kill is reported", REPORTED, reported);
                bail!("the bystander in {name} died: {ended:?}; {}", self.agent.why_killed(name));
            }
        }
        ensure!(self.agent.running()?, "the agent ended");
        Ok(())
    }

    /// Takes note that the OOM killer fired once, as it had to.
    pub(crate) fn expect_oom_kill(&mut self) -> Result<()> {
        let kills = machine::oom_kills()? - self.oom_kills;
        ensure!(kills == 1, "the OOM killer fired {kills} times where it had to once");
        self.oom_kills += kills;
        Ok(())
    }

    /// Waits until the hog was killed, and by the agent: its own log reports it.
    pub(crate) fn expect_killed(&mut self, hog: &mut Hog, victim: &Cgroup) -> Result<()> {
        self.expect_dead(&mut hog.child, victim)?;
        self.expect_reported(victim)
    }

    /// Waits until the process was killed, checks the others, and that nothing is left frozen or stopped.
    pub(crate) fn expect_dead(&mut self, hog: &mut Child, victim: &Cgroup) -> Result<()> {
        let mut ended = None;
        wait_for("the hog is killed", PATIENCE, || {
            self.check()?;
            ended = hog.try_wait()?;
            Ok(ended.is_some())
        })
        .with_context(|| format!("the agent's log ends with: {}", crate::agent::tail(&self.agent.text())))?;
        ensure!(ended.is_some_and(was_killed), "the hog ended by itself: {ended:?}");
        wait_for("the victim's cgroup is empty", PATIENCE, || Ok(!victim.populated()?))?;
        self.settled()
    }

    /// Waits until the agent reports that it killed the victim.
    pub(crate) fn expect_reported(&self, victim: &Cgroup) -> Result<()> {
        let name = victim.name();
        wait_for("the agent reports the kill", PATIENCE, || Ok(!self.agent.kills(name, "begun").is_empty()))
            .with_context(|| format!("of {name}; the log ends with: {}", crate::agent::tail(&self.agent.text())))
    }

    /// Nothing is frozen or stopped, within the time that a brake may last.
    pub(crate) fn settled(&mut self) -> Result<()> {
        wait_for("nothing stays frozen or stopped", PATIENCE, || Ok(held().is_empty()))
            .with_context(|| format!("held: {}", held().join(", ")))?;
        self.check()
    }

    /// Stops the agent and checks that it leaves nothing behind.
    pub(crate) fn end(mut self) -> Result<()> {
        self.check()?;
        let tampered: Vec<_> = self.agent.lines().into_iter().filter(|line| line["tampered"].is_string()).collect();
        ensure!(tampered.is_empty(), "the agent reports changes that no program made: {tampered:?}");
        self.agent.stop()?;
        ensure!(held().is_empty(), "after the agent's end are held: {}", held().join(", "));
        for (_, child) in &mut self.bystanders {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

/// Lets this process, and what it starts, have as many files open as the shipped unit does: what a machine has unless it is
/// set leaves the agent room for fewer workloads than there are rows.
pub(crate) fn allow_files_of_the_unit() -> Result<()> {
    let files = Some(65536);
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files })
        .context("cannot raise the limit of open files")
}

/// Whether a process ended by SIGKILL: one that fails ends by itself.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// What is frozen or stopped on this machine, for messages.
pub(crate) fn held() -> Vec<String> {
    let mut held: Vec<String> = cgroup::all()
        .into_iter()
        .filter(|path| std::fs::read_to_string(path.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1"))
        .map(|path| format!("{} is frozen", path.display()))
        .collect();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok())
            && machine::process_state(pid) == Some('T')
        {
            held.push(format!("process {pid} is stopped"));
        }
    }
    held
}
