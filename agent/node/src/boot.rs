//! Which boot this is: what was frozen before a restart of the machine no longer is.

use crate::{NodeError, file};
use std::path::Path;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's random identity of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Reads it.
    pub fn read() -> Result<Self, NodeError> {
        let path = Path::new(BOOT_ID);
        let text = file::read_all(path)?;
        Self::parse(&text).ok_or_else(|| NodeError::Malformed { path: path.to_owned(), what: "UUID" })
    }

    /// Its halves as they are written to shared memory, the low one first.
    pub fn words(self) -> (u64, u64) {
        let [low, high] = [0, 8].map(|start| {
            let mut half = [0; 8];
            half.copy_from_slice(&self.0[start..start + 8]);
            u64::from_le_bytes(half)
        });
        (low, high)
    }

    /// From the text form of a UUID: 32 hexadecimal digits, dashes anywhere between them.
    fn parse(text: &[u8]) -> Option<Self> {
        let mut digits = text.trim_ascii().iter().filter(|byte| **byte != b'-').map(|byte| hex(*byte));
        let mut id = [0; 16];
        for byte in &mut id {
            *byte = digits.next()?? << 4 | digits.next()??;
        }
        digits.next().is_none().then_some(Self(id))
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_boot_has_one_identity() {
        let id = BootId::read().expect("a running Linux has a boot id");
        assert_eq!(id, BootId::read().expect("and keeps it"));
        assert_ne!(id.0, [0; 16]);
    }

    #[test]
    fn a_uuid_is_parsed_whole_or_not_at_all() {
        let id = BootId::parse(b"0a1b2c3d-0000-4000-8000-00000000ffff\n").expect("a UUID");
        assert_eq!(id.0[..4], [0x0a, 0x1b, 0x2c, 0x3d]);
        assert_eq!(id.0[14..], [0xff, 0xff]);
        for text in ["", "0a1b", "0a1b2c3d-0000-4000-8000-00000000fffg", "0a1b2c3d-0000-4000-8000-00000000ffff0"] {
            assert_eq!(BootId::parse(text.as_bytes()), None, "{text}");
        }
    }
}
