//! The manifests of static pods, which mostly root alone may read (kubeadm writes them so).
//!
//! `services` opens none of them. A thread of the supervisor does when it is asked, and hands descriptors over: what is in the
//! files is read by `services`, which is confined, and not by a process of root's whose memory is locked. A thread of its own
//! does so there. Nothing else waits for either thread: a disk may not answer.
//!
//! A symbolic link is followed, as the kubelet does: what can write there has the kubelet run any pod as root.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use plimsoll_pods::{Pod, read_manifest};
use plimsoll_report::text::printable;
use plimsoll_state::handover::{self, Manifests};
use rustix::event::PollFlags;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::answering::{Answering, PAUSE, is_closed, sent, wait};

/// So many files at most, more than twice the pods that a node has by default.
pub(crate) const MOST_FILES: usize = 256;
/// The longest file, in bytes: as long as what etcd takes at once (`DefaultMaxRequestBytes`).
const MOST_BYTES: u64 = 3 << 19;
/// Characters of what is said of a file: a parser may repeat what is in it.
const CHARACTERS: usize = 500;
/// The supervisor's thread's stack, locked like all memory of the supervisor as far as it is used.
const STACK: usize = 256 << 10;

/// Opens what is at this path, as the kubelet does (pkg/kubelet/config/file.go): a file, or in a directory the files whose names
/// do not begin with a dot, in the order of their names. Gives each name with the file, or with why it is not opened. Other
/// directories are passed over.
///
/// # Errors
/// Why there is nothing, or not all.
fn open(path: &Path, mut take: impl FnMut(&[u8], Result<OwnedFd, String>)) -> Result<(), String> {
    let at_path = |errno: Errno| errno.to_string();
    let found = statat(CWD, path, AtFlags::empty()).map_err(at_path)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let file = CString::new(path.as_os_str().as_bytes()).map_err(|_| at_path(Errno::INVAL))?;
        if let Some(file) = open_file(CWD, &file) {
            take(name, file);
        }
        return Ok(());
    }
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, path, how, Mode::empty()).map_err(at_path)?;
    let (mut names, mut has_more) = (BTreeSet::new(), false);
    for entry in Dir::read_from(&directory).map_err(at_path)? {
        let entry = entry.map_err(at_path)?;
        if !entry.file_name().to_bytes().starts_with(b".") {
            names.insert(entry.file_name().to_owned());
        }
        if names.len() > MOST_FILES {
            names.pop_last();
            has_more = true;
        }
    }
    for name in names {
        if let Some(file) = open_file(&directory, &name) {
            take(name.to_bytes(), file);
        }
    }
    if has_more { Err(format!("it has more than {MOST_FILES} files, and others are not read")) } else { Ok(()) }
}

/// `None` for a directory.
fn open_file(directory: impl AsFd, name: &CStr) -> Option<Result<OwnedFd, String>> {
    let usable = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if u64::try_from(stat.st_size).is_ok_and(|size| size <= MOST_BYTES) => Ok(()),
        FileType::RegularFile => Err(too_long()),
        _ => Err("it is no regular file".to_owned()),
    };
    let found = match statat(&directory, name, AtFlags::empty()) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => return None,
        found => found.map_err(|errno| errno.to_string()),
    };
    Some(found.and_then(|found| {
        // What something is done with when it is opened, as with a device, is not opened.
        usable(&found)?;
        let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&directory, name, how, Mode::empty()).map_err(|errno| errno.to_string())?;
        fstat(&file).map_err(|errno| errno.to_string()).and_then(|opened| usable(&opened))?;
        Ok(file)
    }))
}

fn too_long() -> String {
    format!("it is longer than {MOST_BYTES} bytes")
}

/// Reads a manifest.
///
/// # Errors
/// Why it cannot be, in one line.
fn parse(file: OwnedFd) -> Result<Pod, String> {
    let mut bytes = Vec::new();
    File::from(file).take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(too_long());
    }
    read_manifest(&bytes).map_err(|error| format!("line {error}"))
}

/// All manifests at a path as this process may read them, and what cannot be read, each in one printable line.
pub(crate) fn read(path: &Path) -> (Vec<Pod>, Vec<String>) {
    let (mut pods, mut troubles) = (Vec::new(), Vec::new());
    let opened = open(path, |name, file| match file.and_then(parse) {
        Ok(pod) => pods.push(pod),
        Err(why) => troubles.push(sentence(name, &why)),
    });
    troubles.extend(opened.map_err(|why| sentence(b"", &why)).err());
    (pods, troubles)
}

/// What is wrong with a file, or with all where the name is empty: printable and bounded.
fn sentence(name: &[u8], why: &str) -> String {
    let name = String::from_utf8_lossy(name);
    let text = if name.is_empty() { why.to_owned() } else { format!("{name}: {why}") };
    printable(&text).chars().take(CHARACTERS).collect()
}

/// What is wrong, by the name of the file: each is logged once, for as long as it stays so.
#[derive(Debug, Default)]
struct Troubles {
    before: BTreeMap<Vec<u8>, String>,
    now: BTreeMap<Vec<u8>, String>,
}

impl Troubles {
    /// Gives the sentence, where it is a new one.
    fn note(&mut self, name: &[u8], why: &str) -> Option<String> {
        let sentence = sentence(name, why);
        let is_new = self.before.get(name) != Some(&sentence);
        self.now.insert(name.to_owned(), sentence.clone());
        is_new.then_some(sentence)
    }

    /// Logs it.
    fn warn(&mut self, name: &[u8], why: &str) {
        if let Some(sentence) = self.note(name, why) {
            tracing::warn!("manifests of static pods: {sentence}; what such a pod requests is known from a list alone");
        }
    }

    /// All files were looked at.
    fn end(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

/// The end for a new `services` of a way to a thread that answers with what is at this path, until that end is closed.
///
/// # Errors
/// Where no thread can be started, or those for earlier ones still wait for a disk.
pub(crate) fn serve(answering: &mut Answering, path: PathBuf) -> std::io::Result<OwnedFd> {
    let mut troubles = Troubles::default();
    let thread = thread::Builder::new().name("manifests".into()).stack_size(STACK);
    answering.begin(thread, PAUSE, move |way| hand_over(way, &path, &mut troubles))
}

/// Answers once; false: the other end is closed.
fn hand_over(way: &OwnedFd, path: &Path, troubles: &mut Troubles) -> bool {
    let mut is_open = true;
    let opened = open(path, |name, file| match file {
        Ok(file) => is_open = is_open && sent(way, || handover::send_manifest(way, name, &file)),
        Err(why) => troubles.warn(name, &why),
    });
    if let Err(why) = opened {
        troubles.warn(b"", &format!("{}: {why}", path.display()));
    }
    troubles.end();
    is_open && sent(way, || handover::send_manifests_end(way))
}

/// Has a thread of `services` read what is handed over at `way`: what is in a file may be on a disk that does not answer. Gives
/// all that can be read of each answer, and last why there will be none.
///
/// # Errors
/// Where no thread can be started.
pub(crate) fn receive(way: Arc<OwnedFd>) -> std::io::Result<mpsc::Receiver<Result<Vec<Pod>, Errno>>> {
    let (answers, received) = mpsc::channel(1);
    let read = move || {
        let mut troubles = Troubles::default();
        loop {
            let answer = read_answer(&way, &mut troubles);
            let is_last = answer.is_err();
            if answers.blocking_send(answer).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("manifests".into()).spawn(read)?;
    Ok(received)
}

/// Reads all manifests of the next answer, as many as there may be at most.
fn read_answer(way: &OwnedFd, troubles: &mut Troubles) -> Result<Vec<Pod>, Errno> {
    let mut pods = Vec::new();
    loop {
        match handover::receive_manifests(way) {
            Ok(Manifests::File { name, file }) => match parse(file) {
                Ok(pod) if pods.len() < MOST_FILES => pods.push(pod),
                Ok(_) => {}
                Err(why) => troubles.warn(&name, &why),
            },
            Ok(Manifests::End) => {
                troubles.end();
                return Ok(pods);
            }
            Err(Errno::AGAIN | Errno::INTR) => wait(way, PollFlags::IN, None),
            Err(errno) if is_closed(errno) || errno == Errno::BADMSG => return Err(errno),
            // As where memory is short: it may pass.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answering::{answer_all, asked, tests::await_end};
    use plimsoll_state::handover::messages_pair;
    use rustix::fs::mknodat;
    use rustix::net::{Shutdown, shutdown};
    use std::fs::write;
    use std::os::unix::fs::symlink;
    use std::time::{Duration, Instant};

    fn manifest(name: &str) -> String {
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c}}]}}\n")
    }

    fn names(pods: &[Pod]) -> Vec<&str> {
        pods.iter().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn files_are_read_in_order_and_one_that_cannot_be_costs_itself_alone() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| folder.path().join(name);
        for (file, text) in [
            ("b.yaml", manifest("b")),
            ("a.json", r#"{"kind": "Pod", "metadata": {"name": "a"}}"#.to_owned()),
            (".hidden", manifest("hidden")),
            ("odd\u{1b}[31m\n", "[".to_owned()),
            ("long.yaml", " ".repeat(usize::try_from(MOST_BYTES).expect("it fits") + 1)),
        ] {
            write(at(file), text).expect("writable");
        }
        std::fs::create_dir(at("directory")).expect("it is new");
        write(folder.path().join("directory/c.yaml"), manifest("c")).expect("writable");
        symlink("directory/c.yaml", at("link")).expect("it is new");
        symlink("nowhere", at("loose")).expect("it is new");
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("it is new");
        let (pods, troubles) = read(folder.path());
        assert_eq!(names(&pods), ["a", "b", "c"]);
        let begins =
            ["long.yaml: it is longer than 1572864 bytes", "loose: No such file", "odd\\u{1b}[31m\\n: line 1: "];
        let begins: Vec<_> = begins.into_iter().chain(["pipe: it is no regular file"]).collect();
        assert_eq!(troubles.len(), begins.len(), "{troubles:?}");
        for (trouble, begin) in troubles.iter().zip(begins) {
            assert!(trouble.starts_with(begin) && trouble.chars().count() <= CHARACTERS, "{trouble}");
        }
        let (pods, troubles) = read(&at("b.yaml"));
        assert_eq!((names(&pods), troubles.len()), (vec!["b"], 0), "one file");
        for (path, why) in [("none", "No such file"), ("pipe", "pipe: it is no regular file")] {
            let (pods, troubles) = read(&at(path));
            assert!(pods.is_empty() && troubles.len() == 1 && troubles[0].starts_with(why), "{troubles:?}");
        }
    }

    #[test]
    fn of_too_many_files_some_are_read_and_it_is_said_that_there_are_more() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        for number in 0..MOST_FILES {
            write(folder.path().join(number.to_string()), manifest("a")).expect("writable");
        }
        let (pods, troubles) = read(folder.path());
        assert_eq!((pods.len(), troubles), (MOST_FILES, Vec::new()));
        // The first ones by their names are read, in whichever order the file system has them.
        for number in 0..MOST_FILES {
            write(folder.path().join(format!("more{number}")), manifest("more")).expect("writable");
        }
        let (pods, troubles) = read(folder.path());
        assert_eq!((names(&pods), troubles.len()), (vec!["a"; MOST_FILES], 1), "{troubles:?}");
    }

    #[test]
    fn a_file_that_grows_once_it_is_opened_is_refused() {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(MOST_BYTES + 1).expect("it is ours");
        assert_eq!(parse(file.into()).map(drop), Err(too_long()));
    }

    #[test]
    fn a_trouble_is_new_until_it_was_said_and_again_once_it_was_over() {
        let mut troubles = Troubles::default();
        let mut look = |found: &[(&[u8], &str)]| {
            let new: Vec<_> = found.iter().filter_map(|(name, why)| troubles.note(name, why)).collect();
            troubles.end();
            new
        };
        assert_eq!(look(&[(b"a", "x"), (b"b", "x")]), ["a: x", "b: x"]);
        assert_eq!(look(&[(b"a", "x"), (b"b", "y")]), ["b: y"]);
        assert_eq!(look(&[(b"b", "y")]), [""; 0]);
        assert_eq!(look(&[(b"a", "x"), (b"b", "y")]), ["a: x"]);
    }

    #[test]
    fn what_is_asked_for_is_handed_over_to_its_end_however_slowly_it_is_taken() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        for number in 0..MOST_FILES {
            write(folder.path().join(format!("{number:03}")), manifest(&format!("a{number}"))).expect("writable");
        }
        let (services, way) = messages_pair().expect("sockets");
        // As little room as the kernel gives.
        rustix::net::sockopt::set_socket_send_buffer_size(&way, 1).expect("it is ours");
        let path = folder.path().to_owned();
        let mut troubles = Troubles::default();
        thread::spawn(move || answer_all(&way, Duration::ZERO, |way| hand_over(way, &path, &mut troubles)));
        assert_eq!(handover::receive_manifests(&services).err(), Some(Errno::AGAIN), "nothing was asked");
        for _ in 0..2 {
            handover::ask_for_manifests(&services).expect("room");
        }
        let begun = Instant::now();
        let mut read = Vec::new();
        loop {
            match handover::receive_manifests(&services) {
                Ok(Manifests::File { name, file }) => {
                    assert_eq!(name, format!("{:03}", read.len()).as_bytes());
                    read.push(parse(file).expect("it is in order").name);
                }
                Ok(Manifests::End) => break,
                Err(Errno::AGAIN) if begun.elapsed() < Duration::from_mins(1) => thread::yield_now(),
                Err(errno) => panic!("{errno}"),
            }
        }
        assert_eq!(read, (0..MOST_FILES).map(|number| format!("a{number}")).collect::<Vec<_>>());
    }

    #[test]
    fn of_what_is_handed_over_without_end_no_more_is_kept() {
        let (services, way) = messages_pair().expect("sockets");
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("a");
        write(&path, manifest("a")).expect("writable");
        let hostile = thread::spawn(move || {
            for _ in 0..=MOST_FILES {
                let file = std::fs::File::open(&path).expect("it is there");
                assert!(sent(&way, || handover::send_manifest(&way, b"a", &file)));
            }
            assert!(sent(&way, || handover::send_manifests_end(&way)));
        });
        let read = read_answer(&services, &mut Troubles::default()).expect("it has an end");
        assert_eq!(names(&read), vec!["a"; MOST_FILES]);
        hostile.join().expect("no panic");
        assert_eq!(read_answer(&services, &mut Troubles::default()).err(), Some(Errno::PIPE));
    }

    #[test]
    fn the_thread_ends_with_services() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        write(folder.path().join("a"), manifest("a")).expect("writable");
        let (services, way) = messages_pair().expect("sockets");
        handover::ask_for_manifests(&services).expect("room");
        assert!(asked(&way));
        // Its descriptor may be open for a moment longer, in a child that another test has just forked.
        shutdown(&services, Shutdown::Both).expect("it is open");
        assert!(!hand_over(&way, folder.path(), &mut Troubles::default()), "it is sent to nothing");
        assert!(!asked(&way));
        let mut answering = Answering::default();
        drop(serve(&mut answering, folder.path().to_owned()).expect("a thread starts"));
        await_end(&answering);
    }
}
