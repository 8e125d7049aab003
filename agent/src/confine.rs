//! What keeps the processes that read what others write, the reporter, `services`, the scanner and the broker, from the rest of
//! the machine: for each a user of its own with no capability, or the one that it needs, Landlock for files, and a filter
//! of system calls for all the rest.
//!
//! In this order: what a process needs is opened while it is still root, [`Part::confine`] before it starts a thread,
//! [`Part::filter`] once all is set up.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, PathBeneath, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _,
    RulesetStatus, Scope, path_beneath_rules,
};
use plimsoll_node::NodeError;
use plimsoll_node::capabilities::{self, Capability};
use plimsoll_node::clock::monotonic;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, chownat, fstat, openat};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior};
use rustix::thread::{set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A process that is confined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// In sentences.
    name: &'static str,
    /// Its user and group. No user has the number: systemd leaves 65520 to 65533 unused (UIDS-GIDS.md), Debian reserves
    /// them (policy 9.2.2), and subordinate users begin at 65536 or above.
    pub(crate) id: u32,
    /// What it keeps.
    capabilities: &'static [Capability],
}

/// Nothing on the machine belongs to its user but the directory of a trace.
pub(crate) const REPORTER: Part = Part { name: "the reporter", id: 65526, capabilities: &[] };

/// Nothing on the machine belongs to its user but what is given to it to read.
pub(crate) const SERVICES: Part = Part { name: "the process services", id: 65525, capabilities: &[] };

/// Nothing on the machine belongs to its user. Volumes of pods belong to any.
pub(crate) const SCANNER: Part =
    Part { name: "the scanner", id: 65524, capabilities: &[capabilities::DAC_READ_SEARCH] };

/// The same. It has what a connection to the container runtime is worth, and no file.
pub(crate) const BROKER: Part = Part { name: "the broker", id: 65523, capabilities: &[] };

/// What a part needs until it has its own user: to take it, and to give it the directory of a trace or of the journal.
pub(crate) const CAPABILITIES: [Capability; 3] = [capabilities::SETUID, capabilities::SETGID, capabilities::CHOWN];

/// The files that a part still reaches; none unless named.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Files<'f> {
    /// Those of a trace in this directory, to be written.
    pub(crate) written: Option<&'f Path>,
    /// Those in this directory, to be read.
    pub(crate) read: Option<BorrowedFd<'f>>,
    /// The same in this one.
    pub(crate) read_too: Option<BorrowedFd<'f>>,
    /// Those of a journal in this directory, to be read and written.
    pub(crate) kept: Option<BorrowedFd<'f>>,
    /// None; but these directories and those below may be listed.
    pub(crate) listed: &'f [OwnedFd],
}

/// Enters the directory that the trace is written in: the reporter's user may not enter those above. One that is not
/// there is made, and given to that user; where giving it is not allowed, and where it was there before, which may be
/// for others' files, the machine's owner has to give it.
pub(crate) fn enter_directory(trace: &Path) -> std::io::Result<&'static Path> {
    let id = Some(REPORTER.id);
    if let Some(parent) = trace.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::create_dir(trace).and_then(|()| std::os::unix::fs::chown(trace, id, id)) {
        Err(error) if !matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::PermissionDenied) => {
            return Err(error);
        }
        Ok(()) | Err(_) => {}
    }
    std::env::set_current_dir(trace)?;
    Ok(Path::new("."))
}

/// Finds the directory of the journal, for the user of services to open: root may make it, and gives it to that user while it
/// is root's still. Where giving it is not allowed, the machine's owner has to.
pub(crate) fn find_journal(directory: &Path) -> std::io::Result<OwnedFd> {
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists && !directory.is_dir() => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // Without a capability that opens what is another user's, which it becomes.
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(CWD, directory, how, Mode::empty())?;
    if fstat(&found)?.st_uid == 0 {
        let (user, group) = (Uid::from_raw(SERVICES.id), Gid::from_raw(SERVICES.id));
        // What is refused here is reported where it is written to.
        let _ = chownat(&found, "", Some(user), Some(group), AtFlags::EMPTY_PATH);
    }
    Ok(found)
}

impl Part {
    /// Takes the part's own user, drops every capability but its own, and bars this thread, and those that it starts, from every
    /// file that is not open yet but `files`. Gives what could not be had, in sentences.
    pub(crate) fn confine(self, files: Files<'_>) -> anyhow::Result<Vec<String>> {
        let Self { name, id, capabilities: own } = self;
        let mut troubles = Vec::new();
        // Where the kernel's clock is mapped is found once, by a call or a file that are refused later.
        let _ = monotonic();
        // Those that a process keeps as another user are dropped right below, but its own.
        if let Err(errno) = set_keep_capabilities(true).and_then(|()| become_user(id)) {
            troubles.push(format!("{name} keeps user 0, without capabilities: it cannot become user {id}: {errno}"));
        }
        let missing = capabilities::keep_only(own)?;
        troubles.extend(missing.iter().map(|capability| format!("{name} does without {capability}")));
        // No process of the same user may look into it.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        if let Err(why) = bar_files(files) {
            troubles.push(format!("{name} is not barred from files: {why}"));
            // With it every file of the machine could be read.
            capabilities::keep_only(&[])?;
        }
        Ok(troubles)
    }

    /// Has this thread, which ends with what it tries, be the part's user and reach no other file than the part does.
    ///
    /// # Errors
    /// Where this process may not become that user. Files are barred as far as the kernel can, as by [`Part::confine`].
    pub(crate) fn try_out(self, files: Files<'_>) -> Result<(), Errno> {
        become_user(self.id)?;
        let _ = bar_files(files);
        Ok(())
    }

    /// Has every thread refused the system calls that the part does not need, by `filter`. Gives why that could not be
    /// had.
    pub(crate) fn filter(self, filter: impl FnOnce() -> Result<(), NodeError>) -> Result<(), String> {
        filter().map_err(|error| format!("{} may make every system call that its user may: {error}", self.name))
    }
}

fn become_user(id: u32) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    // Of this thread alone.
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

fn bar_files(files: Files<'_>) -> Result<(), String> {
    let Files { written, read, read_too, kept, listed } = files;
    let write = AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate;
    let opened = AccessFs::ReadFile | AccessFs::ReadDir;
    let listed = listed.iter().map(|directory| (directory.as_fd(), AccessFs::ReadDir.into()));
    let read = read.into_iter().chain(read_too).map(|it| (it, opened));
    let mut below = read.chain(kept.map(|it| (it, opened | write))).chain(listed);
    let barred = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))
        // From Linux 6.12 on it cannot signal the core or the supervisor either.
        .and_then(|rules| rules.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rules(path_beneath_rules(written, write)))
        .and_then(|rules| {
            below.try_fold(rules, |rules, (directory, access)| rules.add_rule(PathBeneath::new(directory, access)))
        })
        .and_then(RulesetCreated::restrict_self);
    match barred {
        Ok(status) if status.ruleset == RulesetStatus::NotEnforced => {
            Err("this kernel has no Landlock, or it is off (lsm=)".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether this thread is refused a file that every user may read.
pub(crate) fn is_confined() -> bool {
    File::open("/proc/self/status").is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}
