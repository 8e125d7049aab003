//! The configuration as the supervisor read and checked it, for the processes that it starts again and again: a mistake in
//! a file that is edited meanwhile must not keep the core from starting.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use anyhow::Context as _;
use plimsoll_config::{Configuration, Snapshot};
use plimsoll_state::queue::plain_memory;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};

use crate::inherit;
use crate::options::Options;

/// All that was read, in memory that the processes inherit.
#[derive(Debug)]
pub(crate) struct InheritedConfig(OwnedFd);

impl InheritedConfig {
    /// Writes it there.
    pub(crate) fn new(snapshot: &Snapshot) -> anyhow::Result<Self> {
        // Inherited: it stays open in whatever is started.
        let mut memory = File::from(plain_memory("plimsoll-configuration", MemfdFlags::ALLOW_SEALING)?);
        memory.write_all(&serde_json::to_vec(snapshot)?)?;
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&memory, seals)?;
        Ok(Self(memory.into()))
    }

    /// The number under which it is inherited.
    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The configuration: the inherited one under `number`, or where there is none, the files.
pub(crate) fn configuration(
    options: &Options,
    number: Option<RawFd>,
    own_cgroup: Option<String>,
) -> anyhow::Result<Configuration> {
    let Some(number) = number else { return Ok(options.load(own_cgroup)?) };
    let memory = inherit::take(number)?;
    Ok(options.load_kept(&read(&memory)?, own_cgroup)?)
}

/// Others read the same memory: each opens it anew, at its beginning.
fn read(memory: &OwnedFd) -> anyhow::Result<Snapshot> {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let mut bytes = Vec::new();
    let opened = File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes));
    opened.with_context(|| format!("cannot read the inherited configuration {path}"))?;
    serde_json::from_slice(&bytes).context("the inherited configuration cannot be decoded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_reads_all_of_the_inherited_configuration() {
        let inherited_config = InheritedConfig::new(&Snapshot::default()).expect("memory");
        for _ in 0..2 {
            assert_eq!(read(&inherited_config.0).expect("readable"), Snapshot::default());
        }
        assert!(File::from(inherited_config.0).write_all(b"x").is_err(), "it is sealed");
    }
}
