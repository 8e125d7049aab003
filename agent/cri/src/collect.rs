//! Removes what is dead and what is unused, as far as it is ordered to. It decides neither whether nor how much.
//!
//! Dead containers first, then sandboxes, then images, by the rules of [`dead_containers`], [`dead_sandboxes`] and
//! [`assess`]. What the runtime refuses to remove is passed over; without an answer it ends.

use crate::dead::{dead_containers, dead_sandboxes};
use crate::error::Error;
use crate::id::{ContainerId, ImageId};
use crate::images::{History, Rules, assess, unused};
use crate::runtime::Runtime;
use core::time::Duration;
use plimsoll_policy::kubelet::Reclaim;
use plimsoll_units::{Bytes, MonotonicNs, Pattern};
use std::collections::BTreeSet;
use std::time::SystemTime;

/// After so long images are listed again: one that was unused may be used by then.
const LISTING_LASTS: Duration = Duration::from_secs(10);

/// What was removed, and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// How many containers were removed.
    pub containers: u32,
    /// How many sandboxes.
    pub sandboxes: u32,
    /// How many images, each with all its tags.
    pub images: u32,
    /// What these took by the runtime's account, layers that others share included.
    pub freed: Bytes,
    /// How many images are left that may be removed, without those that the runtime refused to remove; absent where they
    /// were not listed.
    pub unused: Option<u32>,
}

/// What is asked for.
pub struct Collect<'a> {
    /// Containers with sandboxes, images, or all.
    pub what: Reclaim,
    /// Images until they made up for so much. One of unknown size makes up for all.
    pub bytes: Bytes,
    /// Says of a pod's UID that the pod is over ([`dead_containers`]).
    pub is_over: &'a (dyn Fn(&str) -> bool + Sync),
    /// Asked before each removal.
    pub goes_on: &'a (dyn Fn() -> bool + Sync),
}

/// Removes, and remembers of images when they were used.
pub struct Collector {
    history: History,
    /// Containers that it tried to remove, and that were there still when they were listed last.
    tried: BTreeSet<ContainerId>,
    min_age: Duration,
    never: Vec<Pattern>,
    clock: fn() -> MonotonicNs,
}

impl Collector {
    /// `min_age` and `never` are those of [`Rules`]. `clock` gives the time now.
    pub fn new(min_age: Duration, never: Vec<Pattern>, clock: fn() -> MonotonicNs) -> Self {
        Self { history: History::default(), tried: BTreeSet::new(), min_age, never, clock }
    }

    /// What is remembered of images.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// Goes on with what was remembered before.
    pub fn resume(&mut self, before: History) {
        self.history.merge(before);
    }

    /// Takes note of the images that there are and of those that are used, for their age and the order of use. Due every
    /// few minutes, as [`History`] says.
    pub async fn note(&mut self, runtime: &mut Runtime) -> Result<(), Error> {
        let images = runtime.images().await?;
        let in_use = runtime.images_in_use().await?;
        self.history.note(&images, &in_use, (self.clock)());
        Ok(())
    }

    /// Removes. Gives what was removed also where it ends with an error: that of the runtime that does not answer, or the
    /// last refusal.
    pub async fn collect(&mut self, runtime: &mut Runtime, asked: &Collect<'_>) -> (Collected, Result<(), Error>) {
        let mut removal = Removal { runtime, asked, collected: Collected::default(), refused: None };
        let ended = removal.run(self).await;
        (removal.collected, ended.and(removal.refused.map_or(Ok(()), Err)))
    }
}

/// One that is under way.
struct Removal<'a> {
    runtime: &'a mut Runtime,
    asked: &'a Collect<'a>,
    collected: Collected,
    /// The last refusal.
    refused: Option<Error>,
}

impl Removal<'_> {
    async fn run(&mut self, collector: &mut Collector) -> Result<(), Error> {
        if self.asked.what.containers {
            self.containers(&mut collector.tried).await?;
            self.sandboxes().await?;
        }
        if self.asked.what.images {
            self.images(collector).await?;
        }
        Ok(())
    }

    /// Whether something was removed. A refusal is kept; any other error ends it all.
    fn took(&mut self, removed: Result<(), Error>) -> Result<bool, Error> {
        match removed {
            Ok(()) => Ok(true),
            Err(error @ Error::Failed { .. }) => {
                self.refused = Some(error);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn containers(&mut self, tried: &mut BTreeSet<ContainerId>) -> Result<(), Error> {
        let sandboxes = self.runtime.sandboxes().await?;
        let containers = self.runtime.containers().await?;
        // The kubelet's default of `minimum-container-ttl-duration`, which is deprecated.
        let age = (Duration::ZERO, SystemTime::now());
        let mut dead = dead_containers(&containers, &sandboxes, self.asked.is_over, age);
        let listed: BTreeSet<_> = containers.iter().map(|it| &it.id).collect();
        tried.retain(|id| listed.contains(id));
        // Last: what the runtime refuses, or takes too long for, may use up the time that each order has.
        dead.sort_by_key(|dead| tried.contains(&dead.container.id));
        for dead in dead {
            if !(self.asked.goes_on)() {
                break;
            }
            let id = &dead.container.id;
            tried.insert(id.clone());
            // It may run: where it cannot be stopped it is kept.
            if dead.is_to_be_stopped {
                let stopped = self.runtime.stop_container(id, Duration::ZERO).await;
                if !self.took(stopped)? {
                    continue;
                }
                if !(self.asked.goes_on)() {
                    break;
                }
            }
            let removed = self.runtime.remove_container(id).await;
            self.collected.containers += u32::from(self.took(removed)?);
        }
        Ok(())
    }

    async fn sandboxes(&mut self) -> Result<(), Error> {
        // In this order a container that is made meanwhile has its sandbox kept.
        let sandboxes = self.runtime.sandboxes().await?;
        let containers = self.runtime.containers().await?;
        for sandbox in dead_sandboxes(&sandboxes, &containers, self.asked.is_over) {
            if !(self.asked.goes_on)() {
                break;
            }
            let stopped = self.runtime.stop_sandbox(&sandbox.id).await;
            if !self.took(stopped)? {
                continue;
            }
            if !(self.asked.goes_on)() {
                break;
            }
            let removed = self.runtime.remove_sandbox(&sandbox.id).await;
            self.collected.sandboxes += u32::from(self.took(removed)?);
        }
        Ok(())
    }

    async fn images(&mut self, collector: &mut Collector) -> Result<(), Error> {
        let Collector { history, min_age, never, clock, .. } = collector;
        let mut refused = BTreeSet::<ImageId>::new();
        let mut made_up = Bytes::ZERO;
        'listing: loop {
            let images = self.runtime.images().await?;
            let in_use = self.runtime.images_in_use().await?;
            let listed = clock();
            history.note(&images, &in_use, listed);
            let rules = Rules { min_age: *min_age, never };
            let assessed = assess(&images, &in_use, history, &rules, listed);
            let mut unused = unused(&assessed);
            unused.retain(|it| !refused.contains(&it.image.id));
            let mut left = u32::try_from(unused.len()).unwrap_or(u32::MAX);
            self.collected.unused = Some(left);
            for image in unused.iter().map(|it| it.image) {
                if made_up >= self.asked.bytes || !(self.asked.goes_on)() {
                    break;
                }
                let removed = self.runtime.remove_image(&image.id).await;
                if self.took(removed)? {
                    self.collected.images += 1;
                    self.collected.freed = self.collected.freed.saturating_add(image.size.unwrap_or_default());
                    made_up = made_up.saturating_add(image.size.unwrap_or(self.asked.bytes));
                } else {
                    refused.insert(image.id.clone());
                }
                left -= 1;
                self.collected.unused = Some(left);
                if clock().since(listed) >= LISTING_LASTS {
                    continue 'listing;
                }
            }
            return Ok(());
        }
    }
}
