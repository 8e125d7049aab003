//! One process that grows: in one way, to a size, at a rate, in a cgroup it joins before its first page.
//!
//! Each kind takes memory by another road through the kernel, so that what a hook or a counter does not see shows up.
//! A hog never gives back on its own: it holds until it is killed or `--hold` is over. All kinds are bounded, the fork
//! bomb by the pids.max of its cgroup, without which it refuses to start.

use crate::map::{Mapping, end_this_thread, packet_ring};
use crate::record::{Filled, Writer};
use crate::{cgroup, machine};
use anyhow::{Context as _, Result, bail, ensure};
use plimsoll_node::capabilities;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;
use rustix::mm::MapFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::param::page_size;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The way in which a hog takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Private memory in base pages.
    Anon,
    /// Private memory in transparent huge pages.
    Thp,
    /// Private memory that the mapping call itself fills.
    Populate,
    /// Private memory that mlock fills.
    Mlock,
    /// A file on tmpfs, written.
    Tmpfs,
    /// A file on tmpfs, allocated without being written.
    Fallocate,
    /// Pages of the hugetlb pool, or surplus ones where overcommitting them is allowed.
    Hugetlb,
    /// Names that do not exist, remembered by the kernel: slab it can take back.
    Dentries,
    /// Directories on tmpfs: slab it cannot take back, not even by killing.
    Dirs,
    /// Buffers of pipes, which belong to no address space.
    Pipes,
    /// Messages that wait in sockets, in whole pages as far as they go.
    Sockets,
    /// Small messages that wait in sockets: slab that the kernel cannot take back while their sockets are open.
    Messages,
    /// Rings of packet sockets in a network namespace of their own, which are charged to no cgroup.
    PacketRings,
    /// Page tables, by mapping one small file of tmpfs again and again: `--mib` is what is mapped, one part in 512 of
    /// it is taken.
    PageTables,
    /// Page tables alone, quickly, by looking at one page of what each table maps and never writing: all of them are the
    /// page of zeros.
    Tables,
    /// Reads and rewrites one file (or block device, which it only reads) round and round: page cache, not growth.
    Churn,
    /// Reads a file or device once: page cache, not growth.
    Cache,
    /// Does the same first, and then replaces that page cache by private memory: what is charged stays the same.
    Replace,
    /// Starts copies of itself, each of which does the same: needs a pids.max.
    Fork,
    /// Waits in the kernel, uninterruptibly, for one direct read after another from a slow device.
    Stuck,
}

#[derive(Clone, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Arguments {
    kind: Kind,
    /// The cgroup to join before growing: its directory.
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// How much to take; for a fork bomb, how much each process takes.
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// MiB a second; 0 is as fast as it can.
    #[arg(long, default_value_t = 0)]
    rate: usize,
    /// MiB that are taken as fast as it can, whatever the rate, before the rest.
    #[arg(long, default_value_t = 0)]
    rush: usize,
    /// KiB taken between two readings of the clock; 0 is the kind's own: all at once where one call does it, else 256.
    #[arg(long, default_value_t = 0)]
    chunk: usize,
    /// Threads that share the work.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Seconds to hold what was taken before ending.
    #[arg(long, default_value_t = 3600)]
    hold: u64,
    /// A prepared record to write (time, bytes) pairs to.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Where files and directories are made, or the file or device that is read.
    #[arg(long, default_value = "/dev/shm")]
    path: PathBuf,
    /// Read through a mapping, too: a page that is faulted in is in use from the first, one that is read only from the
    /// second time on.
    #[arg(long)]
    mapped: bool,
    /// Take private memory in base pages, and files on tmpfs, with contents that compress to about two fifths.
    #[arg(long)]
    noise: bool,
    /// Leave a file on tmpfs where it is: it outlives the process that wrote it.
    #[arg(long)]
    keep: bool,
    /// Wait in the cgroup until standard input ends, and begin then.
    #[arg(long)]
    held: bool,
    /// Wait in the cgroup until this named pipe is opened for writing, and begin then.
    #[arg(long)]
    begin: Option<PathBuf>,
    /// Take nothing where this file is already, and make it otherwise: of several that are started one after another the
    /// first one grows.
    #[arg(long, value_name = "FILE")]
    once: Option<PathBuf>,
    /// Live on after SIGTERM, and make this file then.
    #[arg(long)]
    outlive: Option<PathBuf>,
    /// End once that file is made, as a program does that ends in order.
    #[arg(long, requires = "outlive")]
    ends: bool,
    /// Let the first thread end before anything is taken, as `pthread_exit` in `main` does: others do all of it.
    #[arg(long)]
    pthread_exit: bool,
}

#[derive(clap::Args)]
pub(crate) struct IdleArguments {
    /// The cgroup to join: its directory.
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// How much to hold.
    #[arg(long, default_value_t = 4)]
    mib: usize,
}

#[derive(clap::Args)]
pub(crate) struct WithinArguments {
    /// The cgroup to join: its directory.
    #[arg(long)]
    cgroup: PathBuf,
    /// Have cgroup and mount namespaces of one's own, with other files in /run/plimsoll and /sys/fs/bpf.
    #[arg(long)]
    container: bool,
    /// Have a PID namespace of one's own, too.
    #[arg(long)]
    own_pids: bool,
    /// Keep only these capabilities, for good.
    #[arg(long, value_delimiter = ',')]
    capabilities: Option<Vec<String>>,
    /// Run it as this user.
    #[arg(long)]
    uid: Option<u32>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Moves this process into the cgroup whose directory is `cgroup`.
pub(crate) fn join(cgroup: &Path) -> Result<()> {
    machine::set(cgroup.join("cgroup.procs"), "0")
}

/// KiB of one step unless the caller chose another.
fn chunk_bytes(arguments: &Arguments, share: usize) -> usize {
    match (arguments.chunk, arguments.kind) {
        (0, Kind::Populate | Kind::Mlock | Kind::Fallocate) => share,
        (0, Kind::Hugetlb | Kind::Thp) => HUGE_BYTES,
        (0, Kind::Pipes) => PIPE_BYTES,
        (0, Kind::Sockets | Kind::Messages) => SOCKET_BYTES,
        (0, Kind::PacketRings) => RING_BYTES,
        (0, Kind::PageTables) => MAPPED_BYTES,
        (0, _) => 256 << 10,
        (kib, _) => kib << 10,
    }
}

/// What fills two fifths of a page and cannot be compressed: with the rest of zeros a page compresses as those of programs
/// do, 2 to 3 to 1.
fn noise() -> Vec<u8> {
    let mut dice = machine::Dice::new(1);
    (0..page_size() * 2 / 5 / size_of::<u64>()).flat_map(|_| dice.below(u64::MAX).to_ne_bytes()).collect()
}

/// How many entries a hog of this size writes at most.
pub(crate) fn entries(mib: usize, chunk_kib: usize, threads: usize) -> usize {
    (mib << 10).div_ceil(chunk_kib) + threads
}

pub(crate) const HUGE_BYTES: usize = 2 << 20;
const PIPE_BYTES: usize = 1 << 20;
/// What a socket holds of messages on the way to it, with all that is kept for them, by default (socket(7), `SO_SNDBUF`).
pub(crate) const SOCKET_BYTES: usize = 208 << 10;
const RING_BYTES: usize = 4 << 20;
const MAPPED_BYTES: usize = 8 << 20;
/// What one write to a socket takes at most in one message of whole pages (`unix_stream_sendmsg`).
const MESSAGE_BYTES: usize = 32 << 10;
/// What one remembered name costs: a dentry, and the name itself, which is too long to lie within it.
const DENTRY_BYTES: usize = 192 + 256;
/// What one directory on tmpfs costs: a dentry and an inode, roughly.
const DIRECTORY_BYTES: usize = 1024;

pub(crate) fn main(arguments: &Arguments) -> Result<()> {
    // The process that starts it may be protected from the OOM killer; a hog must not be. In a container it cannot be.
    if machine::oom_score()? < 0 {
        machine::oom_score_adjust(0)?;
    }
    if let Some(cgroup) = &arguments.cgroup {
        join(cgroup)?;
    }
    if let Some(file) = arguments.outlive.clone() {
        outlive(file, arguments.ends)?;
    }
    if let Some(file) = &arguments.once {
        match File::create_new(file) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                thread::sleep(Duration::from_secs(arguments.hold));
                return Ok(());
            }
            made => made.map(drop).with_context(|| format!("cannot make {}", file.display()))?,
        }
    }
    if let Some(pipe) = &arguments.begin {
        File::open(pipe).with_context(|| format!("cannot open {}", pipe.display()))?;
    }
    if arguments.held {
        std::io::stdin().read_to_end(&mut Vec::new()).context("cannot wait for the end of standard input")?;
    }
    if arguments.pthread_exit {
        // Read while /proc/self has an address space, which older kernels take from the first thread.
        page_size();
        let arguments = arguments.clone();
        thread::spawn(move || {
            let outcome = take(&arguments);
            if let Err(error) = &outcome {
                eprintln!("{error:#}");
            }
            std::process::exit(outcome.is_err().into());
        });
        end_this_thread();
    }
    take(arguments)
}

/// Makes this file when SIGTERM comes, which ends nothing any more by itself.
fn outlive(file: PathBuf, ends: bool) -> Result<()> {
    let (mut read, write) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, write).context("cannot handle SIGTERM")?;
    thread::spawn(move || {
        let made = read.read_exact(&mut [0]).and_then(|()| File::create(&file).map(drop));
        if let Err(error) = made {
            eprintln!("cannot make {}: {error}", file.display());
        }
        if ends {
            std::process::exit(0);
        }
        // What writes to it next must find it open.
        thread::park();
    });
    Ok(())
}

fn take(arguments: &Arguments) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(arguments.hold);
    match arguments.kind {
        Kind::Churn => churn(arguments, until),
        Kind::Stuck => all_stuck(arguments, until),
        Kind::Fork => fork(arguments, until),
        _ => grow(arguments, until),
    }
}

/// Joins a cgroup and becomes another program in it.
pub(crate) fn within(arguments: &WithinArguments) -> Result<()> {
    join(&arguments.cgroup)?;
    if arguments.container {
        crate::container::enter()?;
    }
    if arguments.own_pids {
        crate::container::own_pids()?;
    }
    if let Some(names) = &arguments.capabilities {
        let keep = names.iter().map(|name| capabilities::named(name).with_context(|| format!("no capability {name}")));
        capabilities::keep_only(&keep.collect::<Result<Vec<_>>>()?)?;
    }
    let (program, rest) = arguments.command.split_first().context("no program was named")?;
    let mut command = Command::new(program);
    if let Some(uid) = arguments.uid {
        command.uid(uid).gid(uid);
    }
    if arguments.own_pids {
        // The next process is the first of the namespace.
        let status = command.args(rest).status().with_context(|| format!("cannot start {program}"))?;
        std::process::exit(status.code().unwrap_or(255));
    }
    Err(command.args(rest).exec()).with_context(|| format!("cannot become {program}"))
}

/// Holds a little memory until killed.
pub(crate) fn idle(arguments: &IdleArguments) -> Result<()> {
    if let Some(cgroup) = &arguments.cgroup {
        join(cgroup)?;
    }
    let bytes = arguments.mib << 20;
    let memory = Mapping::anonymous(bytes, MapFlags::empty()).context("cannot map")?;
    memory.touch(0, bytes, page_size());
    loop {
        thread::park();
    }
}

fn grow(arguments: &Arguments, until: Instant) -> Result<()> {
    ensure!(arguments.threads > 0, "--threads must be at least 1");
    let share = (arguments.mib << 20) / arguments.threads;
    let chunk = chunk_bytes(arguments, share);
    let record = match &arguments.record {
        Some(path) => Some(Writer::open(path, share.div_ceil(chunk) * arguments.threads)?),
        None => None,
    };
    // Before the clock starts: what a thread needs to begin with is not part of its growth.
    let mut fillers = Vec::new();
    for thread in 0..arguments.threads {
        fillers.push(Filler::new(arguments, share, chunk, thread)?);
    }
    let total = AtomicU64::new(0);
    let pace =
        Pace { from: (arguments.rush as u64) << 20, rate: (arguments.rate as u64) << 20, began: OnceLock::new() };
    thread::scope(|scope| -> Result<()> {
        let mut running = Vec::new();
        for filler in &mut fillers {
            let (record, total, pace) = (record.as_ref(), &total, &pace);
            running.push(scope.spawn(move || -> Result<()> {
                let mut done = 0;
                while done < share {
                    let to = (done + chunk).min(share);
                    filler.fill(done, to)?;
                    let bytes = total.fetch_add((to - done) as u64, Ordering::Relaxed) + (to - done) as u64;
                    if let Some(record) = record {
                        record.add(Filled { at_ns: machine::now_ns(), bytes });
                    }
                    done = to;
                    pace.keep(bytes);
                }
                Ok(())
            }));
        }
        for thread in running {
            thread.join().map_err(|_| anyhow::anyhow!("a thread of the hog panicked"))??;
        }
        Ok(())
    })?;
    thread::sleep(until.saturating_duration_since(Instant::now()));
    drop(fillers);
    Ok(())
}

/// How fast all threads together may go.
struct Pace {
    /// Up to here, as fast as they can.
    from: u64,
    /// Bytes a second from there on; 0 is as fast as they can.
    rate: u64,
    began: OnceLock<Instant>,
}

impl Pace {
    /// Sleeps until `bytes` may have been filled.
    fn keep(&self, bytes: u64) {
        let Some(paced) = bytes.checked_sub(self.from) else { return };
        let began = *self.began.get_or_init(Instant::now);
        if let Some(due) = paced.saturating_mul(1_000_000_000).checked_div(self.rate) {
            thread::sleep((began + Duration::from_nanos(due)).saturating_duration_since(Instant::now()));
        }
    }
}

/// One thread's way of taking the bytes from `from` to `to` of its share.
enum Filler {
    Touched { memory: Mapping, step: usize },
    Filled { memory: Mapping, page: Vec<u8> },
    Mapped { pieces: Vec<Mapping>, lock: bool },
    Written { file: File, contents: Vec<u8> },
    Allocated { file: File },
    Remembered { next: usize },
    Made { below: PathBuf, next: usize },
    Piped { pipes: Vec<(OwnedFd, OwnedFd)>, zeros: Vec<u8> },
    MappedAgain { file: File, pieces: Vec<Mapping> },
    Received { sockets: Vec<OwnedFd> },
    Looked { memory: Mapping },
    Sent { pairs: Vec<(OwnedFd, OwnedFd)>, message: Vec<u8> },
    Read { file: File, buffer: Vec<u8> },
    Replaced { file: File, memory: Mapping },
}

impl Filler {
    fn new(arguments: &Arguments, share: usize, chunk: usize, thread: usize) -> Result<Self> {
        let name = arguments.path.join(format!("hog-{}-{thread}", std::process::id()));
        Ok(match arguments.kind {
            Kind::Anon if arguments.noise => {
                let memory = Mapping::anonymous(share, MapFlags::empty()).context("cannot map")?;
                memory.huge(false).context("cannot choose the page size")?;
                Self::Filled { memory, page: noise() }
            }
            Kind::Anon => Self::touched(share, MapFlags::empty(), Some(false), page_size())?,
            // Touched at each base page: where a huge page cannot be had, the memory is taken all the same.
            Kind::Thp => Self::touched(share.next_multiple_of(HUGE_BYTES), MapFlags::empty(), Some(true), page_size())?,
            Kind::Hugetlb => {
                let flags = MapFlags::HUGETLB | MapFlags::HUGE_2MB;
                Self::touched(share.next_multiple_of(HUGE_BYTES), flags, None, HUGE_BYTES)?
            }
            Kind::Populate => Self::Mapped { pieces: Vec::with_capacity(share.div_ceil(chunk)), lock: false },
            Kind::Mlock => Self::Mapped { pieces: Vec::with_capacity(share.div_ceil(chunk)), lock: true },
            Kind::Tmpfs => {
                let file = if arguments.keep { named(&name)? } else { nameless(&name)? };
                let mut contents = vec![0; chunk];
                if arguments.noise {
                    let noise = noise();
                    contents.chunks_mut(page_size()).for_each(|page| page[..noise.len()].copy_from_slice(&noise));
                }
                Self::Written { file, contents }
            }
            Kind::Fallocate => Self::Allocated { file: nameless(&name)? },
            Kind::Dentries => Self::Remembered { next: 0 },
            Kind::Dirs => {
                std::fs::create_dir(&name)?;
                Self::Made { below: name, next: 0 }
            }
            Kind::Tables => {
                let memory = Mapping::anonymous(share * mapped_by_byte(), MapFlags::empty()).context("cannot map")?;
                memory.huge(false).context("cannot choose the page size")?;
                Self::Looked { memory }
            }
            Kind::Sockets | Kind::Messages => {
                many_files()?;
                let bytes = if arguments.kind == Kind::Messages { 1 } else { MESSAGE_BYTES };
                Self::Sent { pairs: Vec::with_capacity(share / SOCKET_BYTES + 1), message: vec![0; bytes] }
            }
            Kind::Pipes => {
                many_files()?;
                Self::Piped { pipes: Vec::with_capacity(share / PIPE_BYTES + 1), zeros: vec![0; page_size()] }
            }
            Kind::PageTables => {
                let file = nameless(&name)?;
                file.write_all_at(&vec![0; chunk], 0).context("cannot write to tmpfs")?;
                Self::MappedAgain { file, pieces: Vec::with_capacity(share.div_ceil(chunk)) }
            }
            Kind::PacketRings => {
                crate::container::own_network()?;
                Self::Received { sockets: Vec::with_capacity(share.div_ceil(chunk)) }
            }
            Kind::Cache => Self::Read { file: File::open(&arguments.path)?, buffer: vec![0; chunk] },
            Kind::Replace => {
                let mut cache = Self::Read { file: File::open(&arguments.path)?, buffer: vec![0; chunk] };
                (0..share).step_by(chunk).try_for_each(|at| cache.fill(at, (at + chunk).min(share)))?;
                let memory = Mapping::anonymous(share, MapFlags::empty()).context("cannot map")?;
                Self::Replaced { file: File::open(&arguments.path)?, memory }
            }
            Kind::Churn | Kind::Fork | Kind::Stuck => bail!("this kind does not grow"),
        })
    }

    fn touched(bytes: usize, flags: MapFlags, huge: Option<bool>, step: usize) -> Result<Self> {
        let memory = Mapping::anonymous(bytes, flags).with_context(|| format!("cannot map {bytes} bytes"))?;
        if let Some(huge) = huge {
            memory.huge(huge).context("cannot choose the page size")?;
        }
        Ok(Self::Touched { memory, step })
    }

    fn fill(&mut self, from: usize, to: usize) -> Result<()> {
        match self {
            Self::Touched { memory, step } => memory.touch(from, to, *step),
            Self::Mapped { pieces, lock } => {
                let flags = if *lock { MapFlags::empty() } else { MapFlags::POPULATE };
                let piece = Mapping::anonymous(to - from, flags).context("cannot map")?;
                if *lock {
                    piece.lock().context("cannot lock")?;
                }
                pieces.push(piece);
            }
            Self::Filled { memory, page } => memory.fill(from, to, page_size(), page),
            Self::Written { file, contents } => {
                file.write_all_at(&contents[..to - from], from as u64).context("cannot write to tmpfs")?;
            }
            Self::Allocated { file } => {
                fallocate(file, FallocateFlags::empty(), from as u64, (to - from) as u64).context("cannot allocate")?;
            }
            Self::Remembered { next } => {
                while *next * DENTRY_BYTES < to {
                    // The kernel remembers that it is not there; that is all this is for.
                    let name = format!("/sys/kernel/{}-{next:0>180}", std::process::id());
                    ensure!(!Path::new(&name).exists(), "{name} exists");
                    *next += 1;
                }
            }
            Self::Made { below, next } => {
                while *next * DIRECTORY_BYTES < to {
                    std::fs::create_dir(below.join(next.to_string())).context("cannot make a directory")?;
                    *next += 1;
                }
            }
            Self::MappedAgain { file, pieces } => {
                pieces.push(Mapping::populated(&*file, to - from).context("cannot map")?);
            }
            Self::Received { sockets } => {
                let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None);
                let socket = socket.context("cannot make a packet socket")?;
                packet_ring(&socket, to - from).context("cannot give a packet socket a ring")?;
                sockets.push(socket);
            }
            Self::Looked { memory } => {
                memory.look(from * mapped_by_byte(), to * mapped_by_byte(), page_size() * mapped_by_byte());
            }
            Self::Sent { pairs, message } => {
                while pairs.len() * SOCKET_BYTES < to {
                    pairs.push(full_socket(message)?);
                }
            }
            Self::Read { file, buffer } => {
                file.read_exact_at(&mut buffer[..to - from], from as u64).context("cannot read")?;
            }
            Self::Replaced { file, memory } => {
                let length = NonZeroU64::new((to - from) as u64);
                fadvise(file, from as u64, length, Advice::DontNeed).context("cannot drop page cache")?;
                memory.touch(from, to, page_size());
            }
            Self::Piped { pipes, zeros } => {
                while pipes.len() * PIPE_BYTES < to {
                    pipes.push(full_pipe(zeros)?);
                }
            }
        }
        Ok(())
    }
}

/// How many bytes one byte of a page table maps: an entry has eight, and maps a page.
fn mapped_by_byte() -> usize {
    page_size() / 8
}

/// A new file that is gone with the last process that has it open, however that ends.
fn nameless(path: &Path) -> Result<File> {
    let file = named(path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// A new file that stays.
fn named(path: &Path) -> Result<File> {
    let options = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    options.with_context(|| format!("cannot make {}", path.display()))
}

/// Lets this process have as many files open as it may.
fn many_files() -> Result<()> {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).context("cannot raise the limit of open files")
}

/// A pipe of 1 MiB with every page of its buffer in use.
fn full_pipe(page: &[u8]) -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).context("cannot make a pipe")?;
    fcntl_setpipe_size(&write, PIPE_BYTES).context("cannot grow a pipe")?;
    write_until_full(&write, page).context("cannot fill a pipe")?;
    Ok((read, write))
}

/// A pair of sockets with as many messages on the way as there can be: each write is one.
fn full_socket(message: &[u8]) -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).context("cannot make sockets")?;
    write_until_full(&pair.0, message).context("cannot fill a socket")?;
    Ok(pair)
}

/// Writes this again and again until it would have to wait.
fn write_until_full(file: &OwnedFd, data: &[u8]) -> rustix::io::Result<()> {
    loop {
        match rustix::io::write(file, data) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Reads (and, if it is a file of its own, first writes and, unless it is mapped, then rewrites) the same bytes until the time
/// is up.
fn churn(arguments: &Arguments, until: Instant) -> Result<()> {
    let bytes = arguments.mib << 20;
    let own = arguments.path.is_dir();
    let file = if own {
        nameless(&arguments.path.join(format!("churn-{}", std::process::id())))?
    } else {
        File::open(&arguments.path).with_context(|| format!("cannot open {}", arguments.path.display()))?
    };
    let mut buffer = vec![0_u8; 1 << 20];
    if own && arguments.mapped {
        // A page that is in the cache since it was written is in use from the second time on at best.
        for at in (0..bytes).step_by(buffer.len()) {
            file.write_all_at(&buffer, at as u64).context("cannot write")?;
        }
        file.sync_data().context("cannot write")?;
        fadvise(&file, 0, None, Advice::DontNeed).context("cannot drop page cache")?;
    }
    let mapping = if arguments.mapped { Some(Mapping::readable(&file, bytes).context("cannot map")?) } else { None };
    let mut written = false;
    while Instant::now() < until {
        for at in (0..bytes).step_by(buffer.len()) {
            if own && !arguments.mapped && (!written || at % (8 << 20) == 0) {
                file.write_all_at(&buffer, at as u64).context("cannot write")?;
            }
            if let Some(mapping) = &mapping {
                mapping.look(at, at + buffer.len(), page_size());
            }
            file.read_exact_at(&mut buffer, at as u64).context("cannot read")?;
            if Instant::now() >= until {
                break;
            }
        }
        written = true;
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Reads from a device past the page cache, which nothing can interrupt until the device answers.
fn stuck(device: &Path, until: Instant) -> Result<()> {
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits())?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(device)
        .with_context(|| format!("cannot open {}", device.display()))?;
    // Direct reads need an aligned buffer: a mapping is, and a page of it is read through a file descriptor only.
    let mut buffer = vec![0_u8; 2 * page_size()];
    let start = buffer.as_ptr().align_offset(page_size());
    while Instant::now() < until {
        file.read_exact_at(&mut buffer[start..start + page_size()], 0).context("cannot read")?;
    }
    Ok(())
}

/// The same by several threads, the first of them among them: where the device answers one by one, the last answer comes
/// after as many delays.
fn all_stuck(arguments: &Arguments, until: Instant) -> Result<()> {
    thread::scope(|scope| {
        for _ in 1..arguments.threads {
            scope.spawn(|| stuck(&arguments.path, until));
        }
        stuck(&arguments.path, until)
    })
}

/// Takes its memory, then starts copies of itself for as long as the kernel lets it.
fn fork(arguments: &Arguments, until: Instant) -> Result<()> {
    let own = std::fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
    let name = own.trim().strip_prefix("0::/").context("not in a cgroup of version 2")?;
    let limit = std::fs::read_to_string(Path::new(cgroup::ROOT).join(name).join("pids.max"))
        .context("a fork bomb needs a cgroup with pids.max")?;
    ensure!(limit.trim().parse::<u32>().is_ok(), "a fork bomb needs a number in pids.max, which is {:?}", limit.trim());
    let bytes = arguments.mib << 20;
    let memory = Mapping::anonymous(bytes, MapFlags::empty()).context("cannot map")?;
    memory.touch(0, bytes, page_size());
    let mut children = Vec::new();
    while Instant::now() < until {
        let copy = Command::new("/proc/self/exe")
            .args(["hog", "fork", "--mib", &arguments.mib.to_string(), "--hold", &arguments.hold.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match copy {
            Ok(child) => children.push(child),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn grown(line: &[&str]) -> Vec<Filled> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        record::prepare(&path, 64).unwrap();
        let (record, dir) = (path.to_str().unwrap(), dir.path().to_str().unwrap());
        let common = ["hog", "--hold", "0", "--record", record, "--path", dir];
        main(&Line::parse_from(common.iter().chain(line)).arguments).unwrap();
        record::read(&path).unwrap()
    }

    #[test]
    fn each_kind_reaches_its_size_and_says_so() {
        for kind in [
            "anon",
            "thp",
            "populate",
            "mlock",
            "tmpfs",
            "fallocate",
            "dirs",
            "pipes",
            "sockets",
            "messages",
            "page-tables",
            "tables",
        ] {
            let filled = grown(&[kind, "--mib", "2"]);
            assert_eq!(filled.last().map(|entry| entry.bytes), Some(2 << 20), "{kind}");
        }
    }

    #[test]
    fn contents_that_compress_are_two_fifths_of_each_page() {
        let noise = noise();
        assert!(noise.chunks(8).collect::<std::collections::BTreeSet<_>>().len() > noise.len() / 9);
        let mut arguments = Line::parse_from(["hog", "tmpfs", "--noise", "--path", "/dev/shm"]).arguments;
        let page = [&noise[..], &vec![0; page_size() - noise.len()]].concat();
        let bytes = 3 * page_size();
        let Filler::Written { contents, .. } = Filler::new(&arguments, bytes, bytes, 0).unwrap() else { panic!() };
        assert!(contents.chunks(page_size()).all(|one| one == page));
        arguments.kind = Kind::Anon;
        let mut filler = Filler::new(&arguments, bytes, bytes, 0).unwrap();
        filler.fill(0, 2 * page_size()).unwrap();
        let Filler::Filled { memory, .. } = filler else { panic!() };
        let word = |at: usize| memory.word(at / 8).map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        for at in (0..bytes).step_by(8) {
            let expected = if at < 2 * page_size() { &page[at % page_size()..][..8] } else { &[0; 8] };
            assert_eq!(word(at).as_ref().map(|word| &word[..]), Some(expected), "{at}");
        }
    }

    #[test]
    fn one_call_takes_all_where_the_call_is_the_point() {
        for kind in ["populate", "mlock", "fallocate"] {
            assert_eq!(grown(&[kind, "--mib", "2"]).len(), 1, "{kind}");
        }
        assert_eq!(grown(&["populate", "--mib", "2", "--chunk", "512"]).len(), 4);
    }

    #[test]
    fn the_second_one_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let once = dir.path().join("once");
        let sizes = [(), ()].map(|()| grown(&["anon", "--mib", "2", "--once", once.to_str().unwrap()]).len());
        assert_eq!(sizes, [8, 0]);
    }

    #[test]
    fn threads_share_the_work() {
        let filled = grown(&["anon", "--mib", "4", "--threads", "2"]);
        assert_eq!(filled.iter().map(|entry| entry.bytes).max(), Some(4 << 20));
        assert!(filled.len() <= entries(4, 256, 2));
    }
}
