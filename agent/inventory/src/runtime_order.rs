//! What the core has the container runtime do with pods that run, by another process: raise a container's memory.high, and
//! stop a pod. Numbers alone. What comes of them is seen in the kernel, and nothing else is believed.

use plimsoll_policy::Uid;
use plimsoll_units::{Bytes, MonotonicNs};
use serde::{Deserialize, Serialize};

/// A container's id in the runtime: the 64 hexadecimal digits in the name of its cgroup.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContainerNumber([u64; 4]);

impl ContainerNumber {
    /// Of an id; `None` for what is not 64 lower-case hexadecimal digits.
    pub fn of(id: &[u8]) -> Option<Self> {
        let mut words = [0; 4];
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if id.len() != 64 || !id.iter().all(is_digit) {
            return None;
        }
        for (word, digits) in words.iter_mut().zip(id.chunks(16)) {
            *word = u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(words))
    }
}

impl core::fmt::Display for ContainerNumber {
    /// As the runtime writes it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|word| write!(f, "{word:016x}"))
    }
}

impl core::fmt::Debug for ContainerNumber {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

/// An order to raise a container's memory.high. It has no result: the kernel says what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelaxOrder {
    /// The container.
    pub container: ContainerNumber,
    /// What its memory.high is to be.
    pub high: Bytes,
    /// It is not begun from then on, on the monotonic clock.
    pub until: MonotonicNs,
}

/// An order to stop a pod in order: its containers, with a grace, and then its sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOrder {
    /// The pod.
    pub uid: Uid,
    /// How much time its containers have, in seconds.
    pub grace_seconds: u32,
    /// It is not begun from then on, on the monotonic clock.
    pub until: MonotonicNs,
}

/// What came of an order to stop a pod. That the pod has ended is what the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopResult {
    /// The pod.
    pub uid: Uid,
    /// The runtime answers, knows the pod, and was sent a call for each of its containers. Else nothing was begun.
    pub is_begun: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_s_number_is_its_whole_id_and_nothing_else() {
        let id = "0123456789abcdef".repeat(3) + "fedcba9876543210";
        let number = ContainerNumber::of(id.as_bytes()).expect("an id");
        assert_eq!(number.to_string(), id);
        // The beginning of an id would name another container.
        let others = [&id[..63], &format!("{id}0"), &id.to_uppercase(), &format!("+{}", &id[1..]), ""];
        assert_eq!(others.map(|other| ContainerNumber::of(other.as_bytes())), [None; 5]);
    }
}
