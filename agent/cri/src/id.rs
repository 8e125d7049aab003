//! What the runtime knows containers, sandboxes and images by.

use core::fmt;
use serde::{Deserialize, Serialize};

/// A text that cannot be an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an id of 1 to {most} bytes, found one of {0}", most = MOST)]
pub struct IdError(pub usize);

/// The longest id, in bytes. containerd, CRI-O and cri-dockerd use 64 hexadecimal digits, for images with `sha256:`
/// before them.
const MOST: usize = 256;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Take it from a list. Where it is made from other text, that has to be the whole id: containerd accepts the
        /// beginning of an id for the id, and would stop or remove what was not meant.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// The id as the runtime writes it.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                if (1..=MOST).contains(&text.len()) { Ok(Self(text)) } else { Err(IdError(text.len())) }
            }
        }

        impl fmt::Display for $name {
            /// Escaped, as it may hold anything.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0.escape_debug())
            }
        }
    };
}

id!(
    /// A container. The same text is in its cgroup's name and in the API's `containerID`.
    ContainerId
);
id!(
    /// A pod sandbox.
    SandboxId
);
id!(
    /// An image: mostly the digest of its configuration. All its tags have the same.
    ImageId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_neither_empty_nor_long() {
        for (length, fits) in [(0, false), (1, true), (64, true), (256, true), (257, false)] {
            let made = ContainerId::try_from("a".repeat(length));
            assert_eq!(made.is_ok(), fits, "{length}");
            let read: Result<ImageId, _> = serde_json::from_str(&format!("{:?}", "a".repeat(length)));
            assert_eq!(read.is_ok(), fits, "{length}");
        }
        let odd = ContainerId::try_from("a\u{1b}[2J".to_owned()).expect("it has a length that fits");
        assert_eq!((odd.as_str(), odd.to_string().as_str()), ("a\u{1b}[2J", "a\\u{1b}[2J"));
    }
}
