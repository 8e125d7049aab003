//! A checkout that was copied with what had been built in it is the one that its commands work on.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// The program that cargo built beside this test, run in `folder` as cargo runs it for the package at `package`.
fn xtask(folder: &Path, package: Option<&Path>) -> Output {
    let mut command = Command::new(std::env::var_os("CARGO_BIN_EXE_xtask").expect("cargo says it"));
    command.args(["vectors"]).current_dir(folder).env_remove("CARGO_MANIFEST_DIR");
    if let Some(package) = package {
        command.env("CARGO_MANIFEST_DIR", package);
    }
    command.output().expect("it runs")
}

#[test]
fn the_copy_is_what_is_used() {
    let place = tempfile::tempdir().expect("a directory");
    let copy = place.path().join("copy");
    let (package, below) = (copy.join("xtask"), copy.join("agent/src"));
    for folder in [&package, &below, &copy.join("tests/data/vectors")] {
        fs::create_dir_all(folder).expect("a folder");
    }
    for file in [copy.join("Cargo.toml"), package.join("Cargo.toml")] {
        fs::write(file, "").expect("a file");
    }
    // The original has saved decisions, and the copy has lost them.
    let expected = format!("no known file in {}", copy.join("tests/data/vectors").display());
    for (folder, package) in [(below.as_path(), None), (Path::new("/"), Some(package.as_path()))] {
        let output = xtask(folder, package);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(&expected), "{said}");
    }
}

#[test]
fn outside_of_a_checkout_it_says_so() {
    let place = tempfile::tempdir().expect("a directory");
    let output = xtask(place.path(), None);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.starts_with("error: no checkout of Plimsoll above "), "{said}");
}
