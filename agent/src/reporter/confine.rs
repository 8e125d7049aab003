//! What keeps the reporter, which parses requests from the network, from the rest of the machine: a user of its own
//! without capabilities, Landlock for files, and a filter of system calls for all the rest.
//!
//! In this order: what it needs is opened while it is still root, [`confine`] before it starts a thread,
//! [`filter`] once all is set up.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus,
    Scope, path_beneath_rules,
};
use plimsoll_node::capabilities::{self, Capability};
use plimsoll_node::system_calls;
use rustix::process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The reporter's user and group. No user has the number: systemd leaves 65520 to 65533 unused (UIDS-GIDS.md), Debian
/// reserves them (policy 9.2.2), and subordinate users begin at 65536 or above. Nothing on the machine belongs to it
/// but the directory of a trace.
pub(super) const ID: u32 = 65526;

/// What the reporter needs until it has its own user: to take it, and to give it the directory of a trace.
pub(super) const CAPABILITIES: [Capability; 3] = [capabilities::SETUID, capabilities::SETGID, capabilities::CHOWN];

/// Enters the directory that the trace is written in: the reporter's user may not enter those above. One that is not
/// there is made, and given to that user; where giving it is not allowed, and where it was there before, which may be
/// for others' files, the machine's owner has to give it.
pub(super) fn enter_directory(trace: &Path) -> std::io::Result<&'static Path> {
    if let Some(parent) = trace.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::create_dir(trace).and_then(|()| std::os::unix::fs::chown(trace, Some(ID), Some(ID))) {
        Err(error) if !matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::PermissionDenied) => {
            return Err(error);
        }
        Ok(()) | Err(_) => {}
    }
    std::env::set_current_dir(trace)?;
    Ok(Path::new("."))
}

/// Takes the reporter's own user, drops every capability, and bars this thread, and those that it starts, from every
/// file that is not open yet but those of a trace. Gives what could not be had, in sentences.
pub(super) fn confine(trace: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let mut troubles = Vec::new();
    if let Err(errno) = become_user() {
        troubles.push(format!("the reporter keeps user 0, without capabilities: it cannot become user {ID}: {errno}"));
    }
    capabilities::keep_only(&[])?;
    // No process of the same user may look into it.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    troubles.extend(bar_files(trace).err());
    Ok(troubles)
}

fn become_user() -> Result<(), rustix::io::Errno> {
    let (uid, gid) = (Uid::from_raw(ID), Gid::from_raw(ID));
    // Of this thread, which is the only one.
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

fn bar_files(trace: Option<&Path>) -> Result<(), String> {
    let write = AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate;
    let barred = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))
        // From Linux 6.12 on it cannot signal the core or the supervisor either.
        .and_then(|rules| rules.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rules(path_beneath_rules(trace, write)))
        .and_then(RulesetCreated::restrict_self);
    match barred {
        Ok(status) if status.ruleset == RulesetStatus::NotEnforced => {
            Err("the reporter is not barred from files: this kernel has no Landlock, or it is off (lsm=)".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the reporter is not barred from files: {error}")),
    }
}

/// Whether this thread is refused a file that every user may read.
pub(super) fn is_confined() -> bool {
    File::open("/proc/self/status").is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Refuses every thread the system calls that the reporter does not need. Gives why that could not be had.
pub(super) fn filter(traces: bool) -> Result<(), String> {
    system_calls::filter_reporter(traces)
        .map_err(|error| format!("the reporter may make every system call that its user may: {error}"))
}
