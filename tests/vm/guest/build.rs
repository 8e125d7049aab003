//! Makes the client of the calls of CRI that tests create pods with.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=src/cri.proto");
    let calls = protox::compile(["src/cri.proto"], ["src"])?;
    tonic_prost_build::configure().build_server(false).build_transport(false).compile_fds(calls)?;
    Ok(())
}
