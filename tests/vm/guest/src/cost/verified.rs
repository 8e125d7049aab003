//! What the verifier takes for each program, beside what it took when the table was made.

use crate::suite::figure;
use anyhow::{Context as _, Result, ensure};
use plimsoll_sense::cost;
use std::collections::BTreeMap;
use std::fs;

/// Instructions that the verifier goes through, by program.
pub(super) type Verified = BTreeMap<String, u32>;

/// The same for each kernel, as the command of [`AGAIN`] writes it.
const TABLE: &str = include_str!("../../../../data/verified.json");
/// How to make the table again.
const AGAIN: &str = "cargo xtask verified";

/// What it takes here.
pub(super) fn here() -> Result<Verified> {
    Ok(cost::verified()?.into_iter().map(|(name, count)| (name.to_owned(), count)).collect())
}

/// No program takes more than one and a half times what the table has for this kernel. One that the table does not have
/// is an error, too.
pub(crate) fn takes_no_more() -> Result<()> {
    let kernel = kernel(&fs::read_to_string("/proc/sys/kernel/osrelease")?);
    let here = here()?;
    for (name, count) in &here {
        figure("verified", &[("kernel", &kernel), ("program", name), ("instructions", count)]);
    }
    let table: BTreeMap<String, Verified> = serde_json::from_str(TABLE)?;
    let before = table.get(&kernel).with_context(|| format!("there is no {kernel} in the table: {AGAIN}"))?;
    let more = grown(before, &here);
    ensure!(
        more.is_empty(),
        "the verifier goes through more than one and a half times as many instructions as tests/data/verified.json has: \
         {}; if they are meant, make the table again with `{AGAIN}`",
        more.join(", ")
    );
    Ok(())
}

/// The name by which the project knows a kernel: its version without patch level. Programs for another processor differ
/// in where they find their arguments.
fn kernel(release: &str) -> String {
    let version: Vec<&str> = release.trim().split(['.', '-', '+']).take(2).collect();
    version.join(".")
}

/// The programs that grew by more than a half, or are new.
fn grown(before: &Verified, now: &Verified) -> Vec<String> {
    let more = |(name, count): (&String, &u32)| match before.get(name) {
        Some(old) if u64::from(*count) * 2 <= u64::from(*old) * 3 => None,
        Some(old) => Some(format!("{name} {count}, {old} before")),
        None => Some(format!("{name} {count}, which is not in the table")),
    };
    now.iter().filter_map(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counts: &[(&str, u32)]) -> Verified {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn a_program_may_grow_by_a_half_and_must_be_in_the_table() {
        let before = of(&[("a", 100), ("b", 3)]);
        assert_eq!(grown(&before, &of(&[("a", 150), ("b", 4)])), [""; 0]);
        assert_eq!(grown(&before, &of(&[("a", 151)])), ["a 151, 100 before"]);
        assert_eq!(grown(&before, &of(&[("b", 5), ("c", 1)])), ["b 5, 3 before", "c 1, which is not in the table"]);
    }

    #[test]
    fn a_kernel_is_known_by_its_version() {
        for (release, expected) in
            [("6.12.107+deb13-amd64\n", "6.12"), ("6.1.0-50-amd64", "6.1"), ("7.2-rc1+deb14-arm64", "7.2")]
        {
            assert_eq!(kernel(release), expected, "{release}");
        }
    }

    #[test]
    fn the_table_has_every_program_on_each_kernel() {
        let table: BTreeMap<String, Verified> = serde_json::from_str(TABLE).unwrap();
        assert!(["6.1", "6.12", "7.2"].iter().all(|kernel| table.contains_key(*kernel)), "{:?}", table.keys());
        for (kernel, programs) in &table {
            for attachment in plimsoll_sense::hooks::attachments() {
                assert!(programs.get(attachment.program).is_some_and(|it| *it > 0), "{kernel} {}", attachment.program);
            }
        }
    }
}
