//! What has to hold of a measurement, and whether it does.

use serde::Serialize;

/// One thing that has to hold.
#[derive(Debug, Serialize, PartialEq)]
pub(crate) struct Claim {
    pub(crate) what: &'static str,
    pub(crate) found: String,
    pub(crate) holds: bool,
}

/// Claims for people, a line each.
pub(crate) fn text(claims: &[Claim]) -> String {
    let lines = claims.iter().map(|Claim { what, found, holds }| {
        format!("{} {what}: {found}\n", if *holds { "holds         " } else { "DOES NOT HOLD " })
    });
    lines.collect()
}

/// The claims that do not hold.
pub(crate) fn broken(claims: &[Claim]) -> Vec<&'static str> {
    claims.iter().filter(|claim| !claim.holds).map(|claim| claim.what).collect()
}
