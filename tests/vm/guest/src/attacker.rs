//! The two kinds of attackers that own a cgroup: a user with a delegated subtree, and root in a container.

use crate::cgroup::Cgroup;
use crate::hog_tests::guest;
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{Gid, Uid, chown};
use std::path::PathBuf;
use std::process::{Child, Command};

/// The user that a subtree is delegated to.
const USER: u32 = 1000;

/// What owns a cgroup and runs in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attacker {
    /// A user with a subtree that is delegated as systemd does it (`User=`, `Delegate=`).
    User,
    /// Root in a container that is not privileged.
    Container,
    /// The same in a user namespace that it made, with a mount of its cgroups that it may write.
    ContainerWithUsers,
}

impl Attacker {
    /// A cgroup of its own below user.slice.
    pub(crate) fn home(self, name: &str) -> Result<Cgroup> {
        let home = Cgroup::create(&format!("user.slice/{name}"))?;
        home.write("pids.max", "400")?;
        if self == Self::User {
            // A cgroup for the user's first process, because one with children that count memory holds none.
            let first = Cgroup::create(&format!("user.slice/{name}/init"))?;
            ensure!(first.read("memory.low")?.trim() == "0", "the memory controller is on below {name}");
            for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
                chown(home.path().join(file), Some(Uid::from_raw(USER)), Some(Gid::from_raw(USER)))?;
            }
            for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "cgroup.freeze"] {
                chown(first.path().join(file), Some(Uid::from_raw(USER)), Some(Gid::from_raw(USER)))?;
            }
        }
        Ok(home)
    }

    /// Has it run a shell script, which begins in the directory of its cgroup where it may write that.
    pub(crate) fn run(self, home: &Cgroup, script: &str) -> Result<Child> {
        self.start(home, &["/bin/busybox", "sh", "-ec", script])
    }

    /// Has it run a program.
    pub(crate) fn start(self, home: &Cgroup, program: &[&str]) -> Result<Child> {
        let mut command = guest();
        match self {
            Self::User => {
                command.args(["within", "--uid", &USER.to_string(), "--cgroup"]).arg(home.path().join("init"));
                command.current_dir(home.path());
            }
            Self::Container => _ = command.args(["contained", "--cgroup"]).arg(home.path()),
            Self::ContainerWithUsers => {
                command.args(["contained", "--own-users", "--cgroup"]).arg(home.path());
            }
        }
        command.arg("--").args(program).spawn().context("cannot start what attacks")
    }

    /// Cgroups that it must not change, beside those of others.
    pub(crate) fn forbidden(self, home: &Cgroup) -> Vec<PathBuf> {
        match self {
            Self::User => Vec::new(),
            Self::Container | Self::ContainerWithUsers => vec!["/sys/fs/cgroup".into(), home.path().to_owned()],
        }
    }
}

/// Removes cgroups that lie so deep that no path leads to them: `depth` of one name, each in the one before.
pub(crate) fn remove_nested(home: &Cgroup, name: &str, depth: usize) -> Result<()> {
    let script = format!(
        "n={name}; for i in $(seq {depth}); do cd -P $n; done; for i in $(seq {depth}); do cd -P ..; rmdir $n; done"
    );
    let mut shell = Command::new("/bin/busybox");
    let ended = shell.args(["sh", "-ec", &script]).current_dir(home.path()).status()?;
    ensure!(ended.success(), "cannot remove {depth} cgroups in each other: {ended}");
    Ok(())
}
