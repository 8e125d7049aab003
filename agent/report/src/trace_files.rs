//! Writes a trace into a ring of files, for `plimsoll replay`. A thread of its own does: it may wait for a disk, and
//! neither the core nor the log waits for it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};

use plimsoll_node::clock::epoch_ns;
use plimsoll_units::{Bytes, MonotonicNs};

use crate::trace::{Entry, Header, VERSION};

/// Files of the ring. The newest is `trace.jsonl`, older ones `trace.1.jsonl` and so on.
const FILES: u32 = 4;
/// Entries that wait to be written; of more, the newest are left out.
const WAITING: usize = 1024;

/// A ring of files, bounded in size.
struct Ring {
    folder: PathBuf,
    /// A file is full at this many bytes.
    most: u64,
    header: String,
    file: File,
    /// So many bytes of it are whole lines, and there are no others.
    written: u64,
    last: [MonotonicNs; 2],
}

fn path(folder: &Path, age: u32) -> PathBuf {
    folder.join(if age == 0 { "trace.jsonl".to_owned() } else { format!("trace.{age}.jsonl") })
}

impl Ring {
    /// Begins a new file in `folder`; all files together stay below `size`.
    fn open(folder: &Path, size: Bytes, header: &Header) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let header = serde_json::to_string(header)? + "\n";
        let most = size.0 / u64::from(FILES);
        let (file, written) = begin(folder, most, &header)?;
        Ok(Self { folder: folder.to_owned(), most, header, file, written, last: [MonotonicNs(0); 2] })
    }

    fn write(&mut self, mut entry: Entry) -> io::Result<()> {
        // Plans about slices come after the machine's: times go up all the same, those of disks by themselves.
        let last = &mut self.last[usize::from(entry.is_of_disks())];
        let at = match &mut entry {
            Entry::Sample(sample) => &mut sample.at_ns,
            Entry::Reported(reported) => &mut reported.at_ns,
            Entry::Disks(sample) => &mut sample.at_ns,
        };
        *at = (*last).max(*at);
        *last = *at;
        let line = serde_json::to_string(&entry)? + "\n";
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if self.header.len() as u64 + length > self.most {
            return Err(io::Error::other("one line is longer than a file may be; set a larger --trace-size"));
        }
        if self.written + length > self.most {
            (self.file, self.written) = begin(&self.folder, self.most, &self.header)?;
        }
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            // A disk that is full takes the beginning of a line: the next one would be appended to it, and no line of the file
            // could be replayed.
            self.file.seek(SeekFrom::Start(self.written))?;
            self.file.set_len(self.written)?;
            return Err(error);
        }
        self.written += length;
        Ok(())
    }
}

/// Begins a new file and moves the others on by one. `most` is what it may come to.
///
/// Where it cannot be begun, the others stay as they are but for those that are removed for it, so that attempts on a disk
/// that is full push none out.
fn begin(folder: &Path, most: u64, header: &str) -> io::Result<(File, u64)> {
    // The oldest goes first: what it takes may be all that such a disk has left. Files of an earlier run may be larger than
    // those of this one: the oldest go until there is room for the new one.
    let mut room = most.saturating_mul(u64::from(FILES - 1));
    for age in 0..FILES {
        let path = path(folder, age);
        let Ok(length) = fs::metadata(&path).map(|file| file.len()) else { continue };
        if length > room || age == FILES - 1 {
            fs::remove_file(&path)?;
        }
        room = room.saturating_sub(length);
    }
    let new = folder.join("trace.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&new)?;
    file.write_all(header.as_bytes())?;
    for age in (1..FILES).rev() {
        match fs::rename(path(folder, age - 1), path(folder, age)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    fs::rename(new, path(folder, 0))?;
    Ok((file, header.len() as u64))
}

/// What the first line of a trace that begins now says.
fn header() -> Header {
    Header { version: VERSION, agent: env!("CARGO_PKG_VERSION").to_owned(), epoch_ns: epoch_ns() }
}

/// The files of a trace, the first of them open.
pub struct TraceFiles(Ring);

impl TraceFiles {
    /// Begins a new file in `folder`; all files together stay below `size`.
    ///
    /// # Errors
    /// Where the folder or the file cannot be made.
    pub fn open(folder: &Path, size: Bytes) -> io::Result<Self> {
        Ring::open(folder, size, &header()).map(Self)
    }

    /// Starts the thread that writes, and gives what hands it an entry, without waiting: false where there is no room.
    /// The thread ends when that is dropped.
    ///
    /// # Errors
    /// Where the thread cannot be started.
    pub fn start(self) -> io::Result<impl Fn(Entry) -> bool + Send> {
        let (entries, written) = sync_channel(WAITING);
        std::thread::Builder::new().name("trace".into()).spawn(move || self.serve(&written))?;
        Ok(move |entry| entries.try_send(entry).is_ok())
    }

    fn serve(self, entries: &Receiver<Entry>) {
        let Self(mut ring) = self;
        let mut is_failing = false;
        for entry in entries {
            match ring.write(entry) {
                Ok(()) => is_failing = false,
                Err(error) => {
                    // Once until it works again.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!("the trace cannot be written: {error}");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Reported, Sample};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::process::Command;

    fn entries(folder: &Path, age: u32) -> Vec<Entry> {
        let text = fs::read_to_string(path(folder, age)).expect("a file of the ring");
        let mut lines = text.lines();
        let header: Header = serde_json::from_str(lines.next().expect("a first line")).expect("a header");
        assert!(header.epoch_ns.is_some() && text.ends_with('\n'));
        lines.map(|line| serde_json::from_str(line).expect("an entry")).collect()
    }

    #[test]
    fn the_ring_stays_within_its_size_and_each_file_is_whole() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let size = Bytes(1600);
        let mut ring = Ring::open(folder.path(), size, &header()).expect("writable");
        for at in 0..100 {
            ring.write(Entry::Sample(Sample { at_ns: MonotonicNs(at), ..Sample::default() })).expect("writable");
        }
        let files: Vec<PathBuf> =
            fs::read_dir(folder.path()).expect("it is there").map(|it| it.expect("readable").path()).collect();
        assert_eq!(files.len(), FILES as usize);
        let total: u64 = files.iter().map(|file| fs::metadata(file).expect("it is there").len()).sum();
        assert!(total <= size.0, "{total}");
        let all: Vec<u64> = (0..FILES).rev().flat_map(|age| entries(folder.path(), age)).map(|it| it.at().0).collect();
        let first = all[0];
        assert_eq!(all, (first..100).collect::<Vec<_>>(), "nothing between is missing");
    }

    /// Runs a test in a process of its own, which a limit on the size of files does not end.
    fn alone(name: &str, test: impl FnOnce()) {
        if std::env::var("LIMITED").as_deref() == Ok(name) {
            return test();
        }
        let own = std::env::current_exe().expect("this test");
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(own).env("LIMITED", name);
        let output = command.args(["--exact", &format!("trace_files::tests::{name}"), "--nocapture"]).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }

    /// From here on a file may have no more bytes than these: what is longer is cut, as on a disk that is full.
    fn limit(bytes: Option<u64>) {
        let Rlimit { maximum, .. } = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).expect("no more than the maximum");
    }

    #[test]
    fn a_full_disk_leaves_no_half_line_and_pushes_no_file_out() {
        alone("a_full_disk_leaves_no_half_line_and_pushes_no_file_out", || {
            let folder = tempfile::tempdir().expect("a temporary directory");
            let sample = |at| Entry::Sample(Sample { at_ns: MonotonicNs(at), ..Sample::default() });
            let mut ring = Ring::open(folder.path(), Bytes(1600), &header()).expect("writable");
            ring.write(sample(0)).expect("writable");
            limit(Some(ring.written + 20));
            for at in 1..3 {
                assert!(ring.write(sample(at)).is_err(), "there is room for a part of it");
                assert_eq!(entries(folder.path(), 0).len(), 1, "what was written is whole");
            }
            limit(None);
            ring.write(sample(3)).expect("writable");
            assert_eq!(entries(folder.path(), 0).len(), 2, "it follows what is whole");
            // All files of the ring are there, and the newest is full.
            let line = serde_json::to_string(&sample(99)).expect("it is JSON").len() as u64 + 1;
            let mut next = 4;
            while next < 80 || ring.written + line <= ring.most {
                ring.write(sample(next)).expect("writable");
                next += 1;
            }
            let files = || [0, 1, 2, 3].map(|age| fs::read(path(folder.path(), age)).ok());
            let mut kept = files();
            assert!(kept.iter().all(Option::is_some));
            limit(Some(0));
            for _ in 0..10 {
                assert!(ring.write(sample(next)).is_err(), "there is no room for anything");
            }
            // It goes with the next file in any case.
            kept[3] = None;
            assert_eq!(files(), kept);
            limit(None);
            ring.write(sample(next)).expect("writable");
            let all: Vec<u64> =
                (0..FILES).rev().flat_map(|age| entries(folder.path(), age)).map(|it| it.at().0).collect();
            assert_eq!(all, (all[0]..=next).collect::<Vec<_>>(), "nothing between is missing");
        });
    }

    #[test]
    fn a_ring_that_was_larger_shrinks_and_keeps_the_newest() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let length = |age| fs::metadata(path(folder.path(), age)).map_or(0, |file| file.len());
        let total = || (0..FILES).map(length).sum::<u64>();
        let sample = |at| Entry::Sample(Sample { at_ns: MonotonicNs(at), ..Sample::default() });
        let mut ring = Ring::open(folder.path(), Bytes(8000), &header()).expect("writable");
        for at in 0..400 {
            ring.write(sample(at)).expect("writable");
        }
        assert!(total() > 6000, "{}", total());
        drop(ring);
        let size = 3200;
        let mut ring = Ring::open(folder.path(), Bytes(size), &header()).expect("writable");
        assert_eq!(entries(folder.path(), 1).last().map(|entry| entry.at().0), Some(399), "the newest is kept");
        for at in 400..500 {
            assert!(total() <= size, "{}", total());
            ring.write(sample(at)).expect("writable");
        }
        assert!(total() <= size, "{}", total());
    }

    #[test]
    fn a_plan_that_comes_late_does_not_go_back_in_time_and_one_too_long_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut ring = Ring::open(folder.path(), Bytes(4000), &header()).expect("writable");
        ring.write(Entry::Sample(Sample { at_ns: MonotonicNs(9), ..Sample::default() })).expect("writable");
        let reported = |line: String| {
            Entry::Reported(Reported { at_ns: MonotonicNs(7), slice: None, line, plan: serde_json::Map::new() })
        };
        ring.write(reported("calm".into())).expect("writable");
        assert!(ring.write(reported("x".repeat(1000))).is_err());
        let times: Vec<u64> = entries(folder.path(), 0).iter().map(|entry| entry.at().0).collect();
        assert_eq!(times, [9, 9]);
    }

    #[test]
    fn samples_and_plans_are_written_until_there_are_no_more() {
        let folder = tempfile::tempdir().expect("a directory");
        let write = TraceFiles::open(folder.path(), Bytes::mib(1)).expect("writable").start().expect("a thread");
        let plan = serde_json::Map::from_iter([("outcome".to_owned(), "evict".into())]);
        let reported = Reported { at_ns: MonotonicNs(1), slice: None, line: "evicting".into(), plan };
        let all = [Entry::Sample(Sample { at_ns: MonotonicNs(1), ..Sample::default() }), Entry::Reported(reported)];
        for entry in &all {
            assert!(write(entry.clone()), "there is room");
        }
        while entries(folder.path(), 0) != all {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
