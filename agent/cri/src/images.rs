//! Which images may be removed, and in which order.

use crate::id::ImageId;
use crate::in_use::InUse;
use crate::listed::Image;
use core::time::Duration;
use plimsoll_units::{MonotonicNs, Pattern};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What is remembered of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    first: MonotonicNs,
    last_used: Option<MonotonicNs>,
}

/// When images were first seen and last used, which no runtime says. It has to be given each listing, in intervals that
/// are short beside the age that is asked for: the kubelet looks every five minutes (`realImageGCManager.Start`).
///
/// Bounded to [`History::MOST`] images. What is not remembered is not removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History(BTreeMap<ImageId, Seen>);

impl History {
    /// As many images are remembered, 1.3 MiB at most. A node has some hundred.
    pub const MOST: usize = 4096;

    /// Takes note of a whole listing at `now`, and forgets what is not in it. A time that is not past yet is taken for now:
    /// it is from before a reboot.
    pub fn note(&mut self, images: &[Image], in_use: &InUse, now: MonotonicNs) {
        let listed: BTreeSet<&ImageId> = images.iter().map(|image| &image.id).collect();
        self.0.retain(|id, _| listed.contains(id));
        while self.0.len() > Self::MOST {
            self.0.pop_last();
        }
        for image in images {
            let used = in_use.has(image).then_some(now);
            if let Some(seen) = self.0.get_mut(&image.id) {
                seen.first = seen.first.min(now);
                seen.last_used = used.or(seen.last_used.map(|last| last.min(now)));
            } else if self.0.len() < Self::MOST {
                self.0.insert(image.id.clone(), Seen { first: now, last_used: used });
            }
        }
    }

    /// What is remembered of each image by its id, as text, to be kept.
    pub fn texts(&self) -> impl Iterator<Item = (&str, String)> {
        self.0.iter().filter_map(|(id, seen)| Some((id.as_str(), serde_json::to_string(seen).ok()?)))
    }

    /// Whether an image of this id is remembered.
    pub fn has(&self, id: &str) -> bool {
        ImageId::try_from(id.to_owned()).is_ok_and(|id| self.0.contains_key(&id))
    }

    /// Remembers what [`Self::texts`] gave. What is no such text, and one image too many, is left out: it is seen for the
    /// first time then.
    pub fn restore(&mut self, id: &str, text: &str) {
        if let (Ok(id), Ok(seen)) = (ImageId::try_from(id.to_owned()), serde_json::from_str(text))
            && self.0.len() < Self::MOST
        {
            self.0.insert(id, seen);
        }
    }

    /// Goes on with what was remembered before: of an image that was seen since, the earlier first time and the later use
    /// count.
    pub fn merge(&mut self, before: Self) {
        for (id, seen) in before.0 {
            let known = self.0.entry(id).or_insert(seen);
            known.first = known.first.min(seen.first);
            known.last_used = known.last_used.max(seen.last_used);
        }
    }

    /// After a reboot, when the clock began anew: keeps the order of use alone, in the clock's first nanoseconds.
    pub fn after_reboot(&mut self) {
        let times = self.0.values().flat_map(|seen| [Some(seen.first), seen.last_used]).flatten();
        let ranks: BTreeSet<MonotonicNs> = times.collect();
        let ranks: BTreeMap<MonotonicNs, MonotonicNs> =
            ranks.into_iter().zip(0..).map(|(time, rank)| (time, MonotonicNs(rank))).collect();
        for seen in self.0.values_mut() {
            seen.first = ranks[&seen.first];
            seen.last_used = seen.last_used.map(|last| ranks[&last]);
        }
    }
}

/// What is never removed, beside what is in use or pinned.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Images that were first seen less than this ago: a container may be about to use them. The kubelet's
    /// `imageMinimumGCAge`, 2 min.
    pub min_age: Duration,
    /// Images of which any name is meant, `imagesNeverRemoved`: `registry.local/base/*`, `docker.io/library/**`. Names are
    /// as the runtime lists them, with a tag or a digest; a pattern without either means all of them, and
    /// `docker.io/library/` may be left out.
    pub never: &'a [Pattern],
}

impl Rules<'_> {
    /// The kubelet's default of [`Rules::min_age`] (`SetDefaults_KubeletConfiguration`).
    pub const MIN_AGE: Duration = Duration::from_mins(2);

    /// Why an image is kept whatever its age.
    pub fn keep(&self, image: &Image, in_use: &InUse) -> Option<Kept> {
        let kept = [
            (image.is_pinned, Kept::Pinned),
            (in_use.has(image), Kept::InUse),
            (self.never_removes(image), Kept::Never),
        ];
        kept.into_iter().find_map(|(is_kept, why)| is_kept.then_some(why))
    }

    fn never_removes(&self, image: &Image) -> bool {
        let names = image.tags.iter().chain(&image.digests).map(String::as_str).chain([image.id.as_str()]);
        names.flat_map(forms).any(|name| self.never.iter().any(|pattern| pattern.matches(name)))
    }
}

/// The ways in which people write an image's name: whole, or without tag and digest; with Docker's registry, or without.
pub(crate) fn forms(name: &str) -> impl Iterator<Item = &str> {
    let bare = name.split_once('@').map_or(name, |(before, _)| before);
    // A colon before the last slash is that of a port.
    let tag = bare.rfind(':').filter(|&at| !bare[at..].contains('/'));
    let bare = tag.map_or(bare, |at| &bare[..at]);
    [name, bare].into_iter().flat_map(|name| {
        let short = name.strip_prefix("docker.io/");
        let shortest = short.and_then(|short| short.strip_prefix("library/"));
        [Some(name), short, shortest].into_iter().flatten()
    })
}

/// Why an image is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The runtime asks to keep it.
    Pinned,
    /// A container uses it, running or not.
    InUse,
    /// A pattern of [`Rules::never`] means it.
    Never,
    /// It was first seen less than [`Rules::min_age`] ago, or is not remembered.
    New,
    /// The list has the same id before: it counts there, with what is known of both.
    Repeated,
}

/// An image, and whether it may be removed.
#[derive(Clone, Copy, Debug)]
pub struct Assessed<'a> {
    /// The image.
    pub image: &'a Image,
    /// Why it is kept; absent if it may be removed.
    pub kept: Option<Kept>,
    /// When a container that used it was last seen, or else when it was first seen; absent if it is not remembered. The
    /// kubelet removes images that were never used before all others; here they are as old as they were first seen.
    pub last_used: Option<MonotonicNs>,
    first_seen: Option<MonotonicNs>,
}

/// Which of these images may be removed, by the rules of the kubelet's image garbage collection (`imagesInEvictionOrder`
/// and `freeSpace` in `image_gc_manager.go`), in the order in which they were listed. `history` has taken note of this
/// listing. The runtime itself refuses no removal.
pub fn assess<'a>(
    images: &'a [Image],
    in_use: &InUse,
    history: &History,
    rules: &Rules<'_>,
    now: MonotonicNs,
) -> Vec<Assessed<'a>> {
    let kept_alone = |image: &Image| {
        let seen = history.0.get(&image.id);
        let is_new = seen.is_none_or(|seen| now.since(seen.first) < rules.min_age);
        rules.keep(image, in_use).or(is_new.then_some(Kept::New))
    };
    // Removal is by id: what keeps one entry keeps all of that id.
    let mut by_id: BTreeMap<&ImageId, Option<Kept>> = BTreeMap::new();
    for image in images {
        let kept = by_id.entry(&image.id).or_default();
        *kept = kept.or_else(|| kept_alone(image));
    }
    images
        .iter()
        .map(|image| {
            let seen = history.0.get(&image.id);
            let first_seen = seen.map(|seen| seen.first);
            let last_used = seen.map(|seen| seen.last_used.unwrap_or(seen.first));
            Assessed { image, kept: by_id.remove(&image.id).unwrap_or(Some(Kept::Repeated)), last_used, first_seen }
        })
        .collect()
}

/// Those that may be removed, oldest use first; of equals the one that was seen first.
pub fn unused<'a, 'b>(assessed: &'b [Assessed<'a>]) -> Vec<&'b Assessed<'a>> {
    let mut unused: Vec<_> = assessed.iter().filter(|it| it.kept.is_none()).collect();
    unused.sort_by_key(|it| (it.last_used, it.first_seen, &it.image.id));
    unused
}
