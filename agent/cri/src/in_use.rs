//! Which images are in use.

use crate::images::forms;
use crate::listed::{Container, ContainerStatus, Image, ImageUse};
use std::collections::BTreeSet;

/// The names of all images that containers use, running or not, as root or as a volume, and of the one that sandboxes are made
/// from.
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
        status.mounted_images.iter().for_each(|image| self.add(image));
    }

    /// Counts in the image that sandboxes are made from, by its name as it was configured.
    pub fn add_sandbox_image(&mut self, name: &str) {
        self.0.insert(name.to_owned());
    }

    fn add(&mut self, image: &ImageUse) {
        self.0.extend(image.names().map(str::to_owned));
    }

    /// Whether the image is used, by its id or any of its names, however they are written.
    pub fn has(&self, image: &Image) -> bool {
        let names = image.tags.iter().chain(&image.digests).map(String::as_str);
        names.chain([image.id.as_str()]).flat_map(forms).any(|name| self.0.contains(name))
    }
}
