//! What a machine measured that did not come to its end, by what it printed.
//!
//! The guest prints `MEASURED` with what is known before the first round, `TURN` before each and `PART` with what came of it.

use serde::Deserialize;

use super::measured::{BareKill, Failed, KILLED, Measured, Round};

/// How the kernel ends where its OOM killer finds nothing more to kill (mm/oom_kill.c).
const DEADLOCKED: &str = "Kernel panic - not syncing: System is deadlocked on memory";

/// Why a round failed in which the machine ended otherwise.
pub(super) const ENDED: &str = "the machine ended";

#[derive(Deserialize)]
struct Turn {
    rival: Option<String>,
    number: u32,
}

#[derive(Deserialize)]
struct Part {
    rounds: Vec<Round>,
    bare_kills: Vec<BareKill>,
    failed: Vec<Failed>,
}

/// All of it; nothing where the machine did not come to its first round. The round in which the kernel gave up is one that
/// the OOM killer won. A line into which the kernel wrote is left out: its round is played again.
pub(super) fn measured(printed: &str) -> Option<Measured> {
    let (mut measured, mut turn, mut kernel) = (None::<Measured>, None::<Turn>, String::new());
    for line in printed.lines() {
        if let Some(begun) = line.strip_prefix("MEASURED ") {
            measured = serde_json::from_str(begun).ok();
        } else if let Some(begun) = line.strip_prefix("TURN ") {
            (turn, kernel) = (serde_json::from_str(begun).ok(), String::new());
        } else if let Some(part) = line.strip_prefix("PART ") {
            turn = None;
            let (Some(measured), Ok(part)) = (&mut measured, serde_json::from_str::<Part>(part)) else { continue };
            measured.rounds.extend(part.rounds);
            measured.bare_kills.extend(part.bare_kills);
            measured.failed.extend(part.failed);
        } else if line.contains(KILLED) || line.contains(DEADLOCKED) {
            kernel.push_str(line);
            kernel.push('\n');
        }
    }
    let mut measured = measured?;
    match turn {
        Some(Turn { rival: Some(rival), number }) if kernel.contains(DEADLOCKED) => {
            measured.rounds.push(Round::of_panic(rival, number, measured.room_bytes, kernel));
        }
        Some(Turn { rival, number }) => {
            measured.failed.push(Failed { rival, number, has_begun: true, why: ENDED.into() });
        }
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
            // The kernel wrote into it.
            turn("earlyoom", 0) + "PART {\"rounds\":[[    9.2] oops\n",
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
        assert_eq!((found.rounds.len(), found.failed.len()), (1, all.failed.len() + 1));
        assert_eq!(found.failed.last().map(|one| &one.why[..]), Some("the machine ended"));
        assert!(measured("Booting\n").is_none());
        let (text, _) = text.split_once("TURN {\"rival\":\"earlyoom\"").expect("a second turn");
        let found = measured(text).expect("a round before the machine ended between two of them");
        assert_eq!((found.rounds.len(), found.failed.len()), (1, all.failed.len()));
    }
}
