//! All entries, each as the line that is written: one that did not change is not encoded again. Bounded by number and
//! by bytes, for each kind by itself, so that what is known of pods takes no room from evictions.

use super::entry::{Entry, Facts, Images};
use std::collections::BTreeMap;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Condition,
    Eviction,
    Facts,
    Images,
}

const KINDS: usize = 4;

/// How much there can be of a kind.
struct Limits {
    what: &'static str,
    entries: usize,
    /// Of one line.
    bytes: usize,
    /// Of all lines.
    all_bytes: usize,
}

const KIB: usize = 1 << 10;
/// By kind.
const LIMITS: [Limits; KINDS] = [
    Limits { what: "conditions", entries: 32, bytes: 4 * KIB, all_bytes: 64 * KIB },
    Limits { what: "evictions", entries: 512, bytes: 32 * KIB, all_bytes: 1024 * KIB },
    Limits { what: "facts of pods", entries: 4096, bytes: 16 * KIB, all_bytes: 2048 * KIB },
    Limits { what: "histories of images", entries: 4096, bytes: KIB, all_bytes: 1024 * KIB },
];

/// The most bytes of all entries.
pub(super) const MAX_BYTES: usize =
    LIMITS[0].all_bytes + LIMITS[1].all_bytes + LIMITS[2].all_bytes + LIMITS[3].all_bytes;

/// So much is said of an entry that was not read.
const ERROR_CHARACTERS: usize = 200;

/// An entry that is not kept. What was there before under its name stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is too long.
    #[error("{name:?} is not kept with the {what}: it takes {bytes} bytes, and {most} are the most")]
    TooLong {
        /// Its kind.
        what: &'static str,
        /// Its name: a UID, a type, or an image's id.
        name: String,
        /// What it takes.
        bytes: usize,
        /// What it may take.
        most: usize,
    },
    /// There are too many.
    #[error(
        "{name:?} is not kept with the {what}: there are {entries} in {bytes} bytes, and {most} in {most_bytes} are \
         the most"
    )]
    Full {
        /// Its kind.
        what: &'static str,
        /// Its name: a UID, a type, or an image's id.
        name: String,
        /// How many there are.
        entries: usize,
        /// How many there can be.
        most: usize,
        /// How many bytes they take.
        bytes: usize,
        /// How many they may take.
        most_bytes: usize,
    },
    /// It has no text form.
    #[error("{name:?} is not kept with the {what}: {why}")]
    NoText {
        /// Its kind.
        what: &'static str,
        /// Its name: a UID, a type, or an image's id.
        name: String,
        /// What the encoder says.
        why: String,
    },
}

/// All lines of a kind, by the name of what each is about.
#[derive(Debug, Default)]
struct Lines {
    lines: BTreeMap<String, Vec<u8>>,
    bytes: usize,
}

/// All entries.
#[derive(Debug, Default)]
pub(super) struct Content {
    kinds: [Lines; KINDS],
}

/// What was not read of a body.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    /// What cannot be true any more after a reboot.
    pub(super) dropped: u32,
    /// What this version cannot read, and what there is no room for.
    pub(super) skipped: u32,
    /// Why the first one was not read.
    pub(super) first_error: Option<String>,
}

impl Content {
    /// Reads a body. What cannot be read is left out, and counted.
    pub(super) fn read(body: &[u8], is_rebooted: bool) -> (Self, Read) {
        let (mut content, mut read) = (Self::default(), Read::default());
        for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let entry = serde_json::from_slice::<Entry>(line);
            let kept = match entry.map(|entry| if is_rebooted { entry.after_reboot() } else { Some(entry) }) {
                Ok(Some(entry)) => content.put(&entry).map(drop).map_err(|refused| refused.to_string()),
                Ok(None) => {
                    read.dropped += 1;
                    Ok(())
                }
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = kept {
                read.skipped += 1;
                read.first_error.get_or_insert_with(|| error.chars().take(ERROR_CHARACTERS).collect());
            }
        }
        (content, read)
    }

    /// Puts an entry in the place of an earlier one of the same kind and name. Whether that changed anything.
    pub(super) fn put(&mut self, entry: &Entry) -> Result<bool, Refused> {
        let (kind, name) = key(entry);
        let Limits { what, entries: most, bytes: most_each, all_bytes: most_bytes } = LIMITS[kind as usize];
        let kept = &mut self.kinds[kind as usize];
        let name = name.to_owned();
        let mut line = match serde_json::to_vec(entry) {
            Ok(line) => line,
            Err(error) => return Err(Refused::NoText { what, name, why: error.to_string() }),
        };
        line.push(b'\n');
        if line.len() > most_each {
            return Err(Refused::TooLong { what, name, bytes: line.len(), most: most_each });
        }
        let before = kept.lines.get(&name);
        if before == Some(&line) {
            return Ok(false);
        }
        let bytes = kept.bytes - before.map_or(0, Vec::len) + line.len();
        if bytes > most_bytes || before.is_none() && kept.lines.len() == most {
            return Err(Refused::Full { what, name, entries: kept.lines.len(), most, bytes: kept.bytes, most_bytes });
        }
        kept.bytes = bytes;
        kept.lines.insert(name, line);
        Ok(true)
    }

    /// Forgets an entry. Whether it was there.
    pub(super) fn remove(&mut self, kind: Kind, name: &str) -> bool {
        let kept = &mut self.kinds[kind as usize];
        let removed = kept.lines.remove(name);
        kept.bytes -= removed.as_ref().map_or(0, Vec::len);
        removed.is_some()
    }

    /// All entries of a kind, by name.
    pub(super) fn entries(&self, kind: Kind) -> impl Iterator<Item = Entry> + '_ {
        // What was encoded by this program is decoded by it; anything else is a defect, and then absent.
        self.kinds[kind as usize].lines.values().filter_map(|line| serde_json::from_slice(line).ok())
    }

    /// All lines: the body.
    pub(super) fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.kinds.iter().flat_map(|kept| kept.lines.values().map(Vec::as_slice))
    }
}

/// What an entry is about.
fn key(entry: &Entry) -> (Kind, &str) {
    match entry {
        Entry::Condition(condition) => (Kind::Condition, &condition.name),
        Entry::Eviction(eviction) => (Kind::Eviction, &eviction.pod.uid),
        Entry::Facts(Facts { uid, .. }) => (Kind::Facts, uid),
        Entry::Images(Images { id, .. }) => (Kind::Images, id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(uid: &str, text: &str) -> Entry {
        Entry::Facts(Facts { uid: uid.into(), text: text.into() })
    }

    fn body(content: &Content) -> Vec<u8> {
        content.lines().flatten().copied().collect()
    }

    #[test]
    fn what_does_not_fit_is_refused_and_named_and_changes_nothing() {
        let mut content = Content::default();
        for number in 0..4096 {
            assert_eq!(content.put(&facts(&format!("pod-{number}"), "x")), Ok(true));
        }
        let before = body(&content);
        let refused = content.put(&facts("one-more", "x")).expect_err("4096 are the most").to_string();
        assert!(refused.contains("one-more") && refused.contains("4096"), "{refused}");
        let refused = content.put(&facts("pod-7", &"x".repeat(16 * KIB))).expect_err("it is too long").to_string();
        assert!(refused.contains("pod-7") && refused.contains("16384"), "{refused}");
        assert_eq!(body(&content), before);
        assert_eq!(content.put(&facts("pod-7", "y")), Ok(true));
        assert!(content.remove(Kind::Facts, "pod-8") && !content.remove(Kind::Facts, "pod-8"));
        assert_eq!(content.put(&facts("one-more", "x")), Ok(true));
    }

    #[test]
    fn all_bytes_of_a_kind_are_bounded_and_of_no_other() {
        let mut content = Content::default();
        let long = "x".repeat(15 * KIB);
        let kept = (0..4096).take_while(|number| content.put(&facts(&format!("{number}"), &long)).is_ok()).count();
        assert!((2048 / 16..=2048 / 15).contains(&kept), "{kept}");
        assert!(body(&content).len() <= 2048 * KIB);
        assert_eq!(content.put(&facts("0", "short")), Ok(true), "one that becomes shorter has room");
        assert!(content.put(&facts("more", &long)).is_ok() && content.put(&facts("most", &long)).is_err());
        assert!(content.remove(Kind::Facts, "more") && content.put(&facts("most", &long)).is_ok());
        let images = Images { id: "i".into(), text: "x".repeat(KIB / 2) };
        assert_eq!(content.put(&Entry::Images(images)), Ok(true), "what is full is another kind");
    }

    #[test]
    fn one_line_of_another_version_costs_that_line_alone() {
        let lines = "{\"facts\":{\"uid\":\"a\",\"text\":\"1\",\"tomorrow\":[1]}}\n{\"tomorrow\":{}}\nno JSON\n\n\
             {\"facts\":{\"uid\":\"a\",\"text\":\"2\"}}\n{\"facts\":{\"uid\":\"b\"}}";
        let (content, read) = Content::read(lines.as_bytes(), false);
        assert_eq!(body(&content), b"{\"facts\":{\"uid\":\"a\",\"text\":\"2\"}}\n");
        assert_eq!((read.skipped, read.dropped), (3, 0));
        assert!(read.first_error.expect("the first is named").contains("tomorrow"));
        let long = format!("{{\"{}\":0}}", "x".repeat(99_999));
        assert_eq!(Content::read(long.as_bytes(), false).1.first_error.map(|error| error.len()), Some(200));
    }

    proptest! {
        /// Whatever names and texts are, they are read back, and none ends a line or becomes another entry.
        #[test]
        fn what_is_written_is_read(pods in proptest::collection::btree_map(any::<String>(), any::<String>(), 0..9)) {
            let mut content = Content::default();
            for (uid, text) in &pods {
                content.put(&facts(uid, text)).expect("there is room");
                prop_assert_eq!(content.put(&facts(uid, text)), Ok(false));
            }
            for is_rebooted in [false, true] {
                let (read, counts) = Content::read(&body(&content), is_rebooted);
                prop_assert_eq!(body(&read), body(&content));
                prop_assert_eq!(counts, Read::default());
            }
            let bytes: usize = content.lines().map(<[u8]>::len).sum();
            prop_assert_eq!(content.kinds[Kind::Facts as usize].bytes, bytes);
        }

        #[test]
        fn garbage_never_panics(body in proptest::collection::vec(any::<u8>(), 0..200), is_rebooted: bool) {
            let _ = Content::read(&body, is_rebooted);
        }
    }
}
