//! Has the program linked with the code apart that the core does not run.

use std::path::Path;

const SCRIPT: &str = "apart.ld";

fn main() {
    println!("cargo::rerun-if-changed={SCRIPT}");
    // On another system the program has no core.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo::rustc-link-arg=-T{}", Path::new(&folder).join(SCRIPT).display());
    }
}
