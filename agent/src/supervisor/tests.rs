use super::*;
use crate::log::tests::warnings;
use plimsoll_config::LogFormat;
use plimsoll_state::handover::{ForBroker, ForServices};
use std::os::unix::net::UnixListener;
use tracing::level_filters::LevelFilter;

/// The unit that is shipped.
const UNIT: &str = include_str!("../../deploy/plimsoll.service");

#[test]
fn an_agent_that_can_evict_nothing_logs_it_when_it_starts() {
    let tree = crate::observe::tests::tree(&[("a.slice/x.service", 5, 0, 0, 0, 0)]);
    for (text, expected) in [
        ("{}", "warn: nothing can be evicted: machine.workloads is empty"),
        ("machine: {workloads: [{match: b.slice/*}]}", "warn: nothing can be evicted now: no pattern"),
        (
            "machine: {workloads: [{match: a.slice/*}], never: [a.slice/*]}",
            "warn: nothing can be evicted now: no pattern",
        ),
        ("machine: {workloads: [{match: a.slice/*}]}", ""),
        ("machine: {podFacts: /run/pods/pods.json}", ""),
    ] {
        let configuration = plimsoll_config::parse(text, "f").expect("it is valid");
        let found = warnings(|| log_no_workloads(&configuration, tree.path()));
        assert!(found.starts_with(expected) && found.is_empty() == expected.is_empty(), "{text}: {found}");
    }
}

#[test]
fn a_kill_switch_that_would_be_ignored_is_logged_before_it_is_thrown() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let user = rustix::process::geteuid().as_raw();
    let switch = KillSwitch::below(folder.path(), user, &folder.path().join("etc/switch"));
    std::fs::create_dir(folder.path().join("etc")).expect("writable");
    assert_eq!(warnings(|| log_untrusted_kill_switch(&switch)), "");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path().join("etc"), mode).expect("it is ours");
    let text = warnings(|| log_untrusted_kill_switch(&switch));
    assert!(text.contains("/etc/switch would stop nothing: others than root may write "), "{text}");
}

#[test]
fn a_signal_to_read_the_configuration_again_is_answered_in_the_log_once() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let text = format!("machine: {{shadow: true, stateDirectory: {}}}", folder.path().display());
    let supervisor = supervisor(plimsoll_config::parse(&text, "f").expect("it is valid"), None);
    supervisor.asked.reread.store(true, Ordering::Relaxed);
    let text = warnings(|| {
        supervisor.refuse_to_reread();
        supervisor.refuse_to_reread();
    });
    let expected = "warn: SIGHUP: the configuration is read at the start only; restart to apply it\n";
    assert_eq!(text, expected);
}

#[test]
fn a_missing_threshold_on_memory_is_logged() {
    let configuration = plimsoll_config::parse("evictionHard: {nodefs.available: 1Gi}", "f").expect("it is valid");
    let text = warnings(|| log_warnings(&configuration));
    let warning = "warn: configuration: f:1: evictionHard: no threshold on memory.available is configured: `run` never \
                   evicts for this machine's memory; expected memory.available in evictionHard or evictionSoft";
    assert!(text.lines().any(|line| line == warning), "{text}");
}

/// One of a dry run, so that it undoes nothing on this machine; none of its processes is started.
fn supervisor(configuration: Configuration, api_server: Option<ApiServer>) -> Supervisor {
    let directory = configuration.machine.state_directory.clone();
    Supervisor {
        options: Options::default(),
        configured_level: None,
        read_only_state: None,
        inherited_config: InheritedConfig::new(&Snapshot::default()).expect("memory"),
        queues: None,
        from_core: None,
        to_reporter: None,
        facts: None,
        to_services: None,
        runtime_sockets: RuntimeSockets::of(&configuration, api_server),
        service_account: None,
        reporter_restarted: rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"),
        followed: None,
        signals: UnixStream::pair().expect("sockets").0,
        asked: Asked::default(),
        log: Log::start(LogFormat::Text, LevelFilter::WARN, std::io::sink(), || {}).expect("a thread"),
        watchdog: Watchdog::start(directory).expect("a thread"),
        core: ChildProcess::new("core"),
        reporter: ChildProcess::new("reporter"),
        services: None,
        scanner: None,
        broker: None,
        quotas: Answering::default(),
        manifests: Answering::default(),
        observes_disks: false,
        left: Vec::new(),
        cores: 0,
        configuration,
    }
}

#[test]
fn after_another_configuration_the_runtime_is_where_that_says_and_the_api_server_where_it_was() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let [before, after] = ["before", "after"].map(|name| folder.path().join(name));
    let _listeners = [&before, &after].map(|path| UnixListener::bind(path).expect("a socket"));
    let api_server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let configuration = |runtime: &Path| {
        let (state, runtime) = (folder.path().display(), runtime.display());
        let text = format!("machine: {{shadow: true, stateDirectory: {state}, runtimeSocket: {runtime}}}");
        plimsoll_config::parse(&text, "f").expect("it is valid")
    };
    let address = api_server.local_addr().expect("it has one");
    let mut supervisor = supervisor(configuration(&before), Some(address.into()));
    let (options, read) = (Options::default(), Snapshot::default());
    supervisor.go_on_with(Changed { options, configuration: configuration(&after), read });
    let [(ours, theirs), (broker, of_broker)] = [(); 2].map(|()| handover::pair().expect("sockets"));
    let mut ask = |number| {
        theirs.send(&[number]).expect("room");
        std::thread::sleep(supervisor.runtime_sockets.pause());
        supervisor.runtime_sockets.answer(&ours, Some(&broker));
        match handover::receive_for_services(&theirs) {
            Ok(ForServices::Runtime { connection: Ok(connection), .. }) => connection,
            other => panic!("{other:?}"),
        }
    };
    ask(0);
    let Ok(ForBroker::Connection { runtime, .. }) = handover::receive_for_broker(&of_broker) else {
        panic!("a connection")
    };
    let runtime = UnixStream::from(runtime).peer_addr().expect("it is connected");
    assert_eq!(runtime.as_pathname(), Some(after.as_path()));
    assert_eq!(std::net::TcpStream::from(ask(handover::API_SERVER)).peer_addr().expect("it is connected"), address);
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
fn the_unit_stops_every_peer_that_is_known() {
    let line = UNIT.lines().find_map(|line| line.strip_prefix("Conflicts=")).expect("it has the key");
    let stopped: Vec<&str> = line.split(' ').collect();
    for unit in plimsoll_node::peers::KNOWN.into_iter().chain(["nohang-desktop"]) {
        assert!(stopped.contains(&format!("{unit}.service").as_str()), "{unit}");
    }
}

#[test]
fn the_unit_allows_the_end_the_time_that_it_may_take() {
    let [time] = values("TimeoutStopSec")[..] else { panic!("one time to stop") };
    let seconds = time.strip_suffix('s').and_then(|seconds| seconds.parse().ok()).expect("in seconds");
    let most = CORE_GRACE + 2 * linked::GRACE + SERVICES_GRACE + REPORTER_GRACE + 4 * KILLED_GRACE + LAST_LINES;
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

#[test]
fn what_could_not_be_started_is_tried_again_after_pauses_that_grow_however_long_its_predecessor_ran() {
    let mut process = ChildProcess::new("child");
    process.started = Instant::now().checked_sub(LIVED).expect("the machine runs for a minute");
    for pause in [PAUSE, PAUSE * 2, PAUSE * 4] {
        let before = Instant::now();
        launched_or_again(&mut process, Err(Errno::NOMEM.into()));
        assert!(process.due.is_some_and(|due| due >= before + pause), "{pause:?}");
    }
}

#[test]
fn the_end_of_a_process_is_waited_for_as_long_as_it_may_take_and_no_longer() {
    let mut process = ChildProcess::new("child");
    let spawn = || Command::new("sleep").arg("3600").spawn().expect("it is there");
    let mut child = spawn();
    assert_eq!(ended_within(&mut child, Duration::from_millis(20)), None);
    child.kill().expect("it is ours");
    assert!(ended_within(&mut child, Duration::from_mins(1)).is_some());
    process.child = Some(spawn());
    assert!(process.stop_or_leave(Duration::from_mins(1)).is_none() && process.child.is_none(), "SIGTERM ends it");
}
