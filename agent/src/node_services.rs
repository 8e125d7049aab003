//! Where the kubelet and the container runtimes of this machine run: what their pods depend on is never evicted, whatever a
//! unit is called.
//!
//! They are known by the kernel's word alone. Each of them listens on a Unix socket at a path that the configuration or
//! its own defaults name, in a directory that root alone writes; the kernel keeps which process had a socket listen
//! (`SO_PEERCRED`, unix(7)), and which cgroup a process is in. What a runtime started in its own cgroup, as containerd does
//! with its shims and k3s with its containerd, is protected with it.
//!
//! The core may make no socket. A thread of the supervisor connects for it, which nothing else waits for: a path may be on
//! a disk that does not answer. A question is one byte, with a bit for each socket that is meant; the answer has a number for
//! each socket, that of the process.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use plimsoll_config::Configuration;
use plimsoll_cri::{USUAL_SOCKETS, socket_path};
use plimsoll_inventory::identify;
use plimsoll_node::process::{self, Pid};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};

/// The kubelet's own sockets below its directory: what lists devices that pods have, and what device plugins register at
/// (`pkg/kubelet/apis/podresources/constants.go`; `KubeletSocket` of the device plugin API).
pub(crate) const KUBELET_SOCKETS: [&str; 2] = ["pod-resources/kubelet.sock", "device-plugins/kubelet.sock"];
/// Sockets at most: a configured runtime's, the usual ones, and the kubelet's.
pub(crate) const MOST_SOCKETS: usize = 1 + USUAL_SOCKETS.len() + KUBELET_SOCKETS.len();
/// Bytes of an answer.
const ANSWER: usize = MOST_SOCKETS * size_of::<i32>();
/// A bit is a socket.
const _: () = assert!(MOST_SOCKETS <= u8::BITS as usize);
/// The thread's stack, locked like all memory of the supervisor.
const STACK: usize = 64 << 10;

/// The process that listens on each socket, by the socket's place among [`sockets`]; absent where none is known.
pub(crate) type Listeners = [Option<Pid>; MOST_SOCKETS];

/// Where the kubelet and container runtimes listen. The usual sockets are among them where one is configured: two runtimes
/// may be in use. Those that the service manager made are not: it would start what listens there, and is itself the process
/// that the kernel names.
pub(crate) fn sockets(configuration: &Configuration) -> Vec<PathBuf> {
    let configured = configuration.runtime_endpoint().and_then(|(endpoint, _)| socket_path(&endpoint).ok());
    let usual = USUAL_SOCKETS.iter().map(|(_, path)| PathBuf::from(path));
    let root = configuration.kubelet_root();
    let kubelet = KUBELET_SOCKETS.iter().map(|name| root.join(name));
    let is_other = |path: &PathBuf| Some(path) != configured.as_ref();
    configured.clone().into_iter().chain(usual.filter(is_other)).chain(kubelet).collect()
}

/// The cgroups of the kubelet and of container runtimes that run now, for a command. Another user than root is refused by
/// the sockets, and finds none.
pub(crate) fn cgroups(configuration: &Configuration) -> Vec<Vec<u8>> {
    let listeners = sockets(configuration).into_iter().filter_map(|socket| listener(&socket));
    let cgroups = listeners.filter_map(|process| process::cgroup_path(Some(process)));
    // As the core leaves it out, which has where pods are.
    cgroups.filter(|path| identify(path).is_none()).collect()
}

/// The process of root's that listens at this path. A connection that would have to wait is not made: the runtime does not
/// answer, and the kernel names no process before it is connected.
pub(crate) fn listener(path: &Path) -> Option<Pid> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    let (process, user) = process::peer(&socket).ok()??;
    (user == 0).then_some(process)
}

/// Has a thread answer at `way` until its other end is closed.
pub(crate) fn serve(way: OwnedFd, sockets: Vec<PathBuf>) -> std::io::Result<()> {
    let answer = move || {
        while let Some(meant) = asked(&way) {
            let mut listeners = Listeners::default();
            for (place, (found, socket)) in listeners.iter_mut().zip(&sockets).enumerate() {
                *found = if meant & 1 << place == 0 { None } else { listener(socket) };
            }
            // A core that does not read its answers goes without.
            let _ = send(&way, &encode(&listeners), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    };
    thread::Builder::new().name("node-services".into()).stack_size(STACK).spawn(answer).map(drop)
}

/// Waits for the next question, and gives the sockets that are meant; `None`: there will be none.
fn asked(way: &OwnedFd) -> Option<u8> {
    let mut question = [0];
    loop {
        match recv(way, &mut question[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) => return (length > 0).then_some(question[0]),
            Err(Errno::AGAIN | Errno::INTR) => _ = poll(&mut [PollFd::new(way, PollFlags::IN)], None),
            Err(_) => return None,
        }
    }
}

/// Asks which processes listen on these of the sockets. Does not wait.
pub(crate) fn ask(way: impl AsFd, meant: [bool; MOST_SOCKETS]) -> Result<(), Errno> {
    let question = meant.iter().rev().fold(0_u8, |bits, meant| bits << 1 | u8::from(*meant));
    send(way, &[question], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// The next answer: [`Errno::AGAIN`] where there is none yet, [`Errno::PIPE`] where there will be none.
pub(crate) fn answer(way: impl AsFd) -> Result<Listeners, Errno> {
    let mut bytes = [0; ANSWER];
    match recv(way, &mut bytes[..], RecvFlags::DONTWAIT)? {
        (ANSWER, _) => Ok(decode(&bytes)),
        (0, _) => Err(Errno::PIPE),
        _ => Err(Errno::BADMSG),
    }
}

fn encode(listeners: &Listeners) -> [u8; ANSWER] {
    let mut bytes = [0; ANSWER];
    for (place, process) in bytes.as_chunks_mut().0.iter_mut().zip(listeners) {
        *place = process.map_or(0, Pid::as_raw_pid).to_ne_bytes();
    }
    bytes
}

fn decode(bytes: &[u8; ANSWER]) -> Listeners {
    let mut listeners = Listeners::default();
    for (process, place) in listeners.iter_mut().zip(bytes.as_chunks().0) {
        // What is negative names a group of processes, or none.
        *process = Some(i32::from_ne_bytes(*place)).filter(|number| *number > 0).and_then(Pid::from_raw);
    }
    listeners
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_state::handover::messages_pair;
    use rustix::net::{bind, listen};
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    fn next(way: &OwnedFd) -> Result<Listeners, Errno> {
        let begun = Instant::now();
        loop {
            match answer(way) {
                Err(Errno::AGAIN) if begun.elapsed() < Duration::from_secs(10) => {
                    thread::sleep(Duration::from_millis(1));
                }
                answered => return answered,
            }
        }
    }

    #[test]
    fn those_that_listen_are_named_and_nothing_waits_for_one_that_hangs() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let [runtime, none, left, full] = ["runtime", "none", "left", "full"].map(|name| folder.path().join(name));
        let _runtime = UnixListener::bind(&runtime).expect("a socket");
        drop(UnixListener::bind(&left).expect("a socket"));
        // A runtime that hangs: nothing accepts, and no more than one connection may wait.
        let flags = SocketFlags::CLOEXEC;
        let hanging = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
        bind(&hanging, &SocketAddrUnix::new(&full).expect("a path")).expect("it is new");
        listen(&hanging, 0).expect("it is bound");
        let _waiting = std::os::unix::net::UnixStream::connect(&full).expect("there is room for one");
        let (core, way) = messages_pair().expect("sockets");
        serve(way, vec![none, left, full, runtime]).expect("a thread starts");
        ask(&core, [true; MOST_SOCKETS]).expect("room");
        let own = rustix::process::getpid();
        // It counts only where it is root's.
        let expected = rustix::process::geteuid().is_root().then_some(own);
        let found = next(&core).expect("an answer");
        assert_eq!(found[..4], [None, None, None, expected]);
        assert_eq!(answer(&core), Err(Errno::AGAIN), "one for each question");
        for place in 2..=3 {
            ask(&core, std::array::from_fn(|other| other == place)).expect("room");
            let found = next(&core).expect("an answer");
            assert_eq!(found[3], expected.filter(|_| place == 3), "it is looked at where it is meant");
        }
    }

    #[test]
    fn the_thread_ends_with_the_core_and_what_is_no_answer_is_refused() {
        let (core, way) = messages_pair().expect("sockets");
        let (ours, theirs) = (core.try_clone().expect("a descriptor"), way.try_clone().expect("a descriptor"));
        send(&theirs, b"x", SendFlags::NOSIGNAL).expect("room");
        assert_eq!(answer(&ours), Err(Errno::BADMSG));
        drop(theirs);
        let end = thread::spawn(move || asked(&way));
        drop((core, ours));
        assert_eq!(end.join().expect("no panic"), None);
        let (core, way) = messages_pair().expect("sockets");
        drop(way);
        assert_eq!(answer(&core), Err(Errno::PIPE));
    }

    #[test]
    fn a_negative_number_names_no_process() {
        let mut listeners = Listeners::default();
        listeners[1] = Pid::from_raw(7);
        let mut bytes = encode(&listeners);
        assert_eq!(decode(&bytes), listeners);
        bytes[..4].copy_from_slice(&(-7_i32).to_ne_bytes());
        assert_eq!(decode(&bytes), listeners);
    }

    #[test]
    fn what_is_configured_is_looked_at_once_and_what_the_service_manager_listens_on_never() {
        let of = |text: &str| sockets(&plimsoll_config::parse(text, "f").expect("it is in order"));
        let usual = ["/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", "/run/crio/crio.sock"];
        let kubelet = |root: &str| KUBELET_SOCKETS.map(|name| format!("{root}/{name}"));
        let expected = |first: &[&str], usual: &[&str], root: &str| {
            let named = first.iter().chain(usual).map(|path| (*path).to_owned());
            named.chain(kubelet(root)).map(PathBuf::from).collect::<Vec<_>>()
        };
        assert_eq!(of("{}"), expected(&[], &usual, "/var/lib/kubelet"));
        let own = "machine: {runtimeSocket: /run/own.sock, kubeletRoot: /data}";
        assert_eq!(of(own), expected(&["/run/own.sock"], &usual, "/data"));
        assert!(of(own).len() <= MOST_SOCKETS);
        let crio = "machine: {runtimeSocket: /run/crio/crio.sock}";
        assert_eq!(of(crio), expected(&usual[2..], &usual[..2], "/var/lib/kubelet"));
    }
}
