//! One file's bytes: a header of 48 bytes, then as many of body as it says. What follows is of an earlier, longer one.
//!
//! | bytes | what, little-endian |
//! |---|---|
//! | 0..8 | `PLIMDURA` |
//! | 8..12 | the version that wrote it |
//! | 12..16 | the oldest version that may read it |
//! | 16..32 | the boot that it was written in |
//! | 32..40 | sequence number: the highest is the newest |
//! | 40..44 | length of the body in bytes |
//! | 44..48 | CRC-32 of the bytes before, and of the body |
//!
//! This header is the same in all versions. What an older version can ignore without harm (a field, a kind of entry) is
//! added under a new version and the same oldest reader; anything else raises both.

use plimsoll_node::boot::BootId;

/// What this version writes. 2 added numbers and figures of evictions, those that were given up, conditions that are crossed,
/// and images.
const VERSION: u32 = 2;
/// What reads that.
const OLDEST_READER: u32 = 1;
const MAGIC: [u8; 8] = *b"PLIMDURA";
/// Bytes of a header.
pub(super) const HEADER: usize = 48;
const CHECKED: usize = HEADER - 4;

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Image<'a> {
    pub(super) boot: BootId,
    pub(super) sequence: u64,
    /// The version that wrote it, if that is newer than this one.
    pub(super) newer: Option<u32>,
    pub(super) body: &'a [u8],
}

/// Why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotRead {
    #[error("it does not begin as such a file does")]
    Foreign,
    #[error("it is cut short or damaged, or its write did not finish")]
    Damaged,
    #[error("it is of version {version}, and this program reads up to version {VERSION}")]
    Newer { version: u32, sequence: u64 },
}

/// An image of this body.
pub(super) fn encode<'a>(boot: BootId, sequence: u64, body: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    encode_as([VERSION, OLDEST_READER], boot, sequence, body)
}

/// The same, as another version would write it.
pub(super) fn encode_as<'a>(
    versions: [u32; 2],
    boot: BootId,
    sequence: u64,
    body: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut image = vec![0; HEADER];
    body.for_each(|part| image.extend_from_slice(part));
    // A body is bounded far below this.
    let length = u32::try_from(image.len() - HEADER).unwrap_or(u32::MAX);
    image[..8].copy_from_slice(&MAGIC);
    image[8..12].copy_from_slice(&versions[0].to_le_bytes());
    image[12..16].copy_from_slice(&versions[1].to_le_bytes());
    image[16..32].copy_from_slice(&boot.0);
    image[32..40].copy_from_slice(&sequence.to_le_bytes());
    image[40..CHECKED].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(&image);
    image[CHECKED..HEADER].copy_from_slice(&checksum.to_le_bytes());
    image
}

/// Reads an image. `None`: nothing was written to it yet.
pub(super) fn decode(bytes: &[u8]) -> Result<Option<Image<'_>>, NotRead> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let header = bytes.get(..HEADER).ok_or(NotRead::Damaged)?;
    if header[..8] != MAGIC {
        return Err(NotRead::Foreign);
    }
    let length = usize::try_from(word(header, 40)).map_err(|_| NotRead::Damaged)?;
    let image = bytes.get(..HEADER.saturating_add(length)).ok_or(NotRead::Damaged)?;
    if checksum(image) != word(header, CHECKED) {
        return Err(NotRead::Damaged);
    }
    let (version, oldest_reader) = (word(header, 8), word(header, 12));
    let sequence = u64::from(word(header, 36)) << 32 | u64::from(word(header, 32));
    if sequence == u64::MAX {
        // Nothing could follow it.
        return Err(NotRead::Damaged);
    }
    if oldest_reader > VERSION {
        return Err(NotRead::Newer { version, sequence });
    }
    let mut boot = BootId([0; 16]);
    boot.0.copy_from_slice(&header[16..32]);
    Ok(Some(Image { boot, sequence, newer: (version > VERSION).then_some(version), body: &image[HEADER..] }))
}

/// The version that wrote an image which can be read.
pub(super) fn version(bytes: &[u8]) -> u32 {
    word(bytes, 8)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn checksum(image: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&image[..CHECKED]);
    hasher.update(&image[HEADER..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOOT: BootId = BootId([3; 16]);

    fn image(sequence: u64, body: &[u8]) -> Vec<u8> {
        encode(BOOT, sequence, std::iter::once(body))
    }

    #[test]
    fn versions_say_which_readers_may_read() {
        let body = || std::iter::once(&b"{}"[..]);
        let newer = encode_as([7, 1], BOOT, 1 << 40, body());
        let read = decode(&newer).expect("it may be read").expect("it was written");
        assert_eq!((read.newer, read.sequence, read.body), (Some(7), 1 << 40, &b"{}"[..]));
        assert_eq!(decode(&encode_as([7, 3], BOOT, 1, body())), Err(NotRead::Newer { version: 7, sequence: 1 }));
        assert_eq!(decode(&image(u64::MAX, b"")), Err(NotRead::Damaged));
        assert_eq!(decode(&[0; 100]), Ok(None));
        assert_eq!(decode(b"short"), Err(NotRead::Damaged));
        assert_eq!(decode(&[b'x'; HEADER]), Err(NotRead::Foreign));
    }

    #[test]
    fn a_length_that_is_not_there_is_damage() {
        let mut long = image(1, b"body");
        long[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&long), Err(NotRead::Damaged));
    }

    proptest! {
        #[test]
        fn what_follows_the_body_does_not_matter(
            sequence in 0..u64::MAX,
            body in proptest::collection::vec(any::<u8>(), 0..200),
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let bytes = [image(sequence, &body), rest].concat();
            prop_assert_eq!(decode(&bytes), Ok(Some(Image { boot: BOOT, sequence, newer: None, body: &body })));
        }

        /// No bit can flip, and no byte be missing, without notice.
        #[test]
        fn damage_is_noticed(body in proptest::collection::vec(any::<u8>(), 0..200), at: usize, bit in 0..8_u32) {
            let whole = image(5, &body);
            let at = at % whole.len();
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            prop_assert!(decode(&flipped).is_err());
            prop_assert!(at == 0 || decode(&whole[..at]).is_err());
        }

        #[test]
        fn garbage_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), with_magic: bool) {
            if with_magic && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&MAGIC);
            }
            prop_assert!(!matches!(decode(&bytes), Ok(Some(_))));
        }
    }
}
