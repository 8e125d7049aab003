//! Configurations that must be refused, with words that name what is wrong, before anything is opened.

use crate::agent::PROGRAM;
use anyhow::{Context as _, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};

/// A file, and what the error must name: the key, the value.
const BAD: &[(&str, &[&str])] = &[
    ("evictionHrad: {memory.available: 100Mi}\n", &["evictionHrad"]),
    ("machine: {colour: red}\n", &["machine.colour"]),
    ("evictionHard: {memory.available: 100Quux}\n", &["evictionHard", "memory.available", "100Quux"]),
    ("evictionHard: {memory.available: -5Mi}\n", &["memory.available", "-5Mi"]),
    ("evictionHard: {memory.available: 120%}\n", &["memory.available", "120%"]),
    ("evictionSoft: {memory.available: 200Mi}\n", &["evictionSoftGracePeriod"]),
    ("machine: {workloads: [{match: '**'}]}\n", &["machine.workloads", "**"]),
    ("machine: {workloads: [{match: init.scope}]}\n", &["machine.workloads", "init.scope"]),
    ("a: [1, 2\n", &["/run/bad.yaml"]),
];

pub(crate) fn refused() -> Result<()> {
    let file = Path::new("/run/bad.yaml");
    for (text, named) in BAD {
        std::fs::write(file, text)?;
        check(file, named).with_context(|| format!("for {text:?}"))?;
    }
    check(Path::new("/run/there-is-no-such-file.yaml"), &["/run/there-is-no-such-file.yaml"])
        .context("for a missing file")
}

fn check(file: &Path, named: &[&str]) -> Result<()> {
    let output = Command::new(PROGRAM)
        .args(["run", "--config"])
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .context("cannot start the agent")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "ended with {}, not with code 2: {said}", output.status);
    for word in named {
        ensure!(said.contains(word), "the error does not name {word:?}: {said}");
    }
    ensure!(!Path::new("/run/plimsoll").exists(), "something was made in /run before the configuration was refused");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_them_is_refused_by_the_reader_with_those_words() {
        for (text, named) in BAD {
            let error = plimsoll_config::parse(text, "/run/bad.yaml").unwrap_err().to_string();
            for word in *named {
                assert!(error.contains(word), "{text}: {word:?} is not in {error}");
            }
        }
    }
}
