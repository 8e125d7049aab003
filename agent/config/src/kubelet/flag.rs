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
    for (_, pair) in values.into_iter().flat_map(|value| pairs(value, separator)) {
        let Some((key, value)) = pair else { return Err(MalformedPair { separator, read }) };
        read.insert(key.to_owned(), value.to_owned());
    }
    Ok(read)
}

/// The pairs of one value, each as it is written and as it is read; `None` where it has no separator.
pub(super) fn pairs(value: &str, separator: char) -> impl Iterator<Item = (&str, Option<(&str, &str)>)> {
    let pairs = value.split(',').filter(|pair| !pair.is_empty());
    pairs.map(move |pair| (pair, pair.split_once(separator).map(|(key, value)| (key.trim(), value.trim()))))
}
