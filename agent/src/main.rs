//! `plimsoll`, the program. All of it is in the library, which is for Linux; on another system it prints that and ends.

#![forbid(unsafe_code)]

#[cfg(any(test, not(target_os = "linux")))]
mod unsupported_os;

#[cfg(target_os = "linux")]
use plimsoll::main as program;

#[cfg(not(target_os = "linux"))]
use unsupported_os::main as program;

fn main() -> std::process::ExitCode {
    program()
}
