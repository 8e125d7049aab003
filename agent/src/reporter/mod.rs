//! The reporter: logs, metrics, health. May be slow, may be paged out, may die: the core goes on.

use crate::QueueNumbers;
use crate::options::Options;

/// What the supervisor starts the reporter with.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The watching thread's queue.
    #[arg(long)]
    queue: QueueNumbers,
    /// The scout thread's queue.
    #[arg(long)]
    slow: QueueNumbers,
}

/// Runs until SIGTERM.
pub(crate) fn main(arguments: &Arguments) -> anyhow::Result<()> {
    let _ = (arguments.options.load(None)?, arguments.queue.take()?, arguments.slow.take()?);
    Ok(())
}
