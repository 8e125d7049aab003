//! The ring buffers of packet sockets, which are charged to no cgroup, with a process that has each open.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    sync::Arc,
};

use aya::{
    Btf, Ebpf,
    programs::{Iter, Program, links::FdLink},
};
use plimsoll_abi::PacketRingRecord;
use plimsoll_units::Pages;
use rustix::fs::{Mode, OFlags};

use crate::{layout::Layout, probe::with_sources};

/// The program in the embedded object.
const PROGRAM: &str = "packet_rings";
/// What it reads; the rest are offsets that the eBPF source does not start without.
const MEMBERS: [&str; 7] =
    ["SOCKET_SK", "SOCK_FAMILY", "RX_RING_LENGTH", "RX_RING_ORDER", "TX_RING_LENGTH", "TX_RING_ORDER", "TASK_TGID"];
/// The kernel answers EAGAIN after a million files without a record, and goes on from there.
const MOST_PIECES: usize = 1000;

/// A packet socket's ring buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRing {
    /// A process that has the socket open: of several the one with the lowest number.
    pub pid: u32,
    /// Both rings.
    pub size: Pages,
}

/// Finds them, on any thread. Costs about as much as the kernel needs to visit every open file of the machine.
#[derive(Clone, Debug, Default)]
pub struct PacketRings(Option<Arc<OwnedFd>>);

impl PacketRings {
    /// Every packet socket with ring buffers in every network namespace; none where the source has no such program.
    pub fn read(&self) -> io::Result<Vec<PacketRing>> {
        let Some(link) = &self.0 else { return Ok(Vec::new()) };
        // Each opening is an iteration of its own.
        let mut file = File::open(format!("/proc/self/fd/{}", link.as_raw_fd()))?;
        let (mut text, mut pieces) = (Vec::new(), 0);
        while let Err(error) = file.read_to_end(&mut text) {
            pieces += 1;
            if error.kind() != io::ErrorKind::WouldBlock || pieces == MOST_PIECES {
                return Err(error);
            }
        }
        Ok(rings(&text))
    }

    /// Loads the program, where this kernel has what it reads. The link is pinned for a moment, because the kernel opens
    /// an iterator without a command of `bpf(2)` by its file alone.
    pub(crate) fn load(ebpf: &mut Ebpf, layout: &Layout, btf: &Btf, directory: &Path) -> Result<Self, String> {
        if let Some(member) = MEMBERS.iter().find(|member| layout.offset(member).is_none()) {
            return Err(format!("this kernel has no member for {member}"));
        }
        let Some(Program::Iter(program)) = ebpf.program_mut(PROGRAM) else {
            return Err(format!("the embedded object has no program `{PROGRAM}`"));
        };
        let failed = |error: &dyn std::error::Error| with_sources(error);
        program.load("task_file", btf).map_err(|error| failed(&error))?;
        let link = attach(program)?;
        fs::create_dir_all(directory).map_err(|error| failed(&error))?;
        let path = directory.join(format!("{PROGRAM}-{}", std::process::id()));
        let pinned = link.pin(&path).map_err(|error| failed(&error))?;
        let opened = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        pinned.unpin().map_err(|error| failed(&error))?;
        opened.map(|file| Self(Some(Arc::new(file)))).map_err(|error| failed(&error))
    }
}

fn attach(program: &mut Iter) -> Result<FdLink, String> {
    let link = program.attach().and_then(|id| program.take_link(id)).map_err(|error| with_sources(&error))?;
    link.try_into().map_err(|error: aya::programs::links::LinkError| with_sources(&error))
}

/// One for each socket: the first process that has it open.
fn rings(records: &[u8]) -> Vec<PacketRing> {
    let mut rings = Vec::new();
    let mut sockets = Vec::new();
    for record in records.chunks(size_of::<PacketRingRecord>()) {
        if let Ok(PacketRingRecord { tgid, socket, pages, .. }) = PacketRingRecord::decode(record)
            && !sockets.contains(&socket)
        {
            sockets.push(socket);
            rings.push(PacketRing { pid: tgid, size: Pages(pages) });
        }
    }
    rings
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_abi::kind;

    #[test]
    fn a_socket_with_several_descriptors_counts_once() {
        let record = |pid: u32, socket: u64, pages: u64| {
            let words = [kind::PACKET_RING.to_ne_bytes(), pid.to_ne_bytes()].concat();
            [words, socket.to_ne_bytes().to_vec(), pages.to_ne_bytes().to_vec()].concat()
        };
        let cut = &record(9, 9, 9)[..20];
        let records = [&record(5, 1, 64)[..], &record(5, 2, 32), &record(7, 1, 64), cut].concat();
        let ring = |pid, pages| PacketRing { pid, size: Pages(pages) };
        assert_eq!(rings(&records), [ring(5, 64), ring(5, 32)]);
        assert_eq!(PacketRings::default().read().expect("nothing is read"), []);
    }
}
