//! How large the agent is.

use std::fs;
use std::path::Path;

use anyhow::Context;
use object::{Object as _, ObjectSection as _};
use serde::{Deserialize, Serialize};

/// How many of the largest sections are kept.
const LARGEST: usize = 6;
/// The tables of symbols' names, which a stripped program does not have.
const SYMBOLS: [&str; 2] = [".symtab", ".strtab"];

/// A program, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Binary {
    /// As it is shipped, with what debuggers need.
    pub(super) file_bytes: u64,
    /// Without that and without symbols.
    pub(super) stripped_bytes: u64,
    /// The largest sections of what remains, the largest first.
    pub(super) sections: Vec<(String, u64)>,
}

impl Binary {
    /// Of this file.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        let data = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = object::File::parse(&data[..]).with_context(|| format!("{} is no program", path.display()))?;
        let sections = file.sections().map(|section| {
            // What a section without content in the file has, as .bss, takes nothing there.
            let bytes = section.file_range().map_or(0, |(_, bytes)| bytes);
            Ok((section.name()?.to_owned(), bytes))
        });
        Ok(Self::from(data.len() as u64, sections.collect::<anyhow::Result<_>>()?))
    }

    fn from(file_bytes: u64, mut sections: Vec<(String, u64)>) -> Self {
        let is_stripped = |name: &str| name.starts_with(".debug_") || SYMBOLS.contains(&name);
        let gone: u64 = sections.iter().filter(|(name, _)| is_stripped(name)).map(|(_, bytes)| bytes).sum();
        sections.retain(|(name, _)| !is_stripped(name));
        sections.sort_by(|(_, one), (_, other)| other.cmp(one));
        sections.truncate(LARGEST);
        Self { file_bytes, stripped_bytes: file_bytes - gone, sections }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_debuggers_need_and_symbols_are_no_part_of_a_stripped_program() {
        let sections =
            [(".text", 50), (".symtab", 7), (".debug_line", 20), (".strtab", 3), (".rodata", 60), (".bss", 0)];
        let sections = sections.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec();
        let found = Binary::from(150, sections);
        assert_eq!((found.file_bytes, found.stripped_bytes), (150, 120));
        assert_eq!(found.sections[..2], [(".rodata".to_owned(), 60), (".text".to_owned(), 50)]);
    }
}
