//! Hands the kernel programs to the compiler: the object that `cargo xtask build-ebpf` made is embedded in the agent.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../ebpf/target");
    let mut objects = vec!["plimsoll.bpf.o"];
    if env::var_os("CARGO_FEATURE_BENCH").is_some() {
        objects.push("bare.bpf.o");
    }
    for object in objects {
        let from = built.join(object);
        println!("cargo::rerun-if-changed={}", from.display());
        if let Err(error) = fs::copy(&from, out.join(object)) {
            println!("cargo::warning={}: {error}; run `cargo xtask build-ebpf`", from.display());
            fs::write(out.join(object), []).expect("OUT_DIR can be written");
        }
    }
}
