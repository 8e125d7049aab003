//! What has to hold of a measurement, and whether it does.

use serde::Serialize;

/// One thing that has to hold.
#[derive(Debug, Serialize, PartialEq)]
pub(crate) struct Claim {
    pub(crate) what: &'static str,
    pub(crate) found: String,
    /// Absent where what was measured does not decide it.
    pub(crate) holds: Option<bool>,
}

impl Claim {
    /// Whether it holds, in words.
    pub(crate) const fn verdict(&self) -> &'static str {
        match self.holds {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "UNDECIDED",
        }
    }
}

/// Claims for people, a line each.
pub(crate) fn text(claims: &[Claim]) -> String {
    let lines = claims.iter().map(|claim| format!("{:<14} {}: {}\n", claim.verdict(), claim.what, claim.found));
    lines.collect()
}

/// The same as a list in Markdown, and behind them what has to hold and was not measured.
pub(crate) fn list(claims: &[Claim], not_run: &[&str]) -> String {
    let lines = claims.iter().map(|claim| format!("- {}: {}: {}\n", claim.verdict(), claim.what, claim.found));
    lines.chain(not_run.iter().map(|what| format!("- NOT RUN: {what}\n"))).collect()
}

/// What follows from several verdicts: one that does not hold decides, and one that is undecided leaves it so.
pub(crate) fn together(verdicts: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let verdicts: Vec<Option<bool>> = verdicts.into_iter().collect();
    let is_decided = verdicts.contains(&Some(false)) || !verdicts.contains(&None);
    is_decided.then(|| !verdicts.contains(&Some(false)))
}

/// The claims that do not hold.
pub(crate) fn broken(claims: &[Claim]) -> Vec<&'static str> {
    claims.iter().filter(|claim| claim.holds == Some(false)).map(|claim| claim.what).collect()
}
