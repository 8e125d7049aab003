//! The kill switch, as the inventory thread checks it: a file of root's, and an annotation on the node's object. Either stops
//! every action.

use std::os::fd::BorrowedFd;

use plimsoll_inventory::Sink as _;
use plimsoll_node::clock::monotonic;
use plimsoll_units::MonotonicNs;

use super::annotation::Annotation;
use super::outgoing::clip;
use super::{News, Thread};
use crate::kill_switch::{ANNOTATION, Found, KillSwitch};
use crate::record::HealthRecord;

/// Both, as far as they are configured.
#[derive(Debug)]
pub(in crate::core) struct Switches {
    file: Option<KillSwitch>,
    annotation: Option<Annotation>,
    /// What the watching thread was sent last.
    is_off: bool,
}

impl Switches {
    pub(in crate::core) const fn new(file: Option<KillSwitch>, annotation: Option<Annotation>) -> Self {
        Self { file, annotation, is_off: false }
    }

    /// One of them is thrown.
    #[cfg(test)]
    pub(super) const fn off() -> Self {
        Self { file: None, annotation: None, is_off: true }
    }

    /// The file and the annotation, each as it was when it was last checked.
    fn thrown(&self) -> [Option<bool>; 2] {
        [self.file.as_ref().map(KillSwitch::is_thrown), self.annotation.as_ref().map(Annotation::is_thrown)]
    }

    /// Whether nothing may begin from here on, or may again; absent where that is as before.
    fn turn(&mut self) -> Option<bool> {
        let is_off = self.thrown().contains(&Some(true));
        (std::mem::replace(&mut self.is_off, is_off) != is_off).then_some(is_off)
    }

    /// Whether nothing may begin, as the watching thread was sent last.
    pub(super) const fn is_off(&self) -> bool {
        self.is_off
    }

    /// When they are to be checked again without an event.
    pub(super) fn due(&self) -> Option<MonotonicNs> {
        let (file, annotation) = (self.file.as_ref(), self.annotation.as_ref());
        let both = [file.and_then(KillSwitch::due), annotation.and_then(Annotation::due)];
        both.into_iter().flatten().min()
    }

    /// Readable when they are to be checked again.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().and_then(KillSwitch::descriptor)
    }

    /// Another process says that the annotation is there, or is not. Without a cluster there is none.
    pub(super) fn say(&mut self, is_there: bool) {
        if let Some(annotation) = &mut self.annotation {
            annotation.say(is_there);
        }
    }
}

impl Thread {
    /// Checks both, and has what is new followed and reported.
    pub(super) fn follow_switch(&mut self) {
        let [file, annotation] = self.switches.thrown();
        self.check_switch();
        let [file_now, annotation_now] = self.switches.thrown();
        let new = [file != file_now, annotation != annotation_now];
        if new != [false; 2] {
            self.report_switches(new);
            // What is frozen must not wait for what else this thread does.
            self.outgoing.publish();
        }
    }

    /// Checks both, and sends the watching thread what is new.
    pub(super) fn check_switch(&mut self) {
        self.check_file();
        self.settle_annotation();
        if let Some(is_off) = self.switches.turn() {
            self.outgoing.send(News::KillSwitch(is_off));
        }
    }

    fn check_file(&mut self) {
        let Some(switch) = &mut self.switches.file else { return };
        let found = switch.check();
        let path = switch.path().display();
        let ignored = match found {
            Found::Ignored(why) => Some(format!("what is at {path} is no kill switch: {why}")),
            Found::Absent | Found::Thrown => None,
        };
        self.outgoing.trouble("kill switch", ignored);
        let unreported = switch.unreported();
        let why =
            unreported.map(|errno| format!("the kernel does not report changes of {path}: {errno}; it is polled"));
        self.outgoing.trouble("kill switch's directories", why);
    }

    fn settle_annotation(&mut self) {
        let Some(annotation) = &mut self.switches.annotation else { return };
        let settled = annotation.settle(monotonic());
        let why = |error| format!("the next core will not know of the annotation {ANNOTATION}: {error}");
        self.outgoing.trouble("kill switch's annotation", settled.err().map(why));
    }

    /// Reports those that are configured.
    pub(super) fn report_switch(&mut self) {
        self.report_switches([true; 2]);
    }

    fn report_switches(&mut self, which: [bool; 2]) {
        let [file, annotation] = self.switches.thrown();
        let [of_file, of_annotation] = which;
        if let (Some(switch), Some(is_thrown), true) = (&self.switches.file, file, of_file) {
            let path = switch.path().to_string_lossy();
            self.outgoing.report(HealthRecord::KillSwitch { switch: clip(&path), is_thrown });
        }
        if let (Some(is_thrown), true) = (annotation, of_annotation) {
            self.outgoing.report(HealthRecord::KillSwitch { switch: ANNOTATION, is_thrown });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn either_stops_every_action_and_what_is_said_of_the_annotation_takes_back_no_file() {
        let [root, state] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary directory"));
        let path = root.path().join("switch");
        let file = KillSwitch::below(root.path(), rustix::process::geteuid().as_raw(), &path);
        let mut switches = Switches::new(Some(file), Some(Annotation::resume(state.path())));
        let mut settle = |said: Option<bool>, now| {
            if let Some(is_there) = said {
                switches.say(is_there);
            }
            if let Some(file) = &mut switches.file {
                file.check();
            }
            let annotation = switches.annotation.as_mut().map(|it| it.settle(now));
            annotation.expect("there is one").expect("writable");
            switches.turn()
        };
        let (early, late) = (MonotonicNs(1), MonotonicNs(u64::MAX));
        assert_eq!(settle(None, early), None);
        fs::write(&path, "").expect("writable");
        assert_eq!(settle(Some(false), early), Some(true), "the file");
        assert_eq!(settle(Some(false), late), None, "the file is there");
        assert_eq!(settle(Some(true), early), None, "both");
        fs::remove_file(&path).expect("ours");
        assert_eq!(settle(None, late), None, "the annotation is there");
        assert_eq!(settle(Some(false), late), Some(false));
        assert_eq!(settle(Some(true), early), Some(true), "the annotation alone");
    }

    #[test]
    fn without_a_cluster_nothing_that_is_said_counts() {
        let mut switches = Switches::new(None, None);
        switches.say(true);
        assert_eq!((switches.turn(), switches.due()), (None, None));
    }
}
