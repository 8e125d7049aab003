//! A machine whose guest measures round by round: it prints `PLAN n` and then `ROUND ...` after each round.

use std::time::Instant;

use anyhow::ensure;

use crate::progress::Progress;
use crate::vm;

/// How many of the last lines are repeated where it fails.
const LAST_LINES: usize = 5;

/// Boots it to its end, shows how far it has come, and hands on what it prints. An error where it fails.
pub(crate) fn boot(machine: &vm::Arguments, what: &str, lines: &mut dyn FnMut(&str)) -> anyhow::Result<()> {
    let mut tail = Vec::new();
    let begun = Instant::now();
    let progress = Progress::new(what, 0);
    let mut take = |line: &str| {
        lines(line);
        if line.starts_with(vm::BOOTED_AGAIN) {
            progress.line(line);
        } else if let Some(round) = line.strip_prefix("ROUND ") {
            progress.line(&format!("  {:>4} s  round {round}", begun.elapsed().as_secs()));
            progress.step();
        } else if let Some(total) = line.strip_prefix("PLAN ") {
            progress.expect(total.parse().unwrap_or(0));
        }
        tail.push(line.to_owned());
    };
    let code = vm::boot(machine, &mut take)?;
    ensure!(code == 0, "the guest ended with {code}: {}", tail[tail.len().saturating_sub(LAST_LINES)..].join(" | "));
    Ok(())
}
