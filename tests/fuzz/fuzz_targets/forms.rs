//! Any text in every form that a kubelet's configuration is found in: a configuration, and errors with what was expected.
//! The first byte says which form.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_config::{Overrides, Text, Texts, examine_texts};

fuzz_target!(|data: &[u8]| {
    let Some((form, rest)) = data.split_first() else { return };
    let text = Text { file: "fuzz".to_owned(), text: String::from_utf8_lossy(rest).into_owned() };
    let mut texts = Texts::default();
    match form % 6 {
        0 => texts.kubelet_config = Some(text),
        1 => texts.drop_ins = Some(vec![text]),
        2 => texts.configz = Some(text),
        3 => texts.node_config = Some(text),
        4 => texts.kubelet_command_line = vec![text],
        _ => texts.own = Some(text),
    }
    let report = examine_texts(&texts, &Overrides::default());
    for problem in report.errors.iter().chain(&report.warnings) {
        assert!(!problem.expected.is_empty(), "{problem}");
    }
});
