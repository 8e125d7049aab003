//! The log of a process: events of `tracing`, one a line, for people or as JSON, at a level that can be changed while
//! the process runs.
//!
//! A line in JSON has `time` (RFC 3339, in UTC and with milliseconds), `level`, `message` and the event's fields; a field that has no
//! value is null. Two names of fields are special, because the values of `tracing` are not nested: `json.NAME` is
//! text in JSON that is written as NAME, and `json` is an object in JSON whose members are fields of the line. A line
//! for people leaves `json` out: its message has every number already.
//!
//! The core installs no subscriber. What it has to report are records.

use std::fmt::{Debug, Display, Write as _, from_fn};
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_config::LogFormat;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::{Registry, reload};

use crate::log_writer::{self, LogWriter, Written};
use crate::text::printable;

/// Where events go, and at which level.
#[derive(Debug)]
pub struct Log {
    dispatch: Dispatch,
    level: reload::Handle<LevelFilter, Registry>,
    writer: LogWriter,
    written: Written,
}

impl Log {
    /// A log that is written to `target` by a thread of its own. `lost` is called for each line that could not be
    /// written.
    ///
    /// # Errors
    /// Where the thread cannot be started.
    pub fn start(
        format: LogFormat,
        level: LevelFilter,
        target: impl io::Write + Send + 'static,
        lost: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (writer, written) = log_writer::start(target, lost)?;
        let (filter, level) = reload::Layer::new(level);
        let lines = Lines { format, writer: writer.clone() };
        let dispatch = Dispatch::new(Registry::default().with(filter).with(lines));
        Ok(Self { dispatch, level, writer, written })
    }

    /// Has all events of this process written.
    ///
    /// # Errors
    /// Where another one was installed before.
    pub fn install(&self) -> io::Result<()> {
        tracing::dispatcher::set_global_default(self.dispatch.clone()).map_err(io::Error::other)
    }

    /// Has the events of this thread written while `work` runs.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        tracing::dispatcher::with_default(&self.dispatch, work)
    }

    /// Writes events of this level and of those above from now on.
    pub fn set_level(&self, level: LevelFilter) {
        // It fails where the subscriber is gone, which this value keeps.
        let _ = self.level.reload(level);
    }

    /// Lets go of the log: later events are dropped. Waits until earlier ones are written, at most so long. False: they
    /// are not.
    pub fn finish(&self, patience: Duration) -> bool {
        self.writer.close();
        self.written.wait(patience)
    }
}

/// Renders each event as a line.
#[derive(Debug)]
struct Lines {
    format: LogFormat,
    writer: LogWriter,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.writer.offer(line(self.format, event), |lines| gap(self.format, lines));
    }
}

/// The line that says how many are missing before it, its end included.
fn gap(format: LogFormat, lines: u64) -> String {
    let message = "lines of the log are missing here: they were not read in time".to_owned();
    Values { format, message, fields: vec![("lines", lines.into())] }.line(Level::WARN)
}

/// One line, its end included.
fn line(format: LogFormat, event: &Event<'_>) -> String {
    let mut values = Values { format, message: String::new(), fields: Vec::new() };
    // The order in which they are written, and null for what has no value.
    values.fields.extend(event.fields().map(|field| (field.name(), Text::Absent)));
    event.record(&mut values);
    values.line(*event.metadata().level())
}

/// The value of a field.
enum Text {
    Absent,
    /// In JSON.
    Json(String),
}

impl<T: Into<Value>> From<T> for Text {
    fn from(value: T) -> Self {
        Self::Json(value.into().to_string())
    }
}

/// The values of an event.
struct Values {
    format: LogFormat,
    message: String,
    fields: Vec<(&'static str, Text)>,
}

/// The name of the message's field, as `tracing` has it.
const MESSAGE: &str = "message";
/// The name of the field whose members are fields of the line.
const MEMBERS: &str = "json";
/// Before the name of a field whose text is JSON.
const IN_JSON: &str = "json.";

impl Values {
    fn set(&mut self, name: &'static str, value: Text) {
        if let Some((_, text)) = self.fields.iter_mut().find(|(field, _)| *field == name) {
            *text = value;
        }
    }

    fn line(&self, level: Level) -> String {
        let Self { format, message, fields } = self;
        let fields = fields.iter().filter(|(name, _)| *name != MESSAGE);
        let mut line = String::new();
        // Writing into a String does not fail.
        match format {
            LogFormat::Text => {
                // Durations are written with a sign that would be escaped.
                let _ = write!(line, "{}: {}", name_of(level), printable(&message.replace("µs", "us")));
                for (name, text) in fields {
                    if let Text::Json(text) = text {
                        let _ = write!(line, " {}={}", name.strip_prefix(IN_JSON).unwrap_or(name), printable(text));
                    }
                }
                line.push('\n');
            }
            LogFormat::Json => {
                let (time, message) = (time(Timestamp::now()), Value::from(message.as_str()));
                let _ = write!(line, r#"{{"time":"{time}","level":"{}","message":{message}"#, name_of(level));
                for (name, text) in fields {
                    let _ = match text {
                        Text::Absent => write!(line, r#","{name}":null"#),
                        Text::Json(text) if *name == MEMBERS => write!(line, "{}", members(text)),
                        Text::Json(text) => {
                            write!(line, r#","{}":{text}"#, name.strip_prefix(IN_JSON).unwrap_or(name))
                        }
                    };
                }
                line.push_str("}\n");
            }
        }
        line
    }
}

/// In RFC 3339, in UTC. Always with three digits for milliseconds, so that texts sort as times do.
fn time(now: Timestamp) -> impl Display {
    from_fn(move |f| write!(f, "{now:.3}"))
}

/// The members of an object in JSON, as they follow other ones.
fn members(object: &str) -> String {
    let members = object.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
    if members.is_empty() { String::new() } else { format!(",{members}") }
}

fn name_of(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

impl Visit for Values {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            MESSAGE => self.message = format!("{value:?}"),
            // Not even rendered.
            MEMBERS if self.format == LogFormat::Text => {}
            name if name == MEMBERS || name.starts_with(IN_JSON) => self.set(name, Text::Json(format!("{value:?}"))),
            name => self.set(name, format!("{value:?}").into()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::text::escaped;
    use std::io::Read as _;

    /// What `work` logs, in lines.
    pub(crate) fn logged(format: LogFormat, level: LevelFilter, work: impl FnOnce(&Log)) -> Vec<String> {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let log = Log::start(format, level, writer, || {}).expect("a thread");
        log.within(|| work(&log));
        assert!(log.finish(Duration::from_mins(1)), "a pipe has room");
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("its thread has ended");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn an_event_is_one_line_with_its_fields() {
        let event = |_: &Log| {
            tracing::warn!(
                cgroup = %escaped(b"a\nb\x1b[31m\xff"),
                bytes = 7,
                errno = None::<i32>,
                json.start = r#"{"armed_ns":3}"#,
                json = %from_fn(|f| f.write_str(r#"{"plan":{"number":1},"b":true}"#)),
                "killed\nit: {} and \"{}\"",
                escaped(b"a\n\\x2d"),
                '\u{202e}'
            );
        };
        assert_eq!(
            logged(LogFormat::Text, LevelFilter::INFO, event),
            ["warn: killed\\nit: a\\n\\\\x2d and \"\\u{202e}\" cgroup=\"a\\\\nb\\\\x1b[31m\\\\xff\" bytes=7 \
              start={\"armed_ns\":3}"]
        );
        let json = logged(LogFormat::Json, LevelFilter::INFO, event);
        let [line] = &json[..] else { panic!("{json:?}") };
        let read: Value = serde_json::from_str(line).expect("it is JSON");
        let time: Timestamp = read["time"].as_str().and_then(|time| time.parse().ok()).expect("a time");
        assert!(time.duration_until(Timestamp::now()).as_secs() < 60, "{line}");
        let expected = serde_json::json!({
            "time": read["time"],
            "level": "warn",
            "message": "killed\nit: a\\n\\\\x2d and \"\u{202e}\"",
            "cgroup": "a\\nb\\x1b[31m\\xff",
            "bytes": 7,
            "errno": null,
            "start": {"armed_ns": 3},
            "plan": {"number": 1},
            "b": true,
        });
        assert_eq!(read, expected);
    }

    #[test]
    fn a_time_has_milliseconds_and_is_in_utc() {
        for (nanoseconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_796_030_351_098_999_999, "2026-11-30T09:19:11.098Z"),
            (1_796_030_351_900_000_000, "2026-11-30T09:19:11.900Z"),
        ] {
            assert_eq!(time(Timestamp::from_nanosecond(nanoseconds).expect("in range")).to_string(), expected);
        }
    }

    #[test]
    fn microseconds_are_ascii_in_a_line_for_people() {
        let event = |_: &Log| tracing::info!("after {:?}", Duration::from_nanos(1_500));
        assert_eq!(logged(LogFormat::Text, LevelFilter::INFO, event), ["info: after 1.5us"]);
    }

    #[test]
    fn an_object_without_members_adds_none() {
        let lines = logged(LogFormat::Json, LevelFilter::INFO, |_| tracing::info!(json = "{}", "empty"));
        assert!(lines[0].ends_with(r#""message":"empty"}"#), "{lines:?}");
    }

    #[test]
    fn the_level_is_changed_while_events_are_written() {
        let lines = logged(LogFormat::Text, LevelFilter::INFO, |log| {
            // The same event each time, of which `tracing` remembers whether it is enabled.
            let detail = |number: u64| tracing::debug!(number, "detail");
            detail(1);
            log.set_level(LevelFilter::DEBUG);
            detail(2);
            log.set_level(LevelFilter::WARN);
            detail(3);
            tracing::info!("information");
            tracing::warn!("a warning");
        });
        assert_eq!(lines, ["debug: detail number=2", "warn: a warning"]);
    }

    #[test]
    fn a_gap_in_the_log_is_a_warning_with_the_number_of_lines() {
        let read: Value = serde_json::from_str(&gap(LogFormat::Json, 3)).expect("it is JSON");
        assert_eq!((&read["level"], &read["lines"]), (&"warn".into(), &3.into()));
        assert!(gap(LogFormat::Text, 3).ends_with(" lines=3\n"));
    }
}
