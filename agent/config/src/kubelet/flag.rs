//! Maps on a kubelet's command line: `--eviction-hard=memory.available<1Gi,nodefs.available<10%`.

use std::collections::BTreeMap;

/// A part between commas has no separator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed pair, expect string{separator}string")]
pub struct MalformedPair {
    /// The separator that was expected.
    pub separator: char,
    /// What had been read before.
    pub read: BTreeMap<String, String>,
}

/// Reads the values of one flag that may be repeated; later ones override earlier ones, and any value, an empty
/// one too, replaces the defaults.
pub fn parse_map_flag<'a>(
    values: impl IntoIterator<Item = &'a str>,
    separator: char,
) -> Result<BTreeMap<String, String>, MalformedPair> {
    let mut read = BTreeMap::new();
    for pair in values.into_iter().flat_map(|value| value.split(',')).filter(|pair| !pair.is_empty()) {
        match pair.split_once(separator) {
            Some((key, value)) => read.insert(key.trim().to_owned(), value.trim().to_owned()),
            None => return Err(MalformedPair { separator, read }),
        };
    }
    Ok(read)
}
