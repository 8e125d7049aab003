//! What a virtual machine boots from: an initramfs, and where asked an ext4 root beside it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::kernels::Kernel;
use crate::run;

/// Modules that tests need, with their parameters, and those of a root on a disk.
const MODULES: [(&str, &str); 3] = [("configfs", ""), ("null_blk", "nr_devices=0"), ("zram", "num_devices=1")];
/// The kernel finds checksums by the name of the algorithm, which `depends=` does not name.
const ROOT_MODULES: [(&str, &str); 4] = [("virtio_pci", ""), ("virtio_blk", ""), ("crc32c_generic", ""), ("ext4", "")];
const NETWORK_MODULES: [(&str, &str); 2] = [("virtio_pci", ""), ("virtio_net", "")];
/// What is free on the ext4 root beside its files.
const ROOT_MIB: u64 = 256;

/// Files of a machine, by their path in it.
pub(crate) struct Files {
    files: Vec<(String, u32, Vec<u8>)>,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self { files: Vec::new() }
    }

    /// Adds a program or file of the host.
    pub(crate) fn host(&mut self, name: &str, path: &Path) -> anyhow::Result<()> {
        let data = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.files.push((name.trim_start_matches('/').to_owned(), 0o100_755, data));
        Ok(())
    }

    /// Adds a file with this content.
    pub(crate) fn text(&mut self, name: &str, text: String) {
        self.files.push((name.to_owned(), 0o100_644, text.into_bytes()));
    }

    /// Adds the kernel's modules, in the order in which they are loaded, and their list.
    pub(crate) fn modules(&mut self, kernel: &Kernel, disk: bool, network: bool) -> anyhow::Result<()> {
        let all = find_modules(&kernel.unpacked);
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        let wanted =
            ROOT_MODULES.iter().filter(|_| disk).chain(NETWORK_MODULES.iter().filter(|_| network)).chain(&MODULES);
        for (name, parameters) in wanted {
            add_module(&all, name, parameters, &mut seen, &mut order)?;
        }
        let mut list = String::new();
        for (name, parameters, data) in order {
            list.push_str(format!("/modules/{name}.ko {parameters}").trim_end());
            list.push('\n');
            self.files.push((format!("modules/{name}.ko"), 0o100_644, data));
        }
        self.text("modules/list", list);
        Ok(())
    }

    /// The initramfs.
    pub(crate) fn archive(&self) -> Vec<u8> {
        let mut cpio = Cpio::default();
        let folders = self.files.iter().flat_map(|(name, ..)| {
            let parts: Vec<&str> = name.split('/').collect();
            (1..parts.len()).map(move |end| parts[..end].join("/"))
        });
        let standing = ["bin", "dev", "new", "out", "proc", "run", "sys", "tmp"].map(str::to_owned);
        // The kernel makes the top folder writable for all users.
        cpio.entry(".", 0o040_755, &[]);
        for folder in folders.chain(standing).collect::<BTreeSet<String>>() {
            cpio.entry(&folder, 0o040_755, &[]);
        }
        for (name, mode, data) in &self.files {
            cpio.entry(name, *mode, data);
        }
        cpio.end()
    }

    /// An ext4 file system with all of it, made without mounting anything.
    pub(crate) fn ext4(&self, place: &Path) -> anyhow::Result<PathBuf> {
        use std::os::unix::fs::PermissionsExt as _;
        let tree = place.join("root");
        for folder in ["bin", "dev", "out", "proc", "run", "sys", "tmp"] {
            fs::create_dir_all(tree.join(folder))?;
        }
        for (name, mode, data) in &self.files {
            let path = tree.join(name);
            fs::create_dir_all(path.parent().context("a file without a folder")?)?;
            fs::write(&path, data)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o777))?;
        }
        let used: usize = self.files.iter().map(|(_, _, data)| data.len()).sum();
        let image = place.join("root.ext4");
        let mib = used as u64 / (1 << 20) + ROOT_MIB;
        run::text(Command::new(MKE2FS).args(["-q", "-t", "ext4", "-d"]).arg(&tree).arg(&image).arg(format!("{mib}M")))?;
        fs::remove_dir_all(&tree)?;
        Ok(image)
    }
}

/// Where a user's PATH may not have it.
pub(crate) const MKE2FS: &str = "/sbin/mke2fs";

/// Every module file of an unpacked kernel.
fn find_modules(unpacked: &Path) -> Vec<PathBuf> {
    let mut below = vec![unpacked.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = below.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                below.push(path);
            } else if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".ko")) {
                found.push(path);
            }
        }
    }
    found
}

/// Puts a module behind all that it depends on. One that is no module is part of the kernel itself.
fn add_module(
    all: &[PathBuf],
    name: &str,
    parameters: &str,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<(String, String, Vec<u8>)>,
) -> anyhow::Result<()> {
    let plain = name.replace('-', "_");
    let is = |path: &&PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
        file.split_once(".ko").is_some_and(|(stem, _)| stem == plain)
    };
    let Some(path) = all.iter().find(is) else { return Ok(()) };
    if !seen.insert(plain.clone()) {
        return Ok(());
    }
    let data = if path.extension().is_some_and(|extension| extension == "xz") {
        let output = Command::new("xz").arg("-dc").arg(path).output().context("cannot start xz: install xz-utils")?;
        ensure!(output.status.success(), "xz cannot unpack {}", path.display());
        output.stdout
    } else {
        fs::read(path)?
    };
    for dependency in dependencies(&data) {
        add_module(all, &dependency, "", seen, order)?;
    }
    order.push((plain, parameters.to_owned(), data));
    Ok(())
}

/// What a module depends on: `depends=a,b` among the strings of its `.modinfo`.
fn dependencies(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(start) = module.windows(key.len()).position(|window| window == key) else { return Vec::new() };
    let rest = &module[start + key.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&rest[..end]).into_owned();
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A cpio archive in the "newc" form, which the kernel unpacks as its first root.
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        use std::io::Write;
        self.entries += 1;
        let (inode, size, length) = (self.entries, data.len(), name.len() + 1);
        write!(
            self.bytes,
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}{0:08x}{0:08x}{0:08x}{0:08x}{length:08x}{0:08x}",
            0, 1
        )
        .expect("a Vec takes all");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// Takes files apart that PID 1 sent: the length of a name, the name, the length of the content, the content, each
/// length as eight bytes, little endian; a name of no bytes ends it.
pub(crate) fn sent(bytes: &[u8]) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut rest = bytes;
    let mut take = |length: usize| -> anyhow::Result<&[u8]> {
        ensure!(rest.len() >= length, "the machine ended while it sent its files");
        let (taken, left) = rest.split_at(length);
        rest = left;
        Ok(taken)
    };
    let mut files = Vec::new();
    loop {
        let mut number = || -> anyhow::Result<usize> {
            let bytes: [u8; 8] = take(8)?.try_into()?;
            Ok(usize::try_from(u64::from_le_bytes(bytes))?)
        };
        let length = number()?;
        if length == 0 {
            return Ok(files);
        }
        let name = String::from_utf8(take(length)?.to_vec())?;
        ensure!(!name.contains('/') && name != "." && name != "..", "the machine sent a file called {name:?}");
        let mut number = || -> anyhow::Result<usize> {
            let bytes: [u8; 8] = take(8)?.try_into()?;
            Ok(usize::try_from(u64::from_le_bytes(bytes))?)
        };
        let length = number()?;
        files.push((name, take(length)?.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_header_of_110_bytes_then_name_and_data_each_on_four_bytes() {
        let mut cpio = Cpio::default();
        cpio.entry("ab", 0o100_644, b"12345");
        assert_eq!(&cpio.bytes[..14], b"07070100000001");
        assert_eq!(&cpio.bytes[110..116], b"ab\0\0\0\0".get(..6).expect("six bytes"));
        assert_eq!(cpio.bytes.len(), 116 + 8);
        assert_eq!(&cpio.bytes[116..121], b"12345");
    }

    #[test]
    fn dependencies_are_read_from_the_module_itself() {
        assert_eq!(dependencies(b"x\0license=GPL\0depends=a,b-c\0retpoline=Y\0"), ["a", "b-c"]);
        assert!(dependencies(b"x\0depends=\0").is_empty());
        assert!(dependencies(b"").is_empty());
    }

    #[test]
    fn sent_files_are_taken_apart_and_a_torn_end_is_seen() {
        let mut bytes = Vec::new();
        for part in [&b"a"[..], b"first", b"b", b""] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        assert!(sent(&bytes).is_err());
        bytes.extend_from_slice(&[0; 8]);
        let files = sent(&bytes).expect("whole");
        assert_eq!(files, [("a".to_owned(), b"first".to_vec()), ("b".to_owned(), Vec::new())]);
    }
}
