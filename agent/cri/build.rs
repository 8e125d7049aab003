//! Compiles the messages that the client uses, and for the tests a server of the same services.

use std::{env, fs, path::PathBuf};

const PROTO: &str = "proto/runtime.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    let described = protox::compile([PROTO], ["proto"])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    // The library includes the first alone, which has messages and no calls; a test the second.
    for (folder, has_server) in [("messages", false), ("server", true)] {
        let folder = out.join(folder);
        fs::create_dir_all(&folder)?;
        tonic_prost_build::configure()
            .build_client(false)
            .build_server(has_server)
            .build_transport(false)
            .btree_map(".")
            .out_dir(folder)
            .compile_fds(described.clone())?;
    }
    Ok(())
}
