//! When something was measured, and of which sources.

use std::process::Command;

use anyhow::Context;

use crate::run;

/// What follows a revision whose sources were changed since.
const WITH_CHANGES: &str = " with changes";

/// The day, as `2026-01-02`, UTC.
pub(crate) fn today() -> anyhow::Result<String> {
    Ok(run::text(Command::new("date").args(["-u", "+%Y-%m-%d"]))?.trim().to_owned())
}

/// The last commit that changed more than what matches one of `others`, patterns of git, and whether there are changes
/// that are in no commit.
pub(crate) fn of_all_but(others: &[&str]) -> anyhow::Result<String> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(arguments).args(["--", "."]).args(others.iter().map(|other| format!(":!{other}")));
        run::text(git.current_dir(run::root())).context("results are of a commit, so they need git and its history")
    };
    let commit = git(&["log", "-1", "--format=%h", "--abbrev=12"])?;
    let changes = git(&["status", "--porcelain"])?;
    Ok(commit.trim().to_owned() + if changes.is_empty() { "" } else { WITH_CHANGES })
}

/// Whether what was measured at `before` is still of the sources at `now`.
pub(crate) fn is_same(before: &str, now: &str) -> bool {
    before == now && !now.ends_with(WITH_CHANGES)
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn sources_with_changes_are_never_the_same() {
        assert!(is_same("abc", "abc") && !is_same("abc", "abd"));
        assert!(!is_same("abc", "abc with changes") && !is_same("abc with changes", "abc with changes"));
    }
}
