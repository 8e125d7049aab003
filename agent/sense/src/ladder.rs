//! Starts the best source that this machine allows, and reports why a better one was not taken.

use std::path::Path;

use crate::{
    config::Config, ebpf::EbpfSource, error::SenseError, kind::Kind, poll::Polling, psi::PsiTrigger, source::Source,
};

/// An attempt to start a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceAttempt {
    /// Which source.
    pub kind: Kind,
    /// Why it was not taken; `None` for the source that was started.
    pub error: Option<String>,
}

/// Starts sources, best first, until one succeeds. The last attempt in the answer is that one.
pub fn ladder(config: &Config) -> Result<(Box<dyn Source>, Vec<SourceAttempt>), SenseError> {
    first_that_starts(config, start)
}

fn first_that_starts(
    config: &Config,
    start: impl Fn(Kind, &Config) -> Result<Box<dyn Source>, SenseError>,
) -> Result<(Box<dyn Source>, Vec<SourceAttempt>), SenseError> {
    let mut attempts = Vec::new();
    for kind in [Kind::Ebpf, Kind::PsiTrigger, Kind::Polling] {
        if config.only.is_some_and(|only| only != kind) {
            continue;
        }
        match start(kind, config) {
            Ok(source) => {
                attempts.push(SourceAttempt { kind, error: None });
                return Ok((source, attempts));
            }
            Err(error) => attempts.push(SourceAttempt { kind, error: Some(error.to_string()) }),
        }
    }
    let reasons: Vec<String> = attempts
        .iter()
        .map(|attempt| format!("{}: {}", attempt.kind, attempt.error.as_deref().unwrap_or_default()))
        .collect();
    Err(SenseError::NoSource(reasons.join("; ")))
}

fn start(kind: Kind, config: &Config) -> Result<Box<dyn Source>, SenseError> {
    match kind {
        Kind::Ebpf => EbpfSource::new(config).map(|source| Box::new(source) as _),
        Kind::PsiTrigger => {
            PsiTrigger::new(Path::new("/proc/pressure/memory"), config.trigger).map(|source| Box::new(source) as _)
        }
        Kind::Polling => {
            Polling::new(config.poll_period, config.poll_phase).map(|source| Box::new(source) as Box<dyn Source>)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_forced_kind_is_the_only_attempt() {
        let config = Config { only: Some(Kind::Polling), ..Config::default() };
        let (source, attempts) = ladder(&config).expect("polling works everywhere");
        assert_eq!(source.kind(), Kind::Polling);
        assert_eq!(attempts, [SourceAttempt { kind: Kind::Polling, error: None }]);
    }

    #[test]
    fn a_forced_kind_that_fails_is_an_error_with_its_reason() {
        let config = Config { only: Some(Kind::Polling), poll_period: Duration::ZERO, ..Config::default() };
        let error = ladder(&config).err().expect("no period").to_string();
        assert!(error.contains("poll: a poll period"), "{error}");
    }

    #[test]
    fn each_attempt_that_failed_has_its_error_and_the_last_one_is_the_source() {
        let start_but = |failing: &[Kind]| {
            first_that_starts(&Config::default(), |kind, config| match kind {
                kind if failing.contains(&kind) => Err(SenseError::NoKernelBrake(kind)),
                // What starts on every machine takes its place.
                _ => start(Kind::Polling, config),
            })
        };
        let failed = |kind| SourceAttempt { kind, error: Some(SenseError::NoKernelBrake(kind).to_string()) };
        let started = |kind| SourceAttempt { kind, error: None };
        for (failing, expected) in [
            (&[Kind::Ebpf][..], vec![failed(Kind::Ebpf), started(Kind::PsiTrigger)]),
            (
                &[Kind::Ebpf, Kind::PsiTrigger],
                vec![failed(Kind::Ebpf), failed(Kind::PsiTrigger), started(Kind::Polling)],
            ),
        ] {
            let (source, attempts) = start_but(failing).expect("one starts");
            assert_eq!((source.kind(), attempts), (Kind::Polling, expected));
        }
        let error = start_but(&[Kind::Ebpf, Kind::PsiTrigger, Kind::Polling]).err().expect("none starts").to_string();
        assert!(
            error.contains("ebpf: source") && error.contains("psi: source") && error.contains("poll: source"),
            "{error}"
        );
    }
}
