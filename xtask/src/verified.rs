//! `cargo xtask verified`: what the verifier takes for each program on each kernel, into the table that a test compares
//! with.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, ensure};

use crate::qemu::Processor;
use crate::scratch::Scratch;
use crate::vm::{self, Build};
use crate::{install, kernels, run};

/// The table, and what the guest leaves of one kernel.
const TABLE: &str = "tests/data/verified.json";
const LEFT: &str = "verified.json";
const MACHINE_SECONDS: u64 = 300;

/// What it needs.
pub(crate) fn needs() -> anyhow::Result<Vec<install::Need>> {
    install::machines(&kernels::of_gate())
}

/// Measures, and writes the table.
pub(crate) fn command() -> anyhow::Result<()> {
    install::all(&needs()?)?;
    Build::Plain.run(Processor::X86_64)?;
    let mut table = BTreeMap::new();
    for kernel in kernels::of_gate() {
        let out = Scratch::new("verified-")?;
        let left = format!("/out/{LEFT}");
        let words = ["/bin/plimsoll-guest", "cost", "verified", "--out", &left];
        let mut machine = vm::Arguments::of(kernel, MACHINE_SECONDS, &words);
        machine.agent = Build::Plain;
        machine.out = Some(out.path().to_owned());
        let code = vm::boot(&machine, &mut |line| println!("{line}"))?;
        ensure!(code == 0, "on {kernel} the guest ended with {code}");
        let text = fs::read_to_string(out.path().join(LEFT)).context("the guest left no table")?;
        let programs: BTreeMap<String, u32> = serde_json::from_str(&text)?;
        table.insert(kernel, programs);
    }
    let file = run::root().join(TABLE);
    fs::write(&file, serde_json::to_string_pretty(&table)? + "\n")
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("table: {}", file.display());
    Ok(())
}
