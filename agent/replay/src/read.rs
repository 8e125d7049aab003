//! From bytes to a recording, or to an error with its place.

use crate::trace::{Entry, Header, Memory, OLDEST_VERSION, Sample, Trace, VERSION};
use plimsoll_pods::{ReadError, Summary, parse};
use serde::de::IgnoredAny;

/// What was recorded.
#[derive(Clone, Debug)]
pub enum Recording {
    /// A trace that `plimsoll run` wrote.
    Trace(Trace),
    /// Statistics of a kubelet, one after the other.
    Summaries(Vec<Summary>),
}

/// Reads a trace, or one or more answers of a kubelet's `/stats/summary`, one after the other.
pub fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    if let Some((_, by)) = COMPRESSED.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        let why = format!("it is no JSON, and looks compressed ({by}); expand it first");
        return Err(ReadError::whole(1, &why));
    }
    let first_line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if serde_json::from_slice::<Mark>(first_line).is_ok() {
        return trace(bytes).map(Recording::Trace);
    }
    let mut summaries = Vec::new();
    for (line, value) in values(bytes)? {
        summaries.push(parse(value, line).map_err(|error| misplaced(value, line).unwrap_or(error))?);
    }
    if summaries.is_empty() {
        return Err(ReadError::whole(
            1,
            "it is empty; expected a trace of plimsoll, or a kubelet's answer to /stats/summary",
        ));
    }
    Ok(Recording::Summaries(summaries))
}

/// How compressed files begin, and what compresses so.
const COMPRESSED: [(&[u8], &str); 3] = [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ", "xz")];

/// What a list of pods has.
#[derive(serde::Deserialize)]
struct List {
    #[serde(rename = "items")]
    _items: Vec<IgnoredAny>,
}

/// A list of pods in place of a recording.
fn misplaced(value: &[u8], line: usize) -> Option<ReadError> {
    let why = "it is a list of pods, which belongs under --pods; expected a trace of plimsoll, or a kubelet's answer to \
               /stats/summary";
    serde_json::from_slice::<List>(value).is_ok().then(|| ReadError::whole(line, why))
}

/// What the first line of a trace has, whatever its version.
#[derive(serde::Deserialize)]
struct Mark {
    #[serde(rename = "plimsoll_trace")]
    _version: IgnoredAny,
}

fn trace(bytes: &[u8]) -> Result<Trace, ReadError> {
    // Its writer may have ended in the middle of a line: what follows the end of the last whole line is left out.
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let (whole_lines, rest) = bytes.split_at(end);
    let mut lines = (1..).zip(whole_lines.split(|byte| *byte == b'\n')).filter(|(_, line)| !line.is_empty());
    let Some((number, first)) = lines.next() else {
        return Err(ReadError::whole(1, "the first line has no end; expected a trace of plimsoll"));
    };
    let header: Header = parse(first, number)?;
    if !(OLDEST_VERSION..=VERSION).contains(&header.version) {
        let why = format!("expected {OLDEST_VERSION} to {VERSION}; this program knows no other version of traces");
        return Err(ReadError { line: number, key: "plimsoll_trace".to_owned(), why });
    }
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in lines {
        let entry: Entry = parse(line, number)?;
        if let Some(key) = beyond(&entry) {
            let why = format!("expected at most {MOST}, which is more than any machine has");
            return Err(ReadError { line: number, key, why });
        }
        let mut before = entries.iter().rev();
        if before.find(|it| it.is_of_disks() == entry.is_of_disks()).is_some_and(|last| last.at() > entry.at()) {
            let why = "earlier than the line before".to_owned();
            return Err(ReadError { line: number, key: "at_ns".to_owned(), why });
        }
        entries.push(entry);
    }
    Ok(Trace { header, entries, is_cut_off: !rest.is_empty() })
}

/// The most memory that a machine may have: amounts are reckoned with their signs.
const MOST: u64 = i64::MAX.cast_unsigned();

/// The amount of the machine's memory in a sample that no machine has.
fn beyond(entry: &Entry) -> Option<String> {
    let Entry::Sample(Sample { memory: Some(memory), .. }) = entry else { return None };
    let Memory { capacity_bytes, kubelet_bytes, mem_available_bytes } = *memory;
    let amounts = [
        ("capacity_bytes", Some(capacity_bytes)),
        ("kubelet_bytes", Some(kubelet_bytes)),
        ("mem_available_bytes", mem_available_bytes),
    ];
    let (name, _) = amounts.into_iter().find(|(_, bytes)| bytes.is_some_and(|bytes| bytes.0 > MOST))?;
    Some(format!("sample.memory.{name}"))
}

/// The JSON values of a stream, each with the line that it begins in.
fn values(bytes: &[u8]) -> Result<Vec<(usize, &[u8])>, ReadError> {
    let mut stream = serde_json::Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
    let (mut found, mut begin, mut line) = (Vec::new(), 0, 1);
    while let Some(value) = stream.next() {
        value.map_err(|error| ReadError::whole(error.line(), &error.to_string()))?;
        let end = stream.byte_offset();
        let value = bytes.get(begin..end).unwrap_or_default();
        found.push((line, value));
        line += value.split(|byte| *byte == b'\n').count() - 1;
        begin = end;
    }
    Ok(found)
}
