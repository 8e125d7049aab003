//! What code that an attacker runs in the reporter, in `services` or in the broker would try, for a test: compiled only with the
//! feature `fault-injection`.

mod attempts;
mod call;
pub(crate) mod forging;
pub(crate) mod ordering;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};

use anyhow::Context as _;
use libc::c_int;

/// Each names a FIFO by which the process is given what it attacks, once all of that is there: `PID DIRECTORY`, of the
/// core, and of what the test has made. It then tries all and writes what came of each to standard error: `plimsoll:
/// hostile: NAME: ERRNO`, where 0 is success.
pub(crate) const REPORTER: &str = "PLIMSOLL_HOSTILE_REPORTER";
pub(crate) const SERVICES: &str = "PLIMSOLL_HOSTILE_SERVICES";
pub(crate) const BROKER: &str = "PLIMSOLL_HOSTILE_BROKER";

/// What is attacked.
struct Target {
    core: c_int,
    directory: String,
}

impl Target {
    fn of(line: &str) -> Option<Self> {
        let (core, directory) = line.trim_end().split_once(' ')?;
        Some(Self { core: core.parse().ok()?, directory: directory.to_owned() })
    }
}

/// Opens the FIFO that the variable names, before that is refused.
pub(crate) fn open(variable: &str) -> anyhow::Result<Option<File>> {
    let Some(path) = std::env::var_os(variable) else { return Ok(None) };
    // To write, too: otherwise opening it waits for a writer.
    let opened = File::options().read(true).write(true).open(path);
    Ok(Some(opened.with_context(|| format!("cannot open the FIFO that {variable} names"))?))
}

/// Waits on a thread of its own for what to attack, and attacks it.
pub(crate) fn start(fifo: Option<File>) -> anyhow::Result<()> {
    let Some(fifo) = fifo else { return Ok(()) };
    let serve = move || {
        let mut line = String::new();
        let read = BufReader::new(fifo).read_line(&mut line);
        let Some(target) = read.ok().and_then(|_| Target::of(&line)) else { return };
        attempts::all(&target, &mut |name, errno| print(&format!("{name}: {errno}")));
        print("done");
    };
    std::thread::Builder::new().name("hostile".into()).spawn(serve).map(drop).context("cannot start a thread")
}

/// In one write, so that the log of another process does not come in between.
fn print(outcome: &str) {
    // Nothing is left to do where standard error is closed: the test waits for `done` in vain.
    let _ = std::io::stderr().write_all(format!("plimsoll: hostile: {outcome}\n").as_bytes());
}
