//! The log: one line an event, for people or as JSON.
//!
//! Names in it may be made to hurt: whatever is no printable text is escaped, so that a line stays a line.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::SystemTime;

use plimsoll_config::LogFormat;
use serde_json::{Map, Value};

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Somebody should look.
    Warn,
    /// What happened.
    Info,
}

/// Bytes from outside as text that is safe to print: printable ASCII as it is, everything else escaped.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// A text that stays on its line: what does not print is escaped. What stands escaped in it already stays as it is.
fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '\'' | '"' => printable.push(character),
            other => printable.extend(other.escape_debug()),
        }
    }
    printable
}

/// Prints an answer. Whoever reads it may have read enough.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Says something beside an answer. Whether anybody listens makes no difference to the answer.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "plimsoll: {text}");
}

/// Renders one line, without its end. `now` is seconds and milliseconds since the epoch.
pub(crate) fn line(
    format: LogFormat,
    now: SystemTime,
    level: Level,
    message: &str,
    fields: &Map<String, Value>,
) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let level = match level {
        Level::Warn => "warn",
        Level::Info => "info",
    };
    match format {
        LogFormat::Json => {
            let mut object = Map::new();
            let time = format!("{}.{:03}", since.as_secs(), since.subsec_millis());
            object.insert("time".into(), Value::String(time));
            object.insert("level".into(), level.into());
            object.insert("message".into(), message.into());
            object.extend(fields.clone());
            Value::Object(object).to_string()
        }
        LogFormat::Text => {
            let mut text = format!("{level}: {}", printable(message));
            for (key, value) in fields {
                // Writing into a String does not fail.
                let _ = write!(text, " {key}={}", printable(&value.to_string()));
            }
            text
        }
    }
}

/// From now on, what the kernel side logs is a line on this process's standard error, in the form of the log. For
/// debugging: it allocates and writes in the thread that watches.
#[cfg(feature = "log")]
pub(crate) fn print_kernel_side(format: LogFormat) {
    // Only a second call fails, and there is one core in a process.
    let _ = ::log::set_logger(Box::leak(Box::new(KernelSide(format))));
}

#[cfg(feature = "log")]
struct KernelSide(LogFormat);

#[cfg(feature = "log")]
impl ::log::Log for KernelSide {
    fn enabled(&self, _: &::log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &::log::Record<'_>) {
        let fields = Map::from_iter([("program".to_owned(), Value::from(record.target()))]);
        let text = line(self.0, SystemTime::now(), Level::Info, &record.args().to_string(), &fields) + "\n";
        // Nobody may be listening.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_line_stays_a_line() {
        let mut fields = Map::new();
        fields.insert("cgroup".into(), escaped(b"a\nb\x1b[31m\xff").into());
        fields.insert("bytes".into(), 7.into());
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        let message = format!("killed\nthem: {} and \"{}\"", escaped(b"a\n\\x2d"), '\u{202e}');
        let text = line(LogFormat::Text, now, Level::Warn, &message, &fields);
        assert_eq!(
            text,
            "warn: killed\\nthem: a\\n\\\\x2d and \"\\u{202e}\" bytes=7 cgroup=\"a\\\\nb\\\\x1b[31m\\\\xff\""
        );
        let json = line(LogFormat::Json, now, Level::Info, "killed\nthem", &fields);
        let read: Value = serde_json::from_str(&json).expect("it is JSON");
        assert!(!json.contains('\n'));
        assert_eq!(read["time"], "1.500");
        assert_eq!(read["bytes"], 7);
        assert_eq!(read["message"], "killed\nthem");
    }
}
