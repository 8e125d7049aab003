//! The image of the agent.

use std::io;

use crate::archive::{File, Image, Layer, archive};

/// Its name without a tag, as `agent/deploy/kustomize` has it.
pub const NAME: &str = "plimsoll.dev/plimsoll";
/// Where the program is in it.
const PROGRAM: &str = "/usr/bin/plimsoll";
/// Where its SBOMs are, each under its own name.
const SBOMS: &str = "/usr/share/plimsoll/sbom";

/// The agent for one processor.
#[derive(Clone, Debug)]
pub struct Agent<'a> {
    /// As Go calls the processor: `amd64`, `arm64`.
    pub architecture: &'a str,
    /// The static program.
    pub program: &'a [u8],
    /// Its SBOMs by their names.
    pub sboms: Vec<(String, &'a [u8])>,
}

/// The archive of the agent's image with this version as its tag. There is nothing in it but the program and its SBOMs.
///
/// # Errors
/// As of [`archive`].
pub fn agent(version: &str, agents: &[Agent<'_>], layer: Layer) -> io::Result<Vec<u8>> {
    let labels = [("title", "plimsoll"), ("version", version), ("licenses", "Apache-2.0 OR MIT")];
    let places: Vec<Vec<String>> =
        agents.iter().map(|agent| agent.sboms.iter().map(|(name, _)| format!("{SBOMS}/{name}")).collect()).collect();
    let images: Vec<Image<'_>> = agents
        .iter()
        .zip(&places)
        .map(|(agent, places)| {
            let program = File { path: PROGRAM, data: agent.program, is_program: true };
            let sboms = places.iter().zip(&agent.sboms);
            let sboms = sboms.map(|(path, (_, data))| File { path, data, is_program: false });
            Image {
                architecture: agent.architecture,
                files: [program].into_iter().chain(sboms).collect(),
                program: PROGRAM,
                arguments: &["run"],
                labels: &labels,
            }
        })
        .collect();
    archive(&format!("{NAME}:{version}"), &images, layer)
}
