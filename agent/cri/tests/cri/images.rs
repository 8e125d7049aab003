//! Which images may be removed.

use plimsoll_cri::{
    Assessed, Container, ContainerState, History, Image, ImageId, ImageUse, InUse, Kept, Rules, assess, unused,
};
use plimsoll_units::{Bytes, MonotonicNs, Pattern};
use proptest::prelude::*;
use std::collections::BTreeMap;

const MINUTE: u64 = 60_000_000_000;

fn minutes(count: u64) -> MonotonicNs {
    MonotonicNs(count * MINUTE)
}

fn image(id: &str) -> Image {
    Image {
        id: ImageId::try_from(id.to_owned()).expect("an id"),
        tags: vec![format!("docker.io/library/{id}:1")],
        digests: vec![format!("docker.io/library/{id}@sha256:{id}")],
        size: Some(Bytes(7)),
        is_pinned: false,
        annotations: BTreeMap::new(),
    }
}

fn using(names: &[&str]) -> InUse {
    let mut in_use = InUse::default();
    for name in names {
        in_use.add_container(&Container {
            id: "c".to_owned().try_into().expect("an id"),
            sandbox: "s".to_owned().try_into().expect("an id"),
            name: String::new(),
            attempt: 0,
            state: ContainerState::Exited,
            created: None,
            image: ImageUse { reference: Some((*name).to_owned()), ..ImageUse::default() },
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        });
    }
    in_use
}

const NOTHING: Rules<'static> = Rules { min_age: Rules::MIN_AGE, never: &[] };

fn order<'a>(assessed: &[Assessed<'a>]) -> Vec<&'a str> {
    unused(assessed).into_iter().map(|it| it.image.id.as_str()).collect()
}

#[test]
fn each_reason_keeps_an_image() {
    let mut images: Vec<Image> = ["free", "pinned", "by-id", "by-tag", "by-digest", "listed", "new"].map(image).into();
    images[1].is_pinned = true;
    let in_use = using(&["by-id", "docker.io/library/by-tag:1", "docker.io/library/by-digest@sha256:by-digest"]);
    let never = [Pattern::parse("listed:*").expect("a pattern")];
    let mut history = History::default();
    history.note(&images[..6], &in_use, minutes(8));
    history.note(&images, &in_use, minutes(10));
    let kept = |now: MonotonicNs| -> Vec<Option<Kept>> {
        let rules = Rules { never: &never, ..NOTHING };
        assess(&images, &in_use, &history, &rules, now).iter().map(|it| it.kept).collect()
    };
    let used = Some(Kept::InUse);
    let always = [None, Some(Kept::Pinned), used, used, used, Some(Kept::Never)];
    assert_eq!(kept(minutes(10)), [&always[..], &[Some(Kept::New)]].concat());
    assert_eq!(kept(MonotonicNs(12 * MINUTE - 1)), [&always[..], &[Some(Kept::New)]].concat());
    assert_eq!(kept(minutes(12)), [&always[..], &[None]].concat(), "it is two minutes old");
}

#[test]
fn what_was_used_longest_ago_goes_first() {
    let images: Vec<Image> = ["a", "b", "c", "d"].map(image).into();
    let mut history = History::default();
    history.note(&images[..3], &using(&["a"]), minutes(1));
    history.note(&images, &using(&["c"]), minutes(2));
    let assessed = assess(&images, &using(&[]), &history, &NOTHING, minutes(60));
    // `a` was last used when `b` was first seen; both were seen first at the same time. `c` and `d` are equal but for
    // when they were first seen.
    assert_eq!(order(&assessed), ["a", "b", "c", "d"]);
    assert_eq!(assessed.iter().map(|it| it.last_used).collect::<Vec<_>>(), [1, 1, 2, 2].map(|at| Some(minutes(at))));
    history.note(&images, &using(&["a"]), minutes(3));
    let assessed = assess(&images, &using(&[]), &history, &NOTHING, minutes(60));
    assert_eq!(order(&assessed), ["b", "c", "d", "a"]);
}

#[test]
fn one_id_counts_once_and_is_kept_as_a_whole() {
    let mut images: Vec<Image> = ["a", "a", "b", "b"].map(image).into();
    images[3].is_pinned = true;
    let mut history = History::default();
    history.note(&images, &using(&[]), minutes(1));
    let assessed = assess(&images, &using(&[]), &history, &NOTHING, minutes(60));
    let kept: Vec<_> = assessed.iter().map(|it| it.kept).collect();
    assert_eq!(kept, [None, Some(Kept::Repeated), Some(Kept::Pinned), Some(Kept::Repeated)]);
    assert_eq!(order(&assessed), ["a"]);
}

#[test]
fn names_are_matched_as_people_write_them() {
    for (pattern, name, is_kept) in [
        ("nginx", "docker.io/library/nginx:1", true),
        ("nginx:1", "docker.io/library/nginx:1", true),
        ("nginx:2", "docker.io/library/nginx:1", false),
        ("library/nginx", "docker.io/library/nginx@sha256:0", true),
        ("docker.io/library/nginx", "docker.io/library/nginx:1@sha256:0", true),
        ("docker.io/**", "docker.io/library/nginx:1", true),
        ("local:5000/base/*", "local:5000/base/app:3", true),
        ("local:5000/app", "local:5000/app", true),
        ("local", "local:5000/app", false),
        ("base/*", "local:5000/base/app:3", false),
        ("*", "local:5000/base/app:3", false),
        ("**", "local:5000/base/app:3", true),
        ("sha256:*", "sha256:0", true),
    ] {
        let mut of_name = image("sha256:0");
        (of_name.tags, of_name.digests) = (vec![name.to_owned()], Vec::new());
        if !name.starts_with("sha256") {
            of_name.id = ImageId::try_from("id/of/it".to_owned()).expect("an id");
        }
        let images = [of_name];
        let mut history = History::default();
        history.note(&images, &using(&[]), minutes(1));
        let never = [Pattern::parse(pattern).expect(pattern)];
        let rules = Rules { never: &never, ..NOTHING };
        let kept = assess(&images, &using(&[]), &history, &rules, minutes(60))[0].kept;
        assert_eq!(kept.is_some(), is_kept, "{pattern} {name}");
    }
}

#[test]
fn history_is_bounded_and_what_it_does_not_hold_is_kept() {
    let images: Vec<Image> = (0..=History::MOST).map(|number| image(&format!("{number:05}"))).collect();
    let mut history = History::default();
    history.note(&images, &using(&[]), minutes(1));
    let assessed = assess(&images, &using(&[]), &history, &NOTHING, minutes(60));
    assert_eq!(unused(&assessed).len(), History::MOST);
    assert_eq!(assessed[History::MOST].kept, Some(Kept::New));
    assert_eq!(assessed[History::MOST].last_used, None);
    // Room is made where one is gone.
    history.note(&images[1..], &using(&[]), minutes(60));
    let assessed = assess(&images[1..], &using(&[]), &history, &NOTHING, minutes(62));
    assert_eq!(unused(&assessed).len(), History::MOST);

    let map: BTreeMap<String, serde_json::Value> = (0..2 * History::MOST)
        .map(|number| (format!("{number:05}"), serde_json::json!({ "first": 1, "last_used": null })))
        .collect();
    let mut forged: History = serde_json::from_value(serde_json::json!(map)).expect("it is one");
    let many: Vec<Image> = (0..2 * History::MOST).map(|number| image(&format!("{number:05}"))).collect();
    forged.note(&many, &using(&[]), minutes(1));
    assert_eq!(unused(&assess(&many, &using(&[]), &forged, &NOTHING, minutes(60))).len(), History::MOST);
}

#[test]
fn history_outlives_a_restart_and_a_reboot() {
    let images: Vec<Image> = ["a", "b", "c"].map(image).into();
    let mut history = History::default();
    history.note(&images[1..], &using(&[]), minutes(100));
    history.note(&images, &using(&["b"]), minutes(200));
    let text = serde_json::to_string(&history).expect("it is written");
    let mut read: History = serde_json::from_str(&text).expect("it is read");
    assert_eq!(read, history);
    let by = |history: &History, now| order(&assess(&images, &using(&[]), history, &NOTHING, now)).join(" ");
    assert_eq!(by(&read, minutes(300)), "c b a");
    read.after_reboot();
    assert_eq!(by(&read, minutes(1)), "", "a container may be about to use any");
    assert_eq!(by(&read, minutes(3)), "c b a");
    // A reboot that was not reported: what lies ahead counts from now on.
    history.note(&images, &using(&[]), minutes(1));
    assert_eq!(by(&history, minutes(2)), "");
    assert_eq!(by(&history, minutes(3)), "a b c");
}

#[test]
fn what_is_restored_is_what_was_kept_and_garbage_is_left_out() {
    let images: Vec<Image> = ["a", "b"].map(image).into();
    let mut history = History::default();
    history.note(&images, &using(&["b"]), minutes(100));
    let mut restored = History::default();
    for (id, text) in history.texts() {
        restored.restore(id, &text);
    }
    assert_eq!(restored, history);
    assert!(restored.has("a") && !restored.has("c") && !restored.has(""));
    let (long, seen) = ("x".repeat(1000), "{\"first\":1,\"last_used\":null}");
    for (id, text) in
        [("c", ""), ("c", "{\"last_used\":1}"), ("c", "{\"first\":-1}"), ("", seen), (long.as_str(), seen)]
    {
        restored.restore(id, text);
        assert_eq!(restored, history, "{text:?}");
    }
    for number in 0..2 * History::MOST {
        restored.restore(&format!("{number:05}"), seen);
    }
    assert_eq!(restored.texts().count(), History::MOST);
}

#[test]
fn of_an_image_that_was_seen_before_and_since_the_earlier_first_time_and_the_later_use_count() {
    let images: Vec<Image> = ["used-before", "used-since", "used-in-both", "new"].map(image).into();
    let (mut before, mut since) = (History::default(), History::default());
    before.note(&images[..3], &using(&["used-before", "used-in-both"]), minutes(10));
    let gone = image("gone");
    before.note(&[&images[..3], &[gone]].concat(), &using(&[]), minutes(20));
    since.note(&images, &using(&["used-since", "used-in-both"]), minutes(30));
    since.merge(before);
    // What is not there any more goes with the next list.
    assert!(since.has("gone"));
    since.note(&images, &using(&[]), minutes(31));
    assert!(!since.has("gone"));
    let assessed = assess(&images, &using(&[]), &since, &NOTHING, minutes(31));
    let of = |index: usize| (assessed[index].kept, assessed[index].last_used);
    let expected = [(None, 10), (None, 30), (None, 30), (Some(Kept::New), 30)];
    assert_eq!([0, 1, 2, 3].map(of), expected.map(|(kept, used)| (kept, Some(minutes(used)))));
}

proptest! {
    /// Whatever is listed, remembered and used, nothing is removed that has a reason to stay, and nothing twice.
    #[test]
    fn nothing_that_is_used_pinned_or_new_is_unused(
        list in prop::collection::vec((0_u8..8, any::<bool>()), 0..12),
        before in prop::collection::vec(0_u8..8, 0..8),
        used in prop::collection::vec(0_u8..8, 0..4),
        now in 0_u64..6,
    ) {
        let of = |number: &u8| image(&format!("i{number}"));
        let images: Vec<Image> =
            list.iter().map(|(number, is_pinned)| Image { is_pinned: *is_pinned, ..of(number) }).collect();
        let before: Vec<Image> = before.iter().map(of).collect();
        let names: Vec<String> = used.iter().map(|number| format!("i{number}")).collect();
        let in_use = using(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut history = History::default();
        history.note(&before, &using(&[]), minutes(0));
        history.note(&images, &in_use, minutes(now));
        let assessed = assess(&images, &in_use, &history, &NOTHING, minutes(now));
        let removed = order(&assessed);
        for image in &images {
            let id = image.id.as_str();
            let is_kept = images.iter().any(|it| it.id == image.id && it.is_pinned)
                || names.iter().any(|name| name == id)
                || now < 2
                || !before.iter().any(|it| it.id == image.id);
            prop_assert_eq!(removed.iter().filter(|it| **it == id).count(), usize::from(!is_kept), "{}", id);
        }
    }
}
