//! The kubelet that runs on this machine, by whose configuration the agent goes: found by the socket that it listens on, and
//! followed when it is started anew. A kubelet reads its files when it starts and never again, so that what changed in them
//! has no effect before that here either.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{io, thread};

use plimsoll_config::{ConfigError, Configuration, RunningKubelet, Snapshot};
use plimsoll_inventory::identify;
use plimsoll_node::process::{self, Pid};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::node_services::{KUBELET_SOCKETS, listener};
use crate::options::Options;

/// How often a kubelet is looked for while none runs.
const PERIOD: Duration = Duration::from_secs(1);
/// The thread's stack, locked like all memory of the supervisor: files are parsed on it.
const STACK: usize = 1 << 20;

/// The kubelet that listens below its directory `root`, on this machine or, for a process in a container, where the machine's
/// first process has it. A process in a pod is none, whatever it listens on.
pub(crate) fn find(root: &Path) -> RunningKubelet {
    // The other one is in a directory into which pods with plugins for devices write.
    let socket = root.join(KUBELET_SOCKETS[0]);
    let of_machine = Path::new("/proc/1/root").join(socket.strip_prefix("/").unwrap_or(&socket));
    let found = listener(&socket).or_else(|| listener(&of_machine));
    match found.filter(|process| is_of_no_pod(*process)) {
        Some(process) => RunningKubelet::Process(process.as_raw_nonzero().get().unsigned_abs()),
        None => RunningKubelet::NotFound(format!("no process of root's outside pods listens on {}", socket.display())),
    }
}

fn is_of_no_pod(process: Pid) -> bool {
    process::cgroup_path(Some(process)).is_some_and(|path| identify(&path).is_none())
}

/// What a kubelet that was started anew is configured with.
#[derive(Debug)]
pub(crate) struct Changed {
    /// With that kubelet.
    pub(crate) options: Options,
    pub(crate) configuration: Configuration,
    pub(crate) read: Snapshot,
}

/// What the thread that follows the kubelet goes by.
struct Follower {
    options: Options,
    read: Snapshot,
    /// The kubelet of which that was read. The one of the options may be a later one, which had what is not in order.
    read_of: Option<u32>,
    root: PathBuf,
    own_cgroup: Option<String>,
}

/// Has a thread look for the next kubelet when this one ends. It sends each configuration that is another one, after which
/// it writes to `wake`. What is not in order is logged, and the configuration before it holds.
pub(crate) fn follow(
    options: &Options,
    configuration: &Configuration,
    read: Snapshot,
    own_cgroup: Option<String>,
    wake: UnixStream,
) -> io::Result<Receiver<Changed>> {
    let mut follower = Follower {
        options: options.clone(),
        read,
        read_of: options.kubelet_process(),
        root: configuration.kubelet_root(),
        own_cgroup,
    };
    let (sender, receiver) = channel();
    let following = move || {
        loop {
            follower.wait();
            match follower.look() {
                Ok(Some(changed)) => {
                    if sender.send(changed).is_err() {
                        return;
                    }
                    let _ = io::Write::write(&mut &wake, b"k");
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        "the kubelet was started with what is not in order, and the configuration before it holds: {error}"
                    );
                }
            }
        }
    };
    thread::Builder::new().name("running-kubelet".into()).stack_size(STACK).spawn(following)?;
    Ok(receiver)
}

impl Follower {
    /// Waits until the kubelet that is known has ended, or for one that may be there.
    fn wait(&self) {
        match self.opened() {
            Some(kubelet) => while let Err(Errno::INTR) = poll(&mut [PollFd::new(&kubelet, PollFlags::IN)], None) {},
            None => thread::sleep(PERIOD),
        }
    }

    /// The kubelet that is known, if it still listens: its number may be another process's by now.
    fn opened(&self) -> Option<OwnedFd> {
        let process = self.options.kubelet_process()?;
        let kubelet = process::open(Pid::from_raw(process.cast_signed())?).ok()?;
        (find(&self.root).process() == Some(process)).then_some(kubelet)
    }

    /// The configuration of a kubelet that was started since, if that is another one.
    fn look(&mut self) -> Result<Option<Changed>, ConfigError> {
        self.take(find(&self.root))
    }

    fn take(&mut self, found: RunningKubelet) -> Result<Option<Changed>, ConfigError> {
        if found.process().is_none() || found.process() == self.options.kubelet_process() {
            return Ok(None);
        }
        let options = self.options.with_kubelet(found);
        // It is not looked at again, whatever it has.
        self.options = options.clone();
        let (configuration, read) = options.load_anew(&self.read, self.own_cgroup.clone())?;
        let process = options.kubelet_process();
        let is_same = read.is_the_same_of(process, &self.read, self.read_of);
        (self.read, self.read_of) = (read.clone(), process);
        Ok((!is_same).then_some(Changed { options, configuration, read }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    #[test]
    fn a_process_of_roots_that_listens_as_the_kubelet_does_is_found() {
        let root = tempfile::tempdir().expect("a directory");
        let RunningKubelet::NotFound(why) = find(root.path()) else { panic!("nothing listens") };
        let socket = root.path().join(KUBELET_SOCKETS[0]);
        assert!(why.ends_with(&format!("listens on {}", socket.display())), "{why}");
        std::fs::create_dir(socket.parent().expect("below it")).expect("it is new");
        let _listener = UnixListener::bind(socket).expect("a socket");
        let is_root = rustix::process::geteuid().is_root();
        let expected = is_root.then(std::process::id).filter(|_| is_of_no_pod(rustix::process::getpid()));
        assert_eq!(find(root.path()).process(), expected);
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// Any process stands for a kubelet: its command line is all that is read of it.
    #[test]
    fn after_a_kubelet_that_is_not_in_order_one_as_before_changes_nothing() {
        let kubelet = |seconds: &str| Command::new("sleep").arg(seconds).spawn().expect("it is there");
        let mut kubelets = [kubelet("600"), kubelet("600"), kubelet("601")];
        let [first, same, other] = kubelets.each_ref().map(|it| RunningKubelet::Process(it.id()));
        let options = Line::parse_from(["x", "--running-kubelet"]).options.with_kubelet(first.clone());
        let (_, read) = options.load_and_keep(None).expect("it is in order");
        let mut follower = Follower { options, read, read_of: first.process(), root: PathBuf::new(), own_cgroup: None };
        let mut changes = |found: &RunningKubelet| follower.take(found.clone()).map(|changed| changed.is_some());
        let found = [
            changes(&RunningKubelet::Process(u32::MAX)).is_err(),
            changes(&same).is_ok_and(|changes| !changes),
            changes(&other).is_ok_and(|changes| changes),
        ];
        for kubelet in &mut kubelets {
            kubelet.kill().expect("it is ours");
            kubelet.wait().expect("it has ended");
        }
        assert_eq!(found, [true; 3]);
    }
}
