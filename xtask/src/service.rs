//! Whether systemd accepts the unit that is shipped.

use std::fs;
use std::io::ErrorKind;
use std::process::{Command, Output};

use anyhow::{Context as _, ensure};

use crate::run;

/// Keys that only later versions of systemd know; the unit works without them.
const LATER: [&str; 2] = ["'RestartSteps'", "'RestartMaxDelaySec'"];

/// Has `systemd-analyze verify` read the unit. Absent where there is no such program.
pub(crate) fn verify() -> Option<anyhow::Result<()>> {
    let output = match analyze() {
        Ok(output) => output,
        Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(|it| it.kind() == ErrorKind::NotFound) => {
            return None;
        }
        Err(error) => return Some(Err(error)),
    };
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Some(verdict(output.status.success(), &said))
}

fn analyze() -> anyhow::Result<Output> {
    let unit = run::root().join("agent/deploy/plimsoll.service");
    let text = fs::read_to_string(&unit).with_context(|| format!("cannot read {}", unit.display()))?;
    let place = tempfile::tempdir()?;
    let copy = place.path().join("plimsoll.service");
    // What it starts need not be installed here.
    fs::write(&copy, text.replace("/usr/bin/plimsoll ", "/bin/true "))?;
    let mut command = Command::new("systemd-analyze");
    // Other units of this machine are not what is asked about.
    command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&copy);
    Ok(command.output()?)
}

/// All that it prints is a mistake, but for the keys that it is too old to know: for those it ends with an error, too.
fn verdict(success: bool, said: &str) -> anyhow::Result<()> {
    let is_later = |line: &&str| line.contains("Unknown key") && LATER.iter().any(|key| line.contains(key));
    let (later, objections): (Vec<&str>, Vec<&str>) = said.lines().partition(is_later);
    let accepted = objections.is_empty() && (success || !later.is_empty());
    ensure!(accepted, "systemd-analyze reports: {}", objections.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn only_what_earlier_versions_do_not_know_is_let_pass() {
        let unknown = |key: &str| format!("plimsoll.service:9: Unknown key '{key}' in section [Service], ignoring.\n");
        let later = unknown("RestartSteps") + &unknown("RestartMaxDelaySec");
        for (success, said, accepted) in [
            (true, String::new(), true),
            (true, later.clone(), true),
            (false, later.clone(), true),
            (true, later + &unknown("RestartSecs"), false),
            (false, String::new(), false),
        ] {
            assert_eq!(verdict(success, &said).is_ok(), accepted, "{said}");
        }
    }
}
