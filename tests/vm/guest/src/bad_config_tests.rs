//! Configurations that must be refused, with an error that names what is wrong, before anything is opened.

use crate::agent::PROGRAM;
use anyhow::{Context as _, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};

/// Where an agent keeps its state.
const STATE: &str = "/run/plimsoll";

/// A file, and what the error must name: the key, the value where there is one, and what was expected.
const BAD: &[(&str, &[&str])] = &[
    ("evictionHrad: {memory.available: 100Mi}\n", &["evictionHrad: unknown key; did you mean evictionHard?"]),
    ("machine: {colour: red}\n", &["machine.colour: unknown key; expected ", "brake, "]),
    (
        "evictionHard: {memory.available: 100Quux}\n",
        &["evictionHard.memory.available: \"100Quux\": expected a quantity such as 100Mi"],
    ),
    (
        "evictionHard: {memory.available: -5Mi}\n",
        &["evictionHard.memory.available: \"-5Mi\": expected a quantity that is not negative"],
    ),
    (
        "evictionHard: {memory.available: 120%}\n",
        &["evictionHard.memory.available: \"120%\": expected a percentage from 0% to 100%"],
    ),
    (
        "evictionSoft: {memory.available: 200Mi}\n",
        &["evictionSoftGracePeriod.memory.available: missing", "needs a grace period"],
    ),
    (
        "machine: {workloads: [{match: '**'}]}\n",
        &["machine.workloads[0].match: \"**\": it would include init", "expected a pattern such as"],
    ),
    (
        "machine: {workloads: [{match: init.scope}]}\n",
        &["machine.workloads[0].match: \"init.scope\": it would include init", "expected a pattern such as"],
    ),
    ("a: [1, 2\n", &["/run/bad.yaml:1", "not valid YAML"]),
];

pub(crate) fn refused() -> Result<()> {
    // An agent of an earlier test in the same machine made it.
    if Path::new(STATE).exists() {
        std::fs::remove_dir_all(STATE)?;
    }
    let file = Path::new("/run/bad.yaml");
    for (text, named) in BAD {
        std::fs::write(file, text)?;
        check(file, named).with_context(|| format!("for {text:?}"))?;
    }
    let missing = "/run/there-is-no-such-file.yaml";
    check(Path::new(missing), &[missing, "name a file that exists"]).context("for a missing file")
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
    ensure!(!Path::new(STATE).exists(), "something was made in /run before the configuration was refused");
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
