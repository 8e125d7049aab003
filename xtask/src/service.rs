//! Whether systemd accepts the unit that is shipped, and how much of the machine it leaves it by its own count.

use std::fs;
use std::io::ErrorKind;
use std::process::{Command, Output};

use anyhow::{Context as _, bail, ensure};

use crate::run;

/// Keys that only later versions of systemd know; the unit works without them.
const LATER: [&str; 2] = ["'RestartSteps'", "'RestartMaxDelaySec'"];

/// The exposure level of the unit, in tenths, as systemd 252 counts it. agent/docs/SECURITY.md has what it is made of.
const EXPOSURE: u32 = 36;

/// Has `systemd-analyze verify` read the unit. Absent where there is no such program.
pub(crate) fn verify() -> Option<anyhow::Result<()>> {
    // Other units of this machine are not what is asked about.
    let output = analyze(&["verify", "--man=no", "--recursive-errors=no"])?;
    Some(output.and_then(|output| {
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        verdict(output.status.success(), &said)
    }))
}

/// Has `systemd-analyze security` judge the unit: its exposure level has not risen. Absent as for [`verify`].
pub(crate) fn exposure() -> Option<anyhow::Result<()>> {
    let output = analyze(&["security", "--offline=true", "--no-pager"])?;
    Some(output.and_then(|output| {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some(level) = level(&said) else { bail!("systemd-analyze gives no exposure level: {said}") };
        let (whole, tenths) = (EXPOSURE / 10, EXPOSURE % 10);
        ensure!(level <= EXPOSURE, "the unit's exposure level is above {whole}.{tenths}: {said}");
        Ok(())
    }))
}

/// The level in tenths from a line that ends with `level for plimsoll.service: 3.6 OK`.
fn level(said: &str) -> Option<u32> {
    let line = said.lines().find_map(|line| line.split_once("Overall exposure level for "))?.1;
    let (whole, tenths) = line.split_once(": ")?.1.split_ascii_whitespace().next()?.split_once('.')?;
    Some(10 * whole.parse::<u32>().ok()? + tenths.parse::<u32>().ok()?)
}

/// What `systemd-analyze` answers about the unit; absent where there is no such program.
fn analyze(arguments: &[&str]) -> Option<anyhow::Result<Output>> {
    let is_missing = |error: &anyhow::Error| {
        error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let output = analyzed(arguments);
    (!output.as_ref().is_err_and(is_missing)).then_some(output)
}

fn analyzed(arguments: &[&str]) -> anyhow::Result<Output> {
    let unit = run::root().join("agent/deploy/plimsoll.service");
    let text = fs::read_to_string(&unit).with_context(|| format!("cannot read {}", unit.display()))?;
    let place = tempfile::tempdir()?;
    let copy = place.path().join("plimsoll.service");
    // What it starts need not be installed here.
    fs::write(&copy, text.replace("/usr/bin/plimsoll ", "/bin/true "))?;
    let mut command = Command::new("systemd-analyze");
    command.args(arguments).arg(&copy).env("LC_ALL", "C.UTF-8");
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
    use super::{level, verdict};

    #[test]
    fn a_level_is_read_in_tenths() {
        let said = "✗ User=/DynamicUser=  0.4\n\n→ Overall exposure level for plimsoll.service: 3.6 OK 🙂\n";
        assert_eq!(level(said), Some(36));
        assert_eq!(level("→ Overall exposure level for plimsoll.service: 10.0 UNSAFE"), Some(100));
        assert_eq!(level("nothing"), None);
    }

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
