//! Hands the kernel programs to the compiler: the object that `cargo xtask build-ebpf` made is embedded in the agent.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../ebpf/target");
    let mut objects = vec!["plimsoll"];
    if env::var_os("CARGO_FEATURE_BENCH").is_some() {
        objects.push("bare");
    }
    // kprobes find their arguments in registers, which another architecture names otherwise: an object each.
    let target = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    for name in objects {
        let object = format!("{name}.bpf.o");
        let from = built.join(format!("{name}.{target}.bpf.o"));
        println!("cargo::rerun-if-changed={}", from.display());
        if let Err(error) = fs::copy(&from, out.join(&object)) {
            println!("cargo::error={}: {error}; run `cargo xtask build-ebpf`", from.display());
            std::process::exit(1);
        }
    }
}
