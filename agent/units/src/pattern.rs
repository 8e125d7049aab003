//! Which cgroups are meant: `system.slice/*`, `user.slice/**`.

use core::fmt;
use core::str::FromStr;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path below the cgroup root. `*` in a name stands for any bytes of that name; `**` as the last name stands for
/// everything below, at any depth. Every other character stands for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern(Box<str>);

/// How a path stands to a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is what is meant, all of it.
    Whole,
    /// It lies below the directory before `**`.
    Below,
    /// Something below it may be meant.
    Prefix,
    /// It has nothing to do with the pattern.
    Not,
}

/// A pattern that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pattern {pattern:?}, character {position}: {expected}")]
pub struct PatternError {
    /// As it was written.
    pub pattern: String,
    /// The character at which it goes wrong, from 1.
    pub position: usize,
    /// What was expected there.
    pub expected: &'static str,
}

/// Where cgroups are mounted, which is not a part of their paths.
const MOUNTED: &str = "/sys/fs/cgroup";
const ROOT: &str = "expected a path below the cgroup root such as system.slice/*; this is the whole machine";
const BELOW_ROOT: &str = "expected a path from the cgroup root on, without /sys/fs/cgroup";
const NAME: &str = "expected a name; it is empty, `.` or `..`";
const END: &str = "expected `**` at the end only, as a name of its own";
const WILDCARD: &str = "expected `*` for any part of a name; there is no other wildcard";
const CHARACTER: &str = "expected a character that a name can have";

impl Pattern {
    /// Checks a pattern. A slash at its beginning or end changes nothing.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let wrong = |at: usize, expected| {
            let position = text[..at].chars().count() + 1;
            Err(PatternError { pattern: text.to_owned(), position, expected })
        };
        let start = usize::from(text.starts_with('/'));
        let path = text[start..].strip_suffix('/').unwrap_or(&text[start..]);
        if path.is_empty() || path == "." {
            return wrong(start, ROOT);
        }
        if text.strip_prefix(MOUNTED).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            return wrong(0, BELOW_ROOT);
        }
        let mut at = start;
        for name in path.split('/') {
            let end = at + name.len();
            if matches!(name, "" | "." | "..") {
                return wrong(at, NAME);
            }
            if let Some(found) = name.find(['?', '[', ']', '{', '}']) {
                return wrong(at + found, WILDCARD);
            }
            if let Some(found) = name.find(char::is_control) {
                return wrong(at + found, CHARACTER);
            }
            if let Some(found) = name.find("**")
                && (name != "**" || end != start + path.len())
            {
                return wrong(at + found, END);
            }
            at = end + 1;
        }
        Ok(Self(path.into()))
    }

    /// The pattern as a path below the cgroup root, without a slash at either end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it has no wildcard, so that exactly one cgroup is meant.
    pub fn is_literal(&self) -> bool {
        !self.0.contains('*')
    }

    /// How the cgroup at `path`, below the cgroup root, stands to it.
    pub fn match_of(&self, path: impl AsRef<[u8]>) -> Match {
        let mut names = path.as_ref().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        for wanted in self.0.split('/') {
            match (wanted, names.next()) {
                ("**", Some(_)) => return Match::Below,
                (_, None) => return Match::Prefix,
                (wanted, Some(name)) if is_like(wanted.as_bytes(), name) => {}
                (_, Some(_)) => return Match::Not,
            }
        }
        if names.next().is_none() { Match::Whole } else { Match::Not }
    }

    /// Whether the cgroup at `path` is meant itself, not merely something in it or around it.
    pub fn matches(&self, path: impl AsRef<[u8]>) -> bool {
        matches!(self.match_of(path), Match::Whole | Match::Below)
    }

    /// Whether it means a cgroup that `path` lies in, all of it. What `**` means is leaves, which hold nothing.
    pub fn holds(&self, path: impl AsRef<[u8]>) -> bool {
        let path = path.as_ref();
        (0..path.len()).any(|end| path[end] == b'/' && self.match_of(&path[..end]) == Match::Whole)
    }

    /// Whether the cgroup at `path` is meant, or lies in one that is.
    pub fn covers(&self, path: impl AsRef<[u8]>) -> bool {
        self.matches(path.as_ref()) || self.holds(path)
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::parse(text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Pattern;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pattern such as system.slice/*")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Pattern, E> {
                Pattern::parse(text).map_err(|PatternError { position, expected, .. }| {
                    E::custom(format_args!("character {position}: {expected}"))
                })
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Whether `name` is like `wanted`, where `*` stands for any bytes. Never worse than their lengths multiplied.
fn is_like(wanted: &[u8], name: &[u8]) -> bool {
    // Where the last star stood, and how much of the name it has taken so far.
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while read < name.len() {
        match wanted.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(byte) if *byte == name[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                at = place + 1;
                read = taken + 1;
            }
        }
    }
    wanted[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_stand_to_patterns() {
        for (pattern, path, expected, holds) in [
            ("system.slice/*", "system.slice/a.service", Match::Whole, false),
            ("system.slice/*", "system.slice", Match::Prefix, false),
            ("system.slice/*", "system.slice/a.service/b", Match::Not, true),
            ("system.slice/*", "user.slice/a", Match::Not, false),
            ("/system.slice/*.service/", "system.slice/db.service", Match::Whole, false),
            ("system.slice/*.service", "system.slice/db.scope", Match::Not, false),
            ("user.slice/**", "user.slice", Match::Prefix, false),
            ("user.slice/**", "user.slice/u/v/w", Match::Below, false),
            ("/work.slice/", "work.slice", Match::Whole, false),
            ("machine.slice", "machine.slice/vm.scope", Match::Not, true),
            ("*", "init.scope", Match::Whole, false),
            ("a/*/c", "a/b/c", Match::Whole, false),
            ("a/b*c", "a/b\\x2dc", Match::Whole, false),
            ("a/b*c", "a/bc", Match::Whole, false),
            ("a/b*c", "a/bcd", Match::Not, false),
            ("a/*x*y*", "a/1x2y3", Match::Whole, false),
            ("a/*x*y*", "a/1y2x3", Match::Not, false),
            ("a*a", "a", Match::Not, false),
        ] {
            let found = Pattern::parse(pattern).expect(pattern);
            assert_eq!((found.match_of(path), found.holds(path)), (expected, holds), "{pattern} {path}");
            let is_meant = matches!(expected, Match::Whole | Match::Below);
            assert_eq!((found.matches(path), found.covers(path)), (is_meant, is_meant || holds), "{pattern} {path}");
        }
        assert!(Pattern::parse("a/*").expect("a pattern").matches(b"a/\xff"), "no path has to be text");
    }

    #[test]
    fn a_mistake_is_named_with_its_position_and_what_was_expected() {
        for (pattern, position, expected) in [
            ("", 1, ROOT),
            ("/", 2, ROOT),
            (".", 1, ROOT),
            ("/sys/fs/cgroup/system.slice", 1, BELOW_ROOT),
            ("//a", 2, NAME),
            ("a//b", 3, NAME),
            ("a//", 3, NAME),
            ("../a", 1, NAME),
            ("ä/./b", 3, NAME),
            ("a/**/b", 3, END),
            ("a/b**", 4, END),
            ("a/***", 3, END),
            ("a/db-?.service", 6, WILDCARD),
            ("a/[bc]", 3, WILDCARD),
            ("a/{b,c}", 3, WILDCARD),
            ("a/b\0", 4, CHARACTER),
            ("a\nb", 2, CHARACTER),
        ] {
            let error = Pattern::parse(pattern).expect_err(pattern);
            assert_eq!(error, PatternError { pattern: pattern.to_owned(), position, expected }, "{pattern}");
        }
        assert_eq!(
            Pattern::parse("a//b").expect_err("it is empty").to_string(),
            "pattern \"a//b\", character 3: expected a name; it is empty, `.` or `..`"
        );
    }

    proptest! {
        #[test]
        fn a_name_is_like_itself_with_stars_anywhere(name in "[a-c]{0,6}", at in 0_usize..7, length in 0_usize..7) {
            let start = at.min(name.len());
            let end = (start + length).min(name.len());
            let wanted = format!("{}*{}", &name[..start], &name[end..]);
            prop_assert!(is_like(wanted.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn any_text_is_answered(text in "\\PC{0,12}|[a/*.]{0,8}") {
            match Pattern::parse(&text) {
                Ok(pattern) => prop_assert_eq!(Pattern::parse(pattern.as_str()), Ok(pattern.clone())),
                Err(error) => prop_assert!(error.position <= text.chars().count() + 1),
            }
        }
    }
}
