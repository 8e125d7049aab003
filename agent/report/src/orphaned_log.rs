//! Directories that are left of pods that are gone for good, in the log.

use plimsoll_inventory::OrphanedPods;
use plimsoll_policy::Uid;
use plimsoll_units::counted;

/// One line, with the UID of the first.
pub(crate) fn log(pods: &OrphanedPods) {
    let OrphanedPods { measured, unmeasured, logs, volumes, first } = *pods;
    let Some(first) = first.map(uuid) else {
        tracing::info!("no directories of pods that are gone for good are left");
        return;
    };
    let count = counted(measured.saturating_add(unmeasured), "pod that is", "pods that are");
    let unknown =
        if unmeasured == 0 { String::new() } else { format!(", and what those of {unmeasured} take is not known") };
    tracing::info!(
        orphaned = measured.saturating_add(unmeasured),
        uid = first,
        logs_bytes = logs.0,
        volumes_bytes = volumes.0,
        "directories of {count} gone for good are left: logs take {logs} and volumes {volumes}{unknown}; the first is {first}"
    );
}

/// A UID as the API writes it. Of a static pod's, which is a hash, the names of directories have no dashes.
fn uuid(uid: Uid) -> String {
    let digits = format!("{:032x}", uid.0);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}
