//! From bytes to a recording. Whatever the bytes are, what comes of them is a recording or an error with its place.

use crate::api::{Pod, PodList, Summary};
use crate::trace::{Entry, Header, Trace, VERSION};
use core::fmt;
use serde::de::{DeserializeOwned, IgnoredAny};

/// What somebody saved.
#[derive(Clone, Debug)]
pub enum Recording {
    /// A trace that `plimsoll run` wrote.
    Trace(Trace),
    /// Statistics of a kubelet, one after the other.
    Summaries(Vec<Summary>),
}

/// Why it cannot be read: where, which key, what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// The line, from 1.
    pub line: usize,
    /// The key with its parents: `node.memory.time`; a dot for the value as a whole.
    pub key: String,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, key, why } = self;
        write!(f, "{line}: ")?;
        if key != "." {
            write!(f, "{key}: ")?;
        }
        f.write_str(why)
    }
}

impl core::error::Error for ReadError {}

/// Reads a trace, or one or more answers of a kubelet's `/stats/summary`, one after the other.
pub fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    let first_line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if serde_json::from_slice::<Mark>(first_line).is_ok() {
        return trace(bytes).map(Recording::Trace);
    }
    let mut summaries = Vec::new();
    for (line, value) in values(bytes)? {
        summaries.push(parse(value, line)?);
    }
    if summaries.is_empty() {
        return Err(whole(1, "it is empty; expected a trace of plimsoll, or a kubelet's answer to /stats/summary"));
    }
    Ok(Recording::Summaries(summaries))
}

/// Reads a list of pods as `kubectl get pods -o json` prints it.
pub fn read_pods(bytes: &[u8]) -> Result<Vec<Pod>, ReadError> {
    parse::<PodList>(bytes, 1).map(|list| list.items).map_err(|error| {
        let hint = core::str::from_utf8(bytes).ok().and_then(plimsoll_config::not_a_list_of_pods);
        hint.map_or(error, |hint| whole(1, hint))
    })
}

/// What the first line of a trace has, whatever its version.
#[derive(serde::Deserialize)]
struct Mark {
    #[serde(rename = "plimsoll_trace")]
    _version: IgnoredAny,
}

fn trace(bytes: &[u8]) -> Result<Trace, ReadError> {
    // Whoever wrote it may have ended in the middle of a line: what follows the last line's end is left out.
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let (whole_lines, rest) = bytes.split_at(end);
    let mut lines = (1..).zip(whole_lines.split(|byte| *byte == b'\n')).filter(|(_, line)| !line.is_empty());
    let Some((number, first)) = lines.next() else {
        return Err(whole(1, "the first line has no end; expected a trace of plimsoll"));
    };
    let header: Header = parse(first, number)?;
    if header.version != VERSION {
        let why = format!("expected {VERSION}; this program knows no other version of traces");
        return Err(ReadError { line: number, key: "plimsoll_trace".to_owned(), why });
    }
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in lines {
        let entry: Entry = parse(line, number)?;
        if entries.last().is_some_and(|last| last.at() > entry.at()) {
            let why = "earlier than the line before".to_owned();
            return Err(ReadError { line: number, key: "at_ns".to_owned(), why });
        }
        entries.push(entry);
    }
    Ok(Trace { header, entries, is_cut_off: !rest.is_empty() })
}

/// The JSON values of a stream, each with the line that it begins in.
fn values(bytes: &[u8]) -> Result<Vec<(usize, &[u8])>, ReadError> {
    let mut stream = serde_json::Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
    let (mut found, mut begin, mut line) = (Vec::new(), 0, 1);
    while let Some(value) = stream.next() {
        value.map_err(|error| whole(error.line(), &error.to_string()))?;
        let end = stream.byte_offset();
        let value = bytes.get(begin..end).unwrap_or_default();
        found.push((line, value));
        line += value.split(|byte| *byte == b'\n').count() - 1;
        begin = end;
    }
    Ok(found)
}

/// One value that begins in this line.
fn parse<T: DeserializeOwned>(bytes: &[u8], line: usize) -> Result<T, ReadError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        // A key without a letter is one, too.
        let key = if path.is_empty() { "\"\"".to_owned() } else { path };
        let error = error.into_inner();
        let why = error.to_string();
        // The place is told beside it, counted from the beginning of the file.
        let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why).to_owned();
        ReadError { line: line + error.line().saturating_sub(1), key, why }
    })?;
    deserializer.end().map_err(|error| whole(line + error.line().saturating_sub(1), "something follows the value"))?;
    Ok(value)
}

fn whole(line: usize, why: &str) -> ReadError {
    ReadError { line, key: ".".to_owned(), why: why.to_owned() }
}
