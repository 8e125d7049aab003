//! The scanner as a process, behind its filter of system calls and Landlock: it measures the volume of a pod, and sends that.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use plimsoll_inventory::{MESSAGE, StorageMessage, StoragePart, name_number};
use plimsoll_policy::Uid;
use plimsoll_state::handover;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvFlags, recv};

const UID: &str = "01234567-89ab-cdef-0123-456789abcdee";

fn receive(core: &OwnedFd) -> StorageMessage {
    let most = Timespec::try_from(Duration::from_mins(1)).expect("it fits");
    let ready = poll(&mut [PollFd::new(core, PollFlags::IN)], Some(&most)).expect("it waits");
    assert_eq!(ready, 1, "nothing came within a minute");
    let mut buffer = [0; MESSAGE];
    let (length, _) = recv(core, &mut buffer[..], RecvFlags::DONTWAIT).expect("a message");
    StorageMessage::decode(&buffer[..length]).expect("one of the scanner's")
}

#[test]
fn a_volume_is_measured_and_sent_to_each_core() {
    let folder = tempfile::tempdir().expect("a directory");
    let kubelet = folder.path().join("kubelet");
    let volume = kubelet.join("pods").join(UID).join("volumes/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&volume).expect("writable");
    fs::write(volume.join("file"), vec![1; 9000]).expect("writable");
    let blocks = [&volume, &volume.join("file")].map(|path| fs::metadata(path).expect("it is there").blocks());
    let configuration = folder.path().join("plimsoll.yaml");
    let (facts, root) = (folder.path().join("facts/pods.json"), kubelet.display());
    fs::write(&configuration, format!("machine: {{podFacts: {}, kubeletRoot: {root}}}\n", facts.display()))
        .expect("writable");
    let (supervisor, its) = handover::pair().expect("sockets");
    fcntl_setfd(&its, FdFlags::empty()).expect("it is ours");
    let mut command = Command::new(std::env::var_os("CARGO_BIN_EXE_plimsoll").expect("cargo sets it"));
    command.arg("scanner").arg("--config").arg(&configuration).arg("--queues").arg(its.as_raw_fd().to_string());
    let mut child = command.stdin(Stdio::null()).spawn().expect("it starts");
    drop(its);
    for _ in 0..2 {
        let (core, way) = handover::messages_pair().expect("sockets");
        handover::send_core(&supervisor, &way).expect("room");
        drop(way);
        let messages: Vec<_> =
            std::iter::repeat_with(|| receive(&core)).take_while(|message| *message != StorageMessage::Round).collect();
        let part = StoragePart::Volume { name: name_number(b"data"), is_local: true };
        let used = messages.iter().find_map(|message| match message {
            StorageMessage::Part(usage) if usage.part == part && usage.uid == Uid::of(UID) => usage.used,
            _ => None,
        });
        assert_eq!(used, Some((blocks.iter().sum::<u64>() * 512, 2)), "{messages:?}");
        assert_eq!(messages.last(), Some(&StorageMessage::Measured(Uid::of(UID))));
    }
    child.kill().expect("it runs");
    child.wait().expect("it is ours");
}
