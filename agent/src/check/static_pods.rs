//! What `check` reports of the manifests of static pods.

use plimsoll_report::text::printable;
use plimsoll_units::counted;

use super::{Row, bounded, row};
use crate::services::StaticFound;

/// So many of those that cannot be read are named; the others are counted.
const MOST_NAMED: usize = 3;

pub(super) fn static_pods_row(StaticFound { path, manifests, pods, troubles }: &StaticFound) -> Row {
    let path = printable(&path.display().to_string());
    let [manifests, pods] = [(manifests, "manifest", "manifests"), (&pods.len(), "pod that runs", "pods that run")]
        .map(|(count, one, more)| counted(*count, one, more));
    let (first, more) = troubles.split_at(troubles.len().min(MOST_NAMED));
    let more = (!more.is_empty()).then(|| format!("and {} more", more.len()));
    let found = [format!("{manifests} in {path}, of {pods}")];
    let found: Vec<&str> = found.iter().chain(first).chain(&more).map(String::as_str).collect();
    let advice = "what such a pod requests is known where podFacts or the API server lists it alone; it is never evicted all the \
                  same. Most manifests are root's to read: run as root";
    row("static pods", troubles.is_empty(), bounded(&found.join("; ")), advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_inventory::PodFacts;

    #[test]
    fn manifests_and_pods_are_counted_and_those_that_cannot_be_read_are_named() {
        let found = |troubles: usize| {
            let troubles = (0..troubles).map(|number| format!("{number}: no")).collect();
            let pods = vec![(PodFacts::default(), "a/b".to_owned())];
            let Row { found, advice, .. } =
                static_pods_row(&StaticFound { path: "/m\u{1b}".into(), manifests: 2, pods, troubles });
            assert_eq!(advice.is_empty(), !found.contains(": no"), "{found}");
            found
        };
        assert_eq!(found(0), "2 manifests in /m\\u{1b}, of 1 pod that runs");
        assert_eq!(found(1), "2 manifests in /m\\u{1b}, of 1 pod that runs; 0: no");
        assert!(found(5).ends_with("; 2: no; and 2 more"));
    }
}
