use super::*;
use plimsoll_config::LogFormat;
use tracing::level_filters::LevelFilter;

/// The unit that is shipped.
const UNIT: &str = include_str!("../../deploy/plimsoll.service");

#[test]
fn a_missing_threshold_on_memory_is_logged() {
    let configuration = plimsoll_config::parse("evictionHard: {nodefs.available: 1Gi}", "f").expect("it is valid");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let log = Log::start(LogFormat::Text, LevelFilter::WARN, writer, || {}).expect("a thread");
    log.within(|| log_warnings(&configuration));
    assert!(log.finish(Duration::from_mins(1)), "a pipe has room");
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("its thread has ended");
    let warning = "warn: configuration: f:1: evictionHard: no threshold on memory.available is configured: `run` never \
                   evicts for this machine's memory; expected memory.available in evictionHard or evictionSoft";
    assert!(text.lines().any(|line| line == warning), "{text}");
}

/// The values of a key of the unit, in the order in which they stand there.
fn values(key: &str) -> Vec<&'static str> {
    UNIT.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn the_unit_is_always_started_again_after_a_pause_that_grows() {
    assert_eq!(values("StartLimitIntervalSec"), ["0"], "five starts in ten seconds would be the last ones");
    let unit = UNIT.split("\n[Service]").next().expect("a first part");
    assert!(unit.contains("\nStartLimitIntervalSec=0"), "it belongs to [Unit]; in another section it is ignored");
    assert_eq!((values("Restart"), values("RestartSec")), (vec!["always"], vec!["1s"]));
    assert_eq!((values("RestartSteps"), values("RestartMaxDelaySec")), (vec!["5"], vec!["30s"]));
}

#[test]
fn the_unit_allows_the_end_the_time_that_it_may_take() {
    let [time] = values("TimeoutStopSec")[..] else { panic!("one time to stop") };
    let seconds = time.strip_suffix('s').and_then(|seconds| seconds.parse().ok()).expect("in seconds");
    let most = CORE_GRACE + scanner::GRACE + SERVICES_GRACE + REPORTER_GRACE + LAST_LINES;
    assert!(most < Duration::from_secs(seconds), "systemd kills it after {seconds} s, and it may take {most:?}");
}

#[test]
fn pauses_between_starts_double_up_to_the_longest_and_begin_anew() {
    let mut process = ChildProcess::new("child");
    let mut next = || {
        let before = Instant::now();
        process.again();
        let pause = process.due.expect("it is planned") - before;
        (Duration::from_millis(pause.as_millis().try_into().expect("short")), process.pause)
    };
    let mut pauses = vec![PAUSE];
    while pauses.len() < 9 {
        let (pause, following) = next();
        assert!(pause >= pauses[pauses.len() - 1] && pause < following.max(PAUSE_MOST + PAUSE), "{pause:?}");
        pauses.push(following);
    }
    assert_eq!(pauses[..3], [PAUSE, PAUSE * 2, PAUSE * 4]);
    assert_eq!(pauses[8], PAUSE_MOST);
    process.started = Instant::now().checked_sub(LIVED).expect("the machine runs for a minute");
    process.again();
    assert_eq!(process.pause, PAUSE * 2, "it ran for long enough");
}
