//! Which cgroups are workloads, by pattern. Pure: no file is opened here.

/// Where systemd keeps PID 1.
const INIT: &[u8] = b"init.scope";

/// Patterns of workloads, and of what is never touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    workloads: Vec<Pattern>,
    never: Vec<Pattern>,
}

/// A pattern that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It means the root, or nothing.
    #[error("`{0}` is no cgroup below the root: write a path like `system.slice/*`")]
    Empty(String),
    /// `.`, `..`, an empty name, or `**` elsewhere than at the end.
    #[error("`{0}` is no pattern: write names with `*` in them, and `**` only as the last one")]
    Malformed(String),
    /// Killing what it means would kill init.
    #[error(
        "`{0}` would include init (`init.scope`): name the slices below the root instead, such as `system.slice/*`"
    )]
    Init(String),
    /// Killing what it means would kill something that must live.
    #[error("`{pattern}` would include {what} (`{path}`): name other cgroups, or those below it")]
    Protected {
        /// The pattern.
        pattern: String,
        /// Who is in that cgroup.
        what: &'static str,
        /// Where.
        path: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    names: Vec<Vec<u8>>,
    /// Ends in `**`: everything below.
    below: bool,
}

/// How a path stands to a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// It is what is meant, all of it.
    Whole,
    /// It lies below the directory before `**`.
    Below,
    /// Something below it may be meant.
    Prefix,
    /// It has nothing to do with the pattern.
    Not,
}

impl Patterns {
    /// Checks patterns and takes them. A name may hold `*` for any characters; a last name `**` means each leaf below.
    pub fn parse<'p>(
        workloads: impl IntoIterator<Item = &'p str>,
        never: impl IntoIterator<Item = &'p str>,
    ) -> Result<Self, PatternError> {
        let workloads = workloads.into_iter().map(Pattern::parse).collect::<Result<Vec<_>, _>>()?;
        let never = never.into_iter().map(Pattern::parse).collect::<Result<Vec<_>, _>>()?;
        for pattern in &workloads {
            if pattern.touches(INIT) {
                return Err(PatternError::Init(pattern.text.clone()));
            }
        }
        Ok(Self { workloads, never })
    }

    /// Checks that no pattern names a cgroup that the agent itself (`own`) or PID 1 (`init`) is in. A wildcard may
    /// meet the agent's own cgroup: that one is left out silently.
    pub fn validate(&self, own: &[u8], init: &[u8]) -> Result<(), PatternError> {
        for (path, what, wildcard_may) in [(own, "the agent itself", true), (init, "PID 1", false)] {
            let refused = self.workloads.iter().find(|pattern| {
                pattern.touches(path) && !(wildcard_may && pattern.has_wildcard() && !pattern.is_parent_of(path))
            });
            if let Some(pattern) = refused.filter(|_| !path.is_empty()) {
                let (pattern, path) = (pattern.text.clone(), String::from_utf8_lossy(path).into_owned());
                return Err(PatternError::Protected { pattern, what, path });
            }
        }
        Ok(())
    }

    /// Which pattern means the cgroup at `path` or something below it: the first that means it wholly.
    pub(crate) fn look(&self, path: &[u8]) -> (Match, usize) {
        let mut prefix = (Match::Not, 0);
        for (index, pattern) in self.workloads.iter().enumerate() {
            match pattern.look(path) {
                Match::Not => {}
                Match::Prefix => prefix = (Match::Prefix, index),
                found => return (found, index),
            }
        }
        prefix
    }

    /// Whether `path` is one that is never touched, or below one.
    pub(crate) fn is_never(&self, path: &[u8]) -> bool {
        self.never.iter().any(|pattern| pattern.touches(path))
    }

    /// Whether something below `path` might be one that is never touched.
    pub(crate) fn never_may_be_below(&self, path: &[u8]) -> bool {
        self.never.iter().any(|pattern| pattern.look(path) == Match::Prefix)
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, PatternError> {
        let path = text.strip_prefix('/').unwrap_or(text);
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.is_empty() {
            return Err(PatternError::Empty(text.to_owned()));
        }
        let mut names: Vec<Vec<u8>> = path.split('/').map(|name| name.as_bytes().to_vec()).collect();
        let below = names.last().is_some_and(|name| name == b"**");
        if below {
            names.pop();
        }
        let bad = |name: &Vec<u8>| {
            name.is_empty()
                || name == b"."
                || name == b".."
                || name.contains(&0)
                || name.windows(2).any(|pair| pair == b"**")
        };
        if names.iter().any(bad) {
            return Err(PatternError::Malformed(text.to_owned()));
        }
        Ok(Self { text: text.to_owned(), names, below })
    }

    fn has_wildcard(&self) -> bool {
        self.below || self.names.iter().any(|name| name.contains(&b'*'))
    }

    fn look(&self, path: &[u8]) -> Match {
        let mut wanted = self.names.iter();
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        loop {
            match (wanted.next(), names.next()) {
                (Some(wanted), Some(name)) if like(wanted, name) => {}
                (Some(_), Some(_)) => return Match::Not,
                (Some(_), None) => return Match::Prefix,
                (None, None) => return if self.below { Match::Prefix } else { Match::Whole },
                (None, Some(_)) => return if self.below { Match::Below } else { Match::Not },
            }
        }
    }

    /// Whether what it means is `path`, or holds it, or may be a leaf there.
    fn touches(&self, path: &[u8]) -> bool {
        matches!(self.look(path), Match::Whole | Match::Below) || self.is_parent_of(path)
    }

    /// Whether it means a cgroup that `path` lies in.
    fn is_parent_of(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        ends.into_iter().any(|end| self.look(&path[..end]) == Match::Whole)
    }
}

/// Whether `name` is like `wanted`, where `*` stands for any bytes.
fn like(wanted: &[u8], name: &[u8]) -> bool {
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
        for (pattern, path, expected) in [
            ("system.slice/*", "system.slice/a.service", Match::Whole),
            ("system.slice/*", "system.slice", Match::Prefix),
            ("system.slice/*", "system.slice/a.service/b", Match::Not),
            ("system.slice/*", "user.slice/a", Match::Not),
            ("user.slice/**", "user.slice", Match::Prefix),
            ("user.slice/**", "user.slice/u/v/w", Match::Below),
            ("/work.slice/", "work.slice", Match::Whole),
            ("a/b*c", "a/b\\x2dc", Match::Whole),
            ("a/b*c", "a/bc", Match::Whole),
            ("a/b*c", "a/bcd", Match::Not),
            ("a/*x*y*", "a/1x2y3", Match::Whole),
            ("a/*x*y*", "a/1y2x3", Match::Not),
        ] {
            let patterns = Patterns::parse([pattern], []).expect("a pattern");
            assert_eq!(patterns.look(path.as_bytes()).0, expected, "{pattern} {path}");
        }
    }

    #[test]
    fn what_would_include_init_is_refused() {
        for text in ["init.scope", "*", "**", "*.scope", "init.scope/**", "init*/x"] {
            let outcome = Patterns::parse([text], []);
            if text == "init.scope/**" || text == "init*/x" {
                // Leaves below init.scope are not init itself.
                assert!(outcome.is_ok(), "{text}");
            } else {
                assert_eq!(outcome, Err(PatternError::Init(text.to_owned())), "{text}");
            }
        }
        for text in ["", "/", "a//b", "../a", "a/.", "a/**/b", "a/b**"] {
            assert!(
                matches!(Patterns::parse([text], []), Err(PatternError::Empty(_) | PatternError::Malformed(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn the_agent_may_be_met_by_a_wildcard_only() {
        let own = b"system.slice/plimsoll.service";
        for (pattern, fits) in [
            ("system.slice/*", true),
            ("system.slice/**", true),
            ("user.slice/**", true),
            ("system.slice", false),
            ("system.slic*", false),
            ("system.slice/plimsoll.service", false),
        ] {
            let patterns = Patterns::parse([pattern], []).expect("a pattern");
            assert_eq!(patterns.validate(own, b"init.scope").is_ok(), fits, "{pattern}");
            assert!(patterns.validate(b"", b"").is_ok(), "in the root nothing holds them: {pattern}");
        }
        let patterns = Patterns::parse(["box/*"], []).expect("a pattern");
        assert!(patterns.validate(b"", b"box/init").is_err());
    }

    #[test]
    fn never_holds_for_what_is_below() {
        let patterns = Patterns::parse(["a/*"], ["a/keep", "a/x/*/deep"]).expect("patterns");
        for (path, never, below) in [
            ("a/keep", true, false),
            ("a/keep/b", true, false),
            ("a/x", false, true),
            ("a/x/y/deep/z", true, false),
            ("a/other", false, false),
        ] {
            assert_eq!(patterns.is_never(path.as_bytes()), never, "{path}");
            assert_eq!(patterns.never_may_be_below(path.as_bytes()), below, "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_like_itself_with_stars_anywhere(name in "[a-c]{0,6}", at in 0_usize..7, length in 0_usize..7) {
            let start = at.min(name.len());
            let end = (start + length).min(name.len());
            let wanted = format!("{}*{}", &name[..start], &name[end..]);
            prop_assert!(like(wanted.as_bytes(), name.as_bytes()));
        }
    }
}
