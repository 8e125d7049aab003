//! What a machine measured that did not come to its end, by what it printed.
//!
//! The guest prints `MEASURED` with what is known before the first round, `TURN` before each and `PART` with what came of it.

use serde::Deserialize;

use super::measured::{BareKill, Failed, KILLED, Measured, Round};

/// How the kernel ends where its OOM killer finds nothing more to kill (mm/oom_kill.c).
const DEADLOCKED: &str = "Kernel panic - not syncing: System is deadlocked on memory";

/// Why a round failed in which the machine ended otherwise, and one of which the kernel wrote into a line.
pub(super) const ENDED: &str = "the machine ended";
const CUT: &str = "its line was cut";

#[derive(Deserialize)]
struct Turn {
    rival: Option<String>,
    number: u32,
}

impl Turn {
    fn failed(self, why: &str) -> Failed {
        Failed { rival: self.rival, number: self.number, has_begun: true, why: why.into() }
    }
}

#[derive(Deserialize)]
struct Part {
    rounds: Vec<Round>,
    bare_kills: Vec<BareKill>,
    failed: Vec<Failed>,
}

/// All of it; nothing where the machine did not come to its first round. The round in which the kernel gave up is one that
/// the OOM killer won. A round is one that failed where the kernel wrote into the line with what came of it: that is not
/// known, whatever it was. Only where its `TURN` cannot be read either, there is no name for it, and it is as if it had not been.
pub(super) fn measured(printed: &str) -> Option<Measured> {
    let (mut measured, mut turn, mut kernel) = (None::<Measured>, None::<Turn>, String::new());
    let mut cut = Vec::new();
    for line in printed.lines() {
        if let Some(begun) = line.strip_prefix("MEASURED ") {
            measured = serde_json::from_str(begun).ok();
        } else if let Some(begun) = line.strip_prefix("TURN ") {
            // One that is still open has no `PART`.
            cut.extend(turn.take());
            (turn, kernel) = (serde_json::from_str(begun).ok(), String::new());
        } else if let Some(part) = line.strip_prefix("PART ") {
            let Ok(part) = serde_json::from_str::<Part>(part) else {
                cut.extend(turn.take());
                continue;
            };
            turn = None;
            let Some(measured) = &mut measured else { continue };
            measured.rounds.extend(part.rounds);
            measured.bare_kills.extend(part.bare_kills);
            measured.failed.extend(part.failed);
        } else if line.contains(KILLED) || line.contains(DEADLOCKED) {
            kernel.push_str(line);
            kernel.push('\n');
        }
    }
    let mut measured = measured?;
    measured.failed.extend(cut.into_iter().map(|turn| turn.failed(CUT)));
    match turn {
        Some(Turn { rival: Some(rival), number }) if kernel.contains(DEADLOCKED) => {
            measured.rounds.push(Round::of_panic(rival, number, measured.room_bytes, kernel));
        }
        Some(turn) => measured.failed.push(turn.failed(ENDED)),
        // It ended between two rounds.
        None => {}
    }
    Some(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample;

    #[test]
    fn the_round_in_which_the_kernel_gave_up_is_lost_and_those_before_are_kept() {
        let all = sample().kept.measured;
        let mut begun = all.clone();
        begun.rounds.clear();
        begun.bare_kills.clear();
        let part = |rounds: &[Round]| {
            format!("PART {}\n", serde_json::json!({"rounds": rounds, "bare_kills": [], "failed": []}))
        };
        let turn = |rival: &str, number| format!("TURN {{\"rival\":\"{rival}\",\"number\":{number}}}\n");
        let killed = "[    9.1] Out of memory: Killed process 7 (hog) total-vm:1kB\n";
        let text = [
            format!("BIOS PLAN 3\nMEASURED {}\n", serde_json::to_string(&begun).expect("values")),
            turn("oom-killer", 0) + killed + &part(&all.rounds[..1]) + "ROUND 1 of 3\n",
            // The kernel wrote into what came of it, or into its very beginning.
            turn("earlyoom", 0) + "PART {\"rounds\":[[    9.2] oops\n",
            turn("plimsoll-ebpf", 2) + "PA[    9.3] oops\n",
            // What came of it is there, so that nothing is lost.
            "TURN {\"ri[    9.3] oops\n".to_owned() + &part(&[]),
            turn("nohang", 4) + killed + killed,
        ];
        let text = text.concat();
        let found = measured(&format!("{text}[   9.4] {DEADLOCKED}\n")).expect("a round");
        assert_eq!(found.rounds.len(), 2);
        let last = &found.rounds[1];
        assert!(last.panicked && last.is_lost() && last.has_wrong_victim() && !last.has_acted());
        assert_eq!((&last.rival[..], last.number, last.oom_kills), ("nohang", 4, 2));
        assert_eq!(last.crossed_to_memory_back_ns, None);
        // Whatever else ended the machine is no result.
        let found = measured(&text).expect("a round");
        assert_eq!(found.rounds.len(), 1);
        let failed: Vec<_> = found.failed[all.failed.len()..]
            .iter()
            .map(|one| (one.rival.as_deref().unwrap_or_default(), one.number, one.has_begun, &one.why[..]))
            .collect();
        let expected = [
            ("earlyoom", 0, true, "its line was cut"),
            ("plimsoll-ebpf", 2, true, "its line was cut"),
            ("nohang", 4, true, "the machine ended"),
        ];
        assert_eq!(failed, expected);
        assert!(measured("Booting\n").is_none());
        let (text, _) = text.split_once("TURN {\"rival\":\"earlyoom\"").expect("a second turn");
        let found = measured(text).expect("a round before the machine ended between two of them");
        assert_eq!((found.rounds.len(), found.failed.len()), (1, all.failed.len()));
    }
}
