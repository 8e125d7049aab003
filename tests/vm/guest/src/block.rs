//! Block devices made for a test: one that answers slowly or at once, and what is swapped to.
//!
//! Slow devices and compressed memory are modules of the kernel, loaded by the machine's first process; where one is
//! missing the test is not run.

use crate::machine::{set, wait_for};
use crate::map::{swap_off, swap_on};
use anyhow::{Context as _, Result};
use rustix::fs::{FallocateFlags, fallocate};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where devices that answer slowly are configured.
pub(crate) const NULL_BLOCK: &str = "/sys/kernel/config/nullb";
/// The device that swap is made on.
pub(crate) const ZRAM: &str = "/sys/block/zram0";

/// A block device, of zeros or in memory, that takes its time, however little that is.
pub(crate) struct Slow {
    config: PathBuf,
    /// Its device file.
    pub(crate) device: PathBuf,
}

impl Slow {
    /// A device of `mib` MiB, each of whose answers takes `delay`.
    pub(crate) fn create(name: &str, mib: u64, delay: Duration) -> Result<Self> {
        Self::with_depth(name, mib, delay, 64)
    }

    /// A device that answers one read after the other, each after 3 s: its driver gives up after 5 s.
    pub(crate) fn one_by_one(name: &str) -> Result<Self> {
        Self::with_depth(name, 16, Duration::from_secs(3), 1)
    }

    /// A device that answers each request at once, on the CPU that makes it: nothing waits.
    pub(crate) fn at_once(name: &str, mib: u64) -> Result<Self> {
        Self::with(name, mib, &[("irqmode", "0")])
    }

    /// A device that keeps in memory what is written to it, and answers at once: it may be larger than memory.
    pub(crate) fn in_memory(name: &str, mib: u64) -> Result<Self> {
        Self::with(name, mib, &[("irqmode", "0"), ("memory_backed", "1")])
    }

    /// A device that works on so many requests at a time.
    fn with_depth(name: &str, mib: u64, delay: Duration, depth: u8) -> Result<Self> {
        let (delay, depth) = (delay.as_nanos().to_string(), depth.to_string());
        Self::with(name, mib, &[("hw_queue_depth", &depth), ("irqmode", "2"), ("completion_nsec", &delay)])
    }

    fn with(name: &str, mib: u64, attributes: &[(&str, &str)]) -> Result<Self> {
        let config = Path::new(NULL_BLOCK).join(name);
        fs::create_dir(&config).with_context(|| format!("cannot make {}", config.display()))?;
        set(config.join("size"), &mib.to_string())?;
        for (attribute, value) in attributes {
            set(config.join(attribute), value)?;
        }
        set(config.join("power"), "1")?;
        let index = fs::read_to_string(config.join("index"))?;
        // Newer kernels name the device after the directory, older ones by number.
        let names = [PathBuf::from(format!("/dev/{name}")), PathBuf::from(format!("/dev/nullb{}", index.trim()))];
        let mut device = None;
        wait_for("the device appears", Duration::from_secs(10), || {
            device = names.iter().find(|path| path.exists()).cloned();
            Ok(device.is_some())
        })?;
        Ok(Self { config, device: device.context("no device")? })
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        // A reader may still be waiting for it: then it stays until the machine ends.
        let _ = set(self.config.join("power"), "0");
        let _ = fs::remove_dir(&self.config);
    }
}

/// Swap that is on.
pub(crate) enum Swap {
    /// On compressed memory.
    Zram,
    /// On a file.
    File(CString),
}

impl Swap {
    /// Makes `mib` MiB of it in compressed memory and turns it on.
    pub(crate) fn start(mib: u64) -> Result<Self> {
        set(format!("{ZRAM}/disksize"), &format!("{mib}M"))?;
        let file = OpenOptions::new().write(true).open("/dev/zram0").context("cannot open /dev/zram0")?;
        Self::Zram.turn_on(&file, mib)
    }

    /// Makes a file of `mib` MiB and turns swap to it on.
    pub(crate) fn on_file(path: &Path, mib: u64) -> Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("cannot make {}", path.display()))?;
        fallocate(&file, FallocateFlags::empty(), 0, mib << 20).context("cannot allocate a file to swap to")?;
        Self::File(CString::new(path.as_os_str().as_bytes())?).turn_on(&file, mib)
    }

    fn turn_on(self, file: &File, mib: u64) -> Result<Self> {
        file.write_all_at(&header(mib << 20, rustix::param::page_size())?, 0)?;
        file.sync_all()?;
        swap_on(self.path()).with_context(|| format!("cannot swap to {:?}", self.path()))?;
        Ok(self)
    }

    fn path(&self) -> &CStr {
        match self {
            Self::Zram => c"/dev/zram0",
            Self::File(path) => path,
        }
    }

    fn turn_off(&self) -> Result<()> {
        swap_off(self.path())?;
        match self {
            Self::Zram => set(format!("{ZRAM}/reset"), "1"),
            Self::File(path) => Ok(fs::remove_file(OsStr::from_bytes(path.to_bytes()))?),
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Err(error) = self.turn_off() {
            eprintln!("cannot take swap away: {error:#}");
        }
    }
}

/// The first page of a swap area: version 1, its last page, and the signature at the page's end.
fn header(bytes: u64, page: usize) -> Result<Vec<u8>> {
    let last = u32::try_from(bytes / page as u64 - 1)?;
    let mut header = vec![0; page];
    header[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&last.to_ne_bytes());
    header[page - 10..].copy_from_slice(b"SWAPSPACE2");
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_header_ends_its_page_with_the_signature() {
        let header = header(64 << 20, 4096).unwrap();
        assert_eq!(header.len(), 4096);
        assert_eq!(&header[4086..], b"SWAPSPACE2");
        assert_eq!(header[1028..1032], 16_383_u32.to_ne_bytes());
    }
}
