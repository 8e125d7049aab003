//! Taking over from an agent that is gone: a thread that waits for the right to act, undoes what that agent left, and
//! hands the watching thread what it needs to act. The source goes on as it is: nothing is loaded a second time.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::Context as _;
use plimsoll_act::Worker;
use plimsoll_config::Configuration;
use plimsoll_node::cgroup::Root;

use super::inventory::{TakenOver, wake};
use super::past::{Past, enforcer, resumer};
use super::watch::Means;
use crate::acting::Turn;

/// The thread's stack, locked like all memory of this process until it has done its duty.
const STACK: usize = 128 << 10;

/// Its ways to the other threads.
pub(super) struct Ways {
    pub(super) means: rtrb::Producer<Means>,
    /// The worker that writes to cgroups' files, with its priority.
    pub(super) writer: Worker,
    /// Written when they are there.
    pub(super) news: OwnedFd,
    /// What the inventory thread says of it.
    pub(super) taken_over: Sender<TakenOver>,
}

/// Starts it, after this process gave up what it needed for its start only. `brakes_in_kernel`: the kernel may stop
/// processes for this agent.
pub(super) fn start(
    turn: Turn,
    configuration: Configuration,
    root: Root,
    brakes_in_kernel: bool,
    ways: Ways,
) -> anyhow::Result<()> {
    let serve = move || {
        let taken_over = turn.wait().and_then(|()| take_over(&configuration, &root, brakes_in_kernel, ways));
        if let Err(error) = taken_over {
            // The lock is free again with this process, and its next start says the same or does it.
            crate::log::complain(&format!("cannot take over from the agent that acted: {error:#}"));
            // The runtime's own exit takes locks that other threads may hold.
            signal_hook::low_level::exit(1);
        }
    };
    let thread = thread::Builder::new().name("succession".into()).stack_size(STACK).spawn(serve);
    thread.map(drop).context("cannot start the thread that takes over")
}

fn take_over(configuration: &Configuration, root: &Root, brakes_in_kernel: bool, ways: Ways) -> anyhow::Result<()> {
    let Ways { mut means, writer, news, taken_over } = ways;
    let mut troubles = Vec::new();
    let mut past = Past::undo(configuration, root, &mut troubles)?;
    let (undone, left) = (past.counts, std::mem::take(&mut past.left));
    let enforcer = enforcer(configuration, past, root, writer, &news, &mut troubles)?;
    let resumer = if brakes_in_kernel { resumer()? } else { None };
    // The receiver is gone where this process is just ending.
    let _ = taken_over.send(TakenOver { undone, left, troubles });
    let _ = means.push(Means { enforcer, resumer });
    wake(&news);
    Ok(())
}
