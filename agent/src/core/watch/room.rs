//! Storage for workloads comes as they do, and always for more of them than there are: none is missing between a wake and a
//! kill.

use super::Watch;

/// There is room for so many workloads more than there are, at least.
const AHEAD: usize = 128;

/// Up to which slot storage is in memory.
#[derive(Debug, Default)]
pub(super) struct Room(usize);

impl Room {
    /// Up to which slot it is to be brought in, if there is too little ahead of `end`, where slots are used no more, and as
    /// far as there are any.
    fn grow(&mut self, end: usize, slots: usize) -> Option<usize> {
        (self.0 < slots.min(end + AHEAD)).then(|| {
            self.0 = slots.min(end + 2 * AHEAD);
            self.0
        })
    }
}

impl Watch {
    /// Brings storage in, if workloads have come.
    pub(super) fn make_room(&mut self) {
        let Self { room, workloads, engine, disk_victims, .. } = self;
        let table = &mut workloads.table;
        if let Some(slots) = room.grow(table.end(), table.slots()) {
            table.bring_in(slots);
            engine.bring_in(slots);
            if let Some(disk_victims) = disk_victims {
                disk_victims.bring_in(slots);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_ahead_of_the_last_slot_that_is_used() {
        let mut room = Room::default();
        let grown = [0, 0, 128, 129, 257, 258, 500, 600].map(|end| (end, room.grow(end, 600)));
        let expected = [
            (0, Some(256)),
            (0, None),
            (128, None),
            (129, Some(385)),
            (257, None),
            (258, Some(514)),
            (500, Some(600)),
            (600, None),
        ];
        assert_eq!(grown, expected);
    }
}
