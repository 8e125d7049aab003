//! The command line as completions and man pages have it.
#![cfg(target_os = "linux")]

use clap::ValueEnum as _;
use clap_complete::Shell;
use std::collections::BTreeSet;

/// The commands that `--help` lists.
const COMMANDS: [&str; 8] = ["check", "cluster-cleanup", "config", "explain", "pods", "replay", "run", "undo"];

#[test]
fn each_command_that_is_not_hidden_has_a_man_page() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    clap_mangen::generate_to(plimsoll::command_line(), directory.path()).expect("writable");
    let entries = std::fs::read_dir(directory.path()).expect("readable").flatten();
    let pages: BTreeSet<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let of_config = ["show", "check", "convert"].map(|name| format!("plimsoll-config-{name}.1"));
    let of_each = COMMANDS.map(|name| format!("plimsoll-{name}.1"));
    let expected: BTreeSet<String> = of_each.into_iter().chain(of_config).chain(["plimsoll.1".to_owned()]).collect();
    assert!(pages.is_superset(&expected), "{pages:?}");
    for hidden in ["core", "reporter", "services"] {
        assert!(!pages.contains(&format!("plimsoll-{hidden}.1")), "{pages:?}");
    }
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).expect("it is there");
    let whole = read("plimsoll.1");
    assert!(whole.contains("Exit codes: 0 done") && whole.contains("before the OOM killer does"), "{whole}");
    for name in COMMANDS.into_iter().filter(|name| !["config", "run"].contains(name)) {
        let page = read(&format!("plimsoll-{name}.1"));
        assert!(page.contains("xit codes"), "{name}: {page}");
    }
    assert!(read("plimsoll-run.1").contains("PLIMSOLL_KILL_SWITCH"));
    assert!(read("plimsoll-pods.1").contains("RANK 1 would be evicted first"));
}

#[test]
fn the_help_of_a_command_lists_what_that_goes_by_and_it_takes_the_rest_as_well() {
    let help = |path: &[&str]| {
        let mut command = plimsoll::command_line();
        let found = path.iter().try_fold(&mut command, |command, name| command.find_subcommand_mut(name));
        found.expect("there is one").render_long_help().to_string()
    };
    for (path, listed, hidden) in [
        (&["run"][..], &["--log-level", "--trace-size", "--victims-per-minute", "[default: 30]"][..], &[][..]),
        (
            &["undo"],
            &["--remove-state", "--state-directory"],
            &["--log-level", "--trace", "--kubelet-config", "--brake-mode"],
        ),
        (&["cluster-cleanup"], &["--stale", "--cluster-kubeconfig"], &["--log-level", "--kill-switch", "--configz"]),
        (&["check"], &["--kill-switch", "--running-kubelet"], &["--log-level", "--trace", "--victims-per-minute"]),
        (&["config", "show"], &["--output", "--victims-per-minute"], &["--log-level", "--trace"]),
        (&["explain"], &["--pods", "--stall-percent"], &["--log-level"]),
    ] {
        let help = help(path);
        let has =
            |option: &str| help.split_whitespace().any(|word| word == option) || help.contains(&format!("{option} <"));
        assert!(listed.iter().all(|option| has(option) || help.contains(option)), "{path:?}: {help}");
        assert!(!hidden.iter().any(|option| has(option)), "{path:?}: {help}");
        assert_eq!(help.contains("All options of `plimsoll run` are taken as well"), path != ["run"], "{help}");
    }
    let line = ["plimsoll", "undo", "--log-level", "info", "--brake-mode", "none"];
    assert!(plimsoll::command_line().try_get_matches_from(line).is_ok());
}

#[test]
fn completions_offer_what_users_type_and_nothing_hidden() {
    for shell in Shell::value_variants() {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut plimsoll::command_line(), "plimsoll", &mut script);
        let script = String::from_utf8(script).expect("UTF-8");
        for name in COMMANDS {
            assert!(script.contains(name), "{shell}: {name}");
        }
        for hidden in ["--heartbeat", "--queues", "Started by"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
}
