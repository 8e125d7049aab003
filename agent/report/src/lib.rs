//! What becomes of the core's records: lines of the log and of the kernel's own log, metrics, health, and traces.
//!
//! [`record`] has the records, by domain. The core encodes them into queues and does nothing else of what is here. The
//! reporter reads them and hands each one to [`Reporter::report`], which gives it to every sink; each sink matches all
//! domains and names those that it leaves out. Nothing here opens a file but a trace's, or serves a network.

#![forbid(unsafe_code)]

mod answers;
mod comparison;
mod container_log;
mod container_metrics;
mod disk_victim;
mod fields;
mod health;
mod kernel_log;
mod log;
mod log_sink;
mod log_writer;
mod metrics;
mod metrics_sink;
mod names;
mod observed;
mod orphaned_log;
mod plan;
pub mod record;
mod reporter;
mod signal_metrics;
pub mod text;
pub mod trace;
mod trace_files;
mod trace_sink;
mod witnessed;

pub use answers::Answers;
pub use fields::{nanoseconds, plan_fields, variant};
pub use log::Log;
pub use metrics::Metrics;
pub use names::{NAME_MESSAGE, NameMessage, PodNames};
pub use reporter::Reporter;
pub use trace_files::TraceFiles;
/// The levels of the log.
pub use tracing::level_filters::LevelFilter;
pub use witnessed::{Ended, EndedBy, Witnessed};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also where a thread panicked while it held the lock: what is reported then is of no harm.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
