//! Which programs this kernel's verifier refuses. They are loaded for that, and attached to nothing.

use aya::{Btf, EbpfLoader};

use super::load::{OBJECT, load, set_layout};
use crate::{hooks, layout::Layout, probe::with_sources};

/// Every program that is refused, with why; an error where none can be loaded at all.
pub(crate) fn refusals(layout: &Layout) -> Result<Vec<(&'static str, String)>, String> {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    set_layout(&mut loader, layout);
    let mut ebpf = loader.load(OBJECT).map_err(|error| with_sources(&error))?;
    let types = Btf::from_sys_fs().map_err(|error| with_sources(&error))?;
    let refused =
        |attachment: &hooks::Attachment| load(&mut ebpf, attachment, &types).err().map(|why| (attachment.program, why));
    Ok(hooks::attachments().filter_map(refused).collect())
}
