//! Any bytes as the manifest of a static pod: a static pod with a name, or an error with its place.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_pods::read_manifest;
use plimsoll_policy::kubelet::Critical;

fuzz_target!(|data: &[u8]| match read_manifest(data) {
    Ok(pod) => {
        assert!(!pod.name.is_empty() && !pod.namespace.is_empty() && !pod.has_ended);
        assert!(pod.facts.critical == Some(Critical::Static) && pod.static_uid.is_none() && pod.ends.is_none());
    }
    Err(error) => {
        assert!(error.line > 0 && !error.key.is_empty() && !error.why.is_empty(), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
});
