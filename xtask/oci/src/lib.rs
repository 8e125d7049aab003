//! Images of containers: OCI image layouts (image-spec, image-layout.md) in a tar archive, as `ctr images import` and
//! `skopeo copy oci-archive:` take them. No container engine makes them, and the same files give the same bytes.

#![forbid(unsafe_code)]

mod agent;
mod archive;

pub use agent::{Agent, NAME, agent};
pub use archive::{File, Image, Layer, archive, compressed};
