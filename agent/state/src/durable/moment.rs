//! Points in time that keep their meaning over a restart, and as much of it as there is over a reboot.

use core::time::Duration;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point in time, by the clock of the wall and, within the boot it was taken in, by the time since that boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Milliseconds since 1970 (`CLOCK_REALTIME`), for what is reported. It can be set to anything at any time.
    pub wall_ms: u64,
    /// Milliseconds since this boot (`CLOCK_BOOTTIME`, which counts while the machine is suspended, and which cannot
    /// be set); absent for a point of an earlier boot.
    #[serde(default)]
    pub boot_ms: Option<u64>,
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Self { wall_ms: read(ClockId::Realtime), boot_ms: Some(read(ClockId::Boottime)) }
    }

    /// How long ago it was. Never negative.
    ///
    /// Within a boot a clock that is set changes nothing. For a point of an earlier boot it is what the clock of the
    /// wall says, and at least as long as this boot lasts: a clock that was set back makes it shorter down to that, one
    /// that was set forward makes it longer by as much.
    pub fn age(self, now: Self) -> Duration {
        let ms = match (self.boot_ms, now.boot_ms) {
            (Some(then), Some(now)) => now.saturating_sub(then),
            (_, uptime) => now.wall_ms.saturating_sub(self.wall_ms).max(uptime.unwrap_or(0)),
        };
        Duration::from_millis(ms)
    }

    /// The same, seen from a later boot.
    #[must_use]
    pub(super) const fn of_earlier_boot(self) -> Self {
        Self { boot_ms: None, ..self }
    }
}

/// In milliseconds; a clock of the wall before 1970 is at zero.
fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1000).saturating_add(part(now.tv_nsec) / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    #[test]
    fn ages_hold_when_the_clock_is_set_an_hour_either_way() {
        let now = |wall_ms, boot_ms| Moment { wall_ms, boot_ms: Some(boot_ms) };
        let then = now(10 * HOUR, 5_000);
        for (at, same_boot, later_boot) in [
            // Two seconds later, by a clock that is right, an hour ahead, an hour behind.
            (now(10 * HOUR + 2_000, 7_000), 2_000, 7_000),
            (now(11 * HOUR + 2_000, 7_000), 2_000, HOUR + 2_000),
            (now(9 * HOUR + 2_000, 7_000), 2_000, 7_000),
            // What a broken file may hold.
            (now(0, 0), 0, 0),
            (now(u64::MAX, u64::MAX), u64::MAX - 5_000, u64::MAX),
        ] {
            assert_eq!(then.age(at), Duration::from_millis(same_boot), "{at:?}");
            assert_eq!(then.of_earlier_boot().age(at), Duration::from_millis(later_boot), "{at:?}");
        }
    }

    #[test]
    fn both_clocks_are_read() {
        let (earlier, later) = (Moment::now(), Moment::now());
        assert!(earlier.wall_ms > 0 && earlier.boot_ms.is_some() && earlier.boot_ms <= later.boot_ms);
    }
}
