//! A container that is throttled, looked at over time.

use super::*;

const ID: CgroupId = CgroupId(7);
const PAGE: u64 = 4096;

fn at(ms: u64) -> MonotonicNs {
    MonotonicNs(0).after(Duration::from_millis(ms))
}

fn reliefs(mode: ReliefMode) -> Reliefs {
    Reliefs::new(mode, PAGE)
}

/// With this memory.high, of a limit of 64 MiB.
fn high(mib: u64) -> Throttled {
    Throttled { high: Some(Bytes::mib(mib)), limit: Some(Bytes::mib(64)) }
}

#[test]
fn a_limit_is_raised_once_and_the_kernel_says_when_it_was() {
    let mut reliefs = reliefs(ReliefMode::Relax);
    let mut look = |ms, is| reliefs.look(ID, is, true, at(ms));
    assert_eq!(look(0, high(16)), Some(Relief::Raise(Bytes::mib(16), Bytes::mib(64))));
    assert_eq!([look(500, high(16)), look(9_999, high(16))], [None, None], "it is on its way");
    assert_eq!(look(9_999, high(64)), Some(Relief::Raised(Bytes::mib(64), Duration::from_millis(9_999))));
    assert_eq!([look(10_500, high(64)), look(60_000, high(64))], [None, None], "nothing is evicted");
}

#[test]
fn without_a_mode_a_limit_or_a_memory_high_nothing_is_done() {
    let none = [Throttled { limit: None, ..high(16) }, Throttled { high: None, ..high(16) }];
    for (mode, is) in [(ReliefMode::Report, high(16)), (ReliefMode::Evict, none[0]), (ReliefMode::Evict, none[1])] {
        let mut reliefs = reliefs(mode);
        for second in 0..60 {
            assert_eq!(reliefs.look(ID, is, true, at(second * 1000)), None, "{mode:?} {is:?}");
        }
    }
}

#[test]
fn nothing_is_raised_while_there_is_no_room_for_it() {
    let mut reliefs = reliefs(ReliefMode::Relax);
    assert_eq!(reliefs.look(ID, high(16), false, at(0)), None);
    assert!(matches!(reliefs.look(ID, high(16), true, at(500)), Some(Relief::Raise(..))));
}

#[test]
fn what_is_not_carried_out_is_ordered_again_with_pauses_and_never_leads_to_an_eviction() {
    let mut reliefs = reliefs(ReliefMode::Evict);
    let mut raises = Vec::new();
    for second in 0..1000 {
        match reliefs.look(ID, high(16), true, at(second * 1000)) {
            Some(Relief::Raise(..)) => raises.push(second),
            Some(Relief::Evict(_) | Relief::Raised(..)) => panic!("it was not raised"),
            Some(Relief::NotRaised) | None => {}
        }
    }
    assert_eq!(raises, [0, 40, 110, 240, 490, 800]);
}

#[test]
fn a_pod_is_evicted_where_a_container_is_throttled_for_long_at_a_limit_that_was_raised() {
    let mut reliefs = reliefs(ReliefMode::Evict);
    let mut look = |ms, is| reliefs.look(ID, is, true, at(ms));
    // By half, so that it is throttled once more before it is at its limit.
    assert_eq!(look(0, high(16)), Some(Relief::Raise(Bytes::mib(16), Bytes::mib(40))));
    assert!(matches!(look(3_000, high(40)), Some(Relief::Raised(..))));
    assert_eq!(look(12_999, high(40)), None, "since it was raised");
    assert_eq!(look(13_000, high(40)), Some(Relief::Evict(Duration::from_secs(13))));
    assert_eq!([look(13_500, high(40)), look(72_999, high(40))], [None, None]);
    assert_eq!(look(73_000, high(40)), Some(Relief::Evict(Duration::from_secs(73))), "it was not");
    // Lowered by another program: it is raised first.
    assert!(matches!(look(200_000, high(16)), Some(Relief::Raise(..))));
}

#[test]
fn one_that_is_relieved_in_between_is_relaxed_again_until_it_is_as_high_as_it_may_be() {
    let mut reliefs = reliefs(ReliefMode::Evict);
    let (mut now, mut high, mut raised) = (0, high(16), Vec::new());
    while let Some(Relief::Raise(_, to)) = reliefs.look(ID, high, true, at(now)) {
        raised.push(to.0 >> 20);
        high.high = Some(to);
        assert!(matches!(reliefs.look(ID, high, true, at(now + 500)), Some(Relief::Raised(..))));
        now += 20_000;
        reliefs.forget_before(at(now));
    }
    assert_eq!(raised, [40, 52, 58, 61, 62, 63]);
    assert_eq!(reliefs.look(ID, high, true, at(now + 9_999)), None);
    assert_eq!(reliefs.look(ID, high, true, at(now + 10_000)), Some(Relief::Evict(Duration::from_secs(10))));
}

#[test]
fn limits_are_whole_pages_so_that_the_kernel_s_rounding_is_no_refusal() {
    let mut reliefs = reliefs(ReliefMode::Relax);
    let is = Throttled { high: Some(Bytes(PAGE)), limit: Some(Bytes(10 * PAGE + 5)) };
    assert_eq!(reliefs.look(ID, is, true, at(0)), Some(Relief::Raise(Bytes(PAGE), Bytes(10 * PAGE))));
    let raised = Throttled { high: Some(Bytes(10 * PAGE)), ..is };
    assert!(matches!(reliefs.look(ID, raised, true, at(1)), Some(Relief::Raised(..))));
}

#[test]
fn what_is_only_said_is_said_again_after_long() {
    let mut reliefs = reliefs(ReliefMode::Relax);
    let mut raises = Vec::new();
    for second in 0..400 {
        if let Some(Relief::Raise(..)) = reliefs.look(ID, high(16), true, at(second * 1000)) {
            reliefs.only_said(ID, at(second * 1000));
            raises.push(second);
        }
    }
    assert_eq!(raises, [0, 300]);
    reliefs.forget_before(at(400_000));
    assert!(matches!(reliefs.look(ID, high(16), true, at(400_001)), Some(Relief::Raise(..))), "it is new");
}
