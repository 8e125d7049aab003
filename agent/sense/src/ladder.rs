//! Starts the best source that this machine allows, and says why a better one was not taken.

use std::path::Path;

use crate::{
    config::Config,
    ebpf::EbpfSource,
    error::SenseError,
    poll::Polling,
    psi::PsiTrigger,
    source::{Kind, Source},
};

/// One step of the ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    /// Which source.
    pub kind: Kind,
    /// Why it was not taken; `None` on the rung that stands.
    pub fallen: Option<String>,
}

/// Starts sources best first until one stands. The last rung in the answer is the one that does.
pub fn ladder(config: &Config) -> Result<(Box<dyn Source>, Vec<Rung>), SenseError> {
    let mut rungs = Vec::new();
    for kind in [Kind::Ebpf, Kind::PsiTrigger, Kind::Polling] {
        if config.only.is_some_and(|only| only != kind) {
            continue;
        }
        match start(kind, config) {
            Ok(source) => {
                rungs.push(Rung { kind, fallen: None });
                return Ok((source, rungs));
            }
            Err(error) => rungs.push(Rung { kind, fallen: Some(error.to_string()) }),
        }
    }
    let reasons: Vec<String> =
        rungs.iter().map(|rung| format!("{}: {}", rung.kind, rung.fallen.as_deref().unwrap_or_default())).collect();
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
    fn a_forced_kind_is_the_only_rung() {
        let config = Config { only: Some(Kind::Polling), ..Config::default() };
        let (source, rungs) = ladder(&config).expect("polling works everywhere");
        assert_eq!(source.kind(), Kind::Polling);
        assert_eq!(rungs, [Rung { kind: Kind::Polling, fallen: None }]);
    }

    #[test]
    fn a_forced_kind_that_fails_is_an_error_with_its_reason() {
        let config = Config { only: Some(Kind::Polling), poll_period: Duration::ZERO, ..Config::default() };
        let error = ladder(&config).err().expect("no period").to_string();
        assert!(error.contains("poll: a poll period"), "{error}");
    }

    #[test]
    fn every_fallen_rung_has_a_reason_and_the_last_one_stands() {
        let (source, rungs) = ladder(&Config::default()).expect("polling works everywhere");
        let (last, fallen) = rungs.split_last().expect("at least one rung");
        assert_eq!((last.kind, &last.fallen), (source.kind(), &None));
        assert!(fallen.iter().all(|rung| rung.fallen.as_ref().is_some_and(|why| !why.is_empty())), "{rungs:?}");
    }
}
