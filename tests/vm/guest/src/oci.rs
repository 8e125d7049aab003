//! An image with one program as its only file: an OCI image layout (image-spec, image-layout.md) in a tar archive, as
//! `ctr images import` takes it. The same program gives the same bytes.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::Path;
use tar::{Builder, Header};

/// Where the program is in the image.
pub(crate) const PROGRAM: &str = "/plimsoll-guest";

/// What all media types begin with.
const MEDIA: &str = "application/vnd.oci.image";
/// The annotation by which containerd names what it imports (`images.AnnotationImageName`).
const NAME: &str = "io.containerd.image.name";

/// Writes the archive of an image with this name, which runs this program with these arguments unless a container has
/// others.
pub(crate) fn write(path: &Path, name: &str, program: &[u8], arguments: &[&str]) -> Result<()> {
    let archive = archive(name, program, arguments)?;
    std::fs::write(path, archive).with_context(|| format!("cannot write {}", path.display()))
}

fn archive(name: &str, program: &[u8], arguments: &[&str]) -> Result<Vec<u8>> {
    let layer = tar([(PROGRAM, program)])?;
    let (layer_digest, layer_bytes) = (digest(&layer), layer.len());
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [PROGRAM], "Cmd": arguments},
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": format!("{MEDIA}.manifest.v1+json"),
        "config": descriptor("config.v1+json", &digest(&config), config.len()),
        "layers": [descriptor("layer.v1.tar", &layer_digest, layer_bytes)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut entry = descriptor("manifest.v1+json", &digest(&manifest), manifest.len());
    entry["annotations"] = json!({NAME: name});
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
    let blob = |digest: &str| format!("blobs/{}", digest.replace(':', "/"));
    tar([
        ("oci-layout", &br#"{"imageLayoutVersion":"1.0.0"}"#[..]),
        ("index.json", index.as_bytes()),
        (&blob(&digest(&config)), &config),
        (&blob(&digest(&manifest)), &manifest),
        (&blob(&layer_digest), &layer),
    ])
}

fn descriptor(kind: &str, digest: &str, bytes: usize) -> Value {
    json!({"mediaType": format!("{MEDIA}.{kind}"), "digest": digest, "size": bytes})
}

fn digest(data: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(data) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// An archive of these files, which belong to root and are as old as all others.
fn tar<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for (name, data) in files {
        let mut header = Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o755);
        header.set_mtime(0);
        archive.append_data(&mut header, name.trim_start_matches('/'), data)?;
    }
    Ok(archive.into_inner()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read as _;

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            (entry.path().unwrap().display().to_string(), data)
        });
        entries.collect()
    }

    #[test]
    fn every_blob_is_named_by_its_digest_and_found_from_the_index() {
        let files = files(&archive("plimsoll.test/a:1", b"program", &["idle"]).unwrap());
        let blob = |descriptor: &Value| {
            let named = descriptor["digest"].as_str().unwrap();
            let data = &files[&format!("blobs/{}", named.replace(':', "/"))];
            assert_eq!((digest(data), data.len() as u64), (named.to_owned(), descriptor["size"].as_u64().unwrap()));
            data.clone()
        };
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        assert_eq!(index["manifests"][0]["annotations"][NAME], "plimsoll.test/a:1");
        let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])).unwrap();
        let config: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        assert_eq!(config["config"], json!({"Entrypoint": [PROGRAM], "Cmd": ["idle"]}));
        let layer = blob(&manifest["layers"][0]);
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&layer));
        assert_eq!(super::tests::files(&layer)["plimsoll-guest"], b"program");
        assert_eq!(files.len(), 5);
    }

    #[test]
    fn the_same_program_gives_the_same_bytes_and_another_one_others() {
        let of = |program: &[u8]| archive("plimsoll.test/a:1", program, &[]).unwrap();
        assert_eq!(of(b"program"), of(b"program"));
        assert_ne!(of(b"program"), of(b"another"));
    }
}
