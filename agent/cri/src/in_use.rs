//! Which images are in use.

use crate::listed::{Container, ContainerStatus, Image, ImageUse};
use std::collections::BTreeSet;

/// The names of all images that containers use, running or not, as root or as a volume.
///
/// It errs on the side of use. The kubelet compares ids alone; this takes an image for used that shares any name with what
/// a container uses, because runtimes differ in which of them they fill in, and because a tag may have moved since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse(BTreeSet<String>);

impl InUse {
    /// Counts in the image that a container was made from.
    pub fn add_container(&mut self, container: &Container) {
        self.add(&container.image);
    }

    /// Counts in the images that are mounted in a container.
    pub fn add_status(&mut self, status: &ContainerStatus) {
        status.mounts.iter().filter_map(|mount| mount.image.as_ref()).for_each(|image| self.add(image));
    }

    fn add(&mut self, image: &ImageUse) {
        self.0.extend(image.names().map(str::to_owned));
    }

    /// Whether a container uses the image, by its id or any of its names.
    pub fn has(&self, image: &Image) -> bool {
        let names = image.tags.iter().chain(&image.digests).map(String::as_str);
        names.chain([image.id.as_str()]).any(|name| self.0.contains(name))
    }
}
