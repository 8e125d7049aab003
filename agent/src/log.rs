//! What a command prints. What `run` logs are events of `tracing`.

use std::io::Write as _;

/// Prints an answer. Its reader may have closed the pipe.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a remark beside an answer, to standard error.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "plimsoll: {text}");
}

/// From now on, what the kernel side logs is a line on this process's standard error, in the form of the log. For
/// debugging: it allocates in the thread that watches.
#[cfg(feature = "log")]
pub(crate) fn print_kernel_side(format: plimsoll_config::LogFormat) -> std::io::Result<()> {
    plimsoll_report::Log::start(format, plimsoll_report::LevelFilter::INFO, std::io::stderr(), || {})?.install()?;
    ::log::set_logger(&KernelSide).map_err(|error| std::io::Error::other(error.to_string()))
}

#[cfg(feature = "log")]
struct KernelSide;

#[cfg(feature = "log")]
impl ::log::Log for KernelSide {
    fn enabled(&self, _: &::log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &::log::Record<'_>) {
        tracing::info!(program = record.target(), "{}", record.args());
    }

    fn flush(&self) {}
}

#[cfg(test)]
pub(crate) mod tests {
    use plimsoll_config::LogFormat;
    use plimsoll_report::{LevelFilter, Log};
    use std::io::Read as _;
    use std::time::Duration;

    /// What the log has of it, from warnings on.
    pub(crate) fn warnings(log_it: impl FnOnce()) -> String {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let log = Log::start(LogFormat::Text, LevelFilter::WARN, writer, || {}).expect("a thread");
        log.within(log_it);
        assert!(log.finish(Duration::from_mins(1)), "a pipe has room");
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("its thread has ended");
        text
    }
}
