//! Where the kernel's own variables are.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
};

/// Symbols whose addresses the programs need.
const SYMBOLS: &[&str] = &["vm_zone_stat", "vm_node_stat", "nr_threads", "memory_cgrp_subsys"];

/// Addresses of kernel symbols, as far as the kernel shows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Symbols {
    addresses: HashMap<&'static str, u64>,
}

impl Symbols {
    /// Reads a symbol table in the form of `/proc/kallsyms`.
    pub(crate) fn read(path: &Path) -> std::io::Result<Self> {
        let mut lines = BufReader::with_capacity(1 << 16, fs::File::open(path)?);
        let mut addresses = HashMap::new();
        let mut line = Vec::with_capacity(256);
        while addresses.len() < SYMBOLS.len() {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            // "ffffffff81000000 T name", with "\t[module]" behind a module's own.
            let Some(name) = line.get(19..).map(<[u8]>::trim_ascii_end) else { continue };
            let Some(symbol) = SYMBOLS.iter().find(|symbol| symbol.as_bytes() == name) else { continue };
            let address = std::str::from_utf8(&line[..16]).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
            addresses.insert(*symbol, address.unwrap_or(0));
        }
        Ok(Self { addresses })
    }

    /// The symbol's address; `None` where there is no such symbol or its address is hidden.
    pub(crate) fn address(&self, symbol: &str) -> Option<u64> {
        self.addresses.get(symbol).copied().filter(|address| *address != 0)
    }

    /// Whether any of them is listed: they are variables, which a kernel without `CONFIG_KALLSYMS_ALL` leaves out.
    pub(crate) fn listed(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// Why the address of a symbol is not known.
    pub(crate) fn why_unknown(&self, symbol: &str) -> String {
        if self.addresses.contains_key(symbol) {
            format!("/proc/kallsyms hides the address of {symbol}: CAP_SYSLOG, and kernel.kptr_restrict below 2")
        } else {
            format!("/proc/kallsyms does not list {symbol}: the kernel lacks CONFIG_KALLSYMS_ALL")
        }
    }

    /// Whether any of them was there and its address is shown.
    pub(crate) fn visible(&self) -> bool {
        self.addresses.values().any(|address| *address != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_read_exactly_and_zero_is_hidden() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("kallsyms");
        fs::write(
            &path,
            "ffffffff81000010 T vm_zone_stat_x\nffffffff82000010 B vm_zone_stat\nffffffff82000020 b nr_threads\t[mod]\n",
        )
        .expect("write");
        let symbols = Symbols::read(&path).expect("read");
        assert_eq!(symbols.address("vm_zone_stat"), Some(0xffff_ffff_8200_0010));
        assert_eq!(symbols.address("nr_threads"), None);
        assert!(symbols.visible() && symbols.listed());
        fs::write(&path, "0000000000000000 B vm_zone_stat\n").expect("write");
        let symbols = Symbols::read(&path).expect("read");
        assert_eq!((symbols.address("vm_zone_stat"), symbols.visible(), symbols.listed()), (None, false, true));
        let why = symbols.why_unknown("vm_zone_stat");
        assert!(why.contains("hides") && why.contains("kptr_restrict"), "{why}");
        fs::write(&path, "ffffffff81000010 T start_kernel\n").expect("write");
        let symbols = Symbols::read(&path).expect("read");
        assert!(!symbols.visible() && !symbols.listed());
        let why = symbols.why_unknown("vm_zone_stat");
        assert!(why.contains("CONFIG_KALLSYMS_ALL") && !why.contains("kptr_restrict"), "{why}");
    }
}
