//! Which cgroups are meant: `system.slice/*`, `user.slice/**`.

use core::fmt;

/// A path below the cgroup root. `*` in a name stands for any characters of that name; `**` as the last name stands for
/// everything below, at any depth.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern(String);

/// Why a pattern will not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It is the root, or nothing.
    #[error("it would be the whole machine")]
    Root,
    /// A part of it is empty, `.` or `..`.
    #[error("a path below the cgroup root, without empty parts, `.` and `..`, is expected")]
    Path,
    /// `**` stands elsewhere than at the end.
    #[error("`**` is expected at the end only, as a part of its own")]
    DoubleStar,
}

impl Pattern {
    /// Checks a pattern. A slash at its beginning or end changes nothing.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let path = text.strip_prefix('/').unwrap_or(text);
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.is_empty() || path == "." {
            return Err(PatternError::Root);
        }
        let last = path.split('/').count() - 1;
        for (index, part) in path.split('/').enumerate() {
            if matches!(part, "" | "." | "..") || part.contains('\0') {
                return Err(PatternError::Path);
            }
            if part.contains("**") && (part != "**" || index != last) {
                return Err(PatternError::DoubleStar);
            }
        }
        Ok(Self(path.to_owned()))
    }

    /// The pattern as a path below the cgroup root, without a slash at either end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the cgroup at `path` (below the cgroup root) is meant itself, not merely something in it or around it.
    pub fn matches(&self, path: &str) -> bool {
        let mut names = path.trim_matches('/').split('/');
        for part in self.0.split('/') {
            match (part, names.next()) {
                ("**", name) => return name.is_some(),
                (part, Some(name)) if name_matches(part, name) => {}
                _ => return false,
            }
        }
        names.next().is_none()
    }

    /// Whether it means a cgroup that `path` is in: a parent of it.
    pub fn matches_parent_of(&self, path: &str) -> bool {
        let path = path.trim_matches('/');
        path.match_indices('/').any(|(end, _)| self.matches(&path[..end]))
    }

    /// Whether it has no wildcard, so that exactly one cgroup is meant.
    pub fn is_literal(&self) -> bool {
        !self.0.contains('*')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `name` is like `part`, where `*` stands for any characters. Never worse than their lengths multiplied.
fn name_matches(part: &str, name: &str) -> bool {
    let mut pieces = part.split('*');
    let first = pieces.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, path, itself, parent) in [
            ("system.slice/*", "system.slice/db.service", true, false),
            ("system.slice/*", "system.slice", false, false),
            ("system.slice/*", "system.slice/db.service/worker", false, true),
            ("/system.slice/*.service/", "system.slice/db.service", true, false),
            ("system.slice/*.service", "system.slice/db.scope", false, false),
            ("user.slice/**", "user.slice", false, false),
            ("user.slice/**", "user.slice/user-1.slice/session.scope", true, true),
            ("*", "init.scope", true, false),
            ("a*b*c", "aXbXbc", true, false),
            ("a*a", "a", false, false),
            ("machine.slice", "machine.slice/vm.scope", false, true),
            ("a/*/c", "a/b/c", true, false),
        ] {
            let pattern = Pattern::new(pattern).expect(pattern);
            assert_eq!(pattern.matches(path), itself, "{pattern} {path}");
            assert_eq!(pattern.matches_parent_of(path), parent, "{pattern} {path}");
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        for (pattern, error) in [
            ("", PatternError::Root),
            ("/", PatternError::Root),
            ("a//b", PatternError::Path),
            ("../etc", PatternError::Path),
            ("a/**/b", PatternError::DoubleStar),
            ("a**", PatternError::DoubleStar),
        ] {
            assert_eq!(Pattern::new(pattern), Err(error), "{pattern}");
        }
    }
}
