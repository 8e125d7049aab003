//! The keys that ranked a workload, in words: one form for the log, `explain` and `replay`, over cgroups and pods,
//! whatever the eviction policy.

use crate::kubelet::{Amount, QosClass};
use core::fmt;
use plimsoll_units::{Bytes, counted};

/// An amount of bytes, or of something that is counted.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) amount: Amount,
    pub(crate) is_bytes: bool,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.amount.rounded_up();
        match u64::try_from(whole) {
            Ok(bytes) if self.is_bytes => write!(f, "{}", Bytes(bytes)),
            _ => write!(f, "{whole}"),
        }
    }
}

/// What a workload, or its owner, requests of what is short.
pub(crate) enum Promise {
    /// One that the usage can be held against.
    Of {
        /// What it is called.
        name: &'static str,
        /// By how much the usage is over it.
        over: Measured,
        /// Whether it is at all.
        exceeds: bool,
    },
    /// None, since inodes cannot be requested; the kubelet takes the bytes of requested storage from their number all the
    /// same.
    InodesLessBytes(Measured),
}

/// What ranked a workload. What an eviction policy does not know of is absent.
pub(crate) struct Reason {
    /// What is known of it says what it uses of what is short.
    pub(crate) is_measured: bool,
    /// What it uses.
    pub(crate) usage: Option<Measured>,
    /// What it requests, or its owner.
    pub(crate) promise: Option<Promise>,
    pub(crate) priority: i32,
    pub(crate) qos: Option<QosClass>,
    /// By how much it grew since memory was plentiful.
    pub(crate) growth: Option<Bytes>,
    /// By how much all workloads of its owner did, where there may be others.
    pub(crate) owner_growth: Option<Bytes>,
    /// How often it returned at once after it was evicted.
    pub(crate) returns: u32,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_measured, usage, promise, priority, qos, growth, owner_growth, returns } = self;
        if *is_measured {
            if let Some(usage) = usage {
                write!(f, "uses {usage}, ")?;
            }
            match promise {
                Some(Promise::Of { name, over, exceeds: true }) => write!(f, "{over} over its {name}, ")?,
                Some(Promise::Of { name, over: _, exceeds: false }) => write!(f, "within its {name}, ")?,
                Some(Promise::InodesLessBytes(less)) => {
                    let less = counted(less.amount.rounded_up(), "inode", "inodes");
                    write!(f, "{less} less the bytes of storage that it requests, ")?;
                }
                None => {}
            }
        } else {
            f.write_str("usage unknown, ")?;
        }
        write!(f, "priority {priority}")?;
        if let Some(qos) = qos {
            write!(f, ", {}", qos.name())?;
        }
        if let Some(growth) = growth {
            write!(f, ", grew {growth}")?;
        }
        if let Some(growth) = owner_growth {
            write!(f, ", its owner {growth}")?;
        }
        if *returns > 0 {
            write!(f, ", returned at once {} in a row", counted(*returns, "time", "times"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_singular_or_plural() {
        for (count, text) in [
            (1, "1 inode less the bytes of storage that it requests, priority 0, returned at once 1 time in a row"),
            (2, "2 inodes less the bytes of storage that it requests, priority 0, returned at once 2 times in a row"),
        ] {
            let less = Measured { amount: Amount::counted(count.into()), is_bytes: false };
            let reason = Reason {
                is_measured: true,
                usage: None,
                promise: Some(Promise::InodesLessBytes(less)),
                priority: 0,
                qos: None,
                growth: None,
                owner_growth: None,
                returns: count,
            };
            assert_eq!(reason.to_string(), text);
        }
    }
}
