//! The layout itself.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// What all media types begin with.
const MEDIA: &str = "application/vnd.oci.image";
/// The annotation by which containerd names what it imports (`images.AnnotationImageName`).
const NAME: &str = "io.containerd.image.name";
/// The same for other tools (annotations.md of the image-spec): the tag alone.
const TAG: &str = "org.opencontainers.image.ref.name";

/// A file of an image. All files belong to root.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Absolute.
    pub path: &'a str,
    /// Its content.
    pub data: &'a [u8],
    /// Whether it is a program.
    pub is_program: bool,
}

/// How the files of an image are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// As they are: the quickest to import.
    Plain,
    /// Compressed by gzip: the smallest to transport.
    Compressed,
}

/// An image for one processor.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    /// As Go calls it: `amd64`, `arm64`.
    pub architecture: &'a str,
    /// What it consists of.
    pub files: Vec<File<'a>>,
    /// The program that a container runs.
    pub program: &'a str,
    /// Its arguments unless a container has others.
    pub arguments: &'a [&'a str],
    /// `org.opencontainers.image.` and a word, and what that is.
    pub labels: &'a [(&'a str, &'a str)],
}

/// The archive of an image with this name, such as `registry.local/plimsoll:1`: one for each processor, of which a node
/// takes its own.
///
/// # Errors
/// A path that tar cannot hold.
pub fn archive(name: &str, images: &[Image<'_>], layer: Layer) -> io::Result<Vec<u8>> {
    let mut blobs = Blobs::default();
    let manifests = images.iter().map(|image| image.manifest(layer, &mut blobs)).collect::<io::Result<Vec<_>>>()?;
    let mut entry = match <[Value; 1]>::try_from(manifests) {
        Ok([one]) => one,
        Err(all) => {
            let index = json!({"schemaVersion": 2, "mediaType": format!("{MEDIA}.index.v1+json"), "manifests": all});
            blobs.add("index.v1+json", index.to_string().into_bytes())
        }
    };
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    entry["annotations"] = json!({NAME: name, TAG: tag});
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
    let layout: [(&str, &[u8]); 2] =
        [("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#), ("index.json", index.as_bytes())];
    let files = layout.into_iter().map(|(path, data)| File { path, data, is_program: false });
    tar(&files.chain(blobs.files()).collect::<Vec<_>>())
}

impl Image<'_> {
    /// Adds its manifest with what that names, and gives the manifest's descriptor.
    fn manifest(&self, layer: Layer, blobs: &mut Blobs) -> io::Result<Value> {
        let Self { architecture, files, program, arguments, labels } = self;
        let archive = tar(files)?;
        let uncompressed = digest(&archive);
        let layer = match layer {
            Layer::Plain => blobs.add("layer.v1.tar", archive),
            Layer::Compressed => blobs.add("layer.v1.tar+gzip", gzip(&archive)?),
        };
        let labels: serde_json::Map<String, Value> = labels
            .iter()
            .map(|(word, text)| (format!("org.opencontainers.image.{word}"), Value::from(*text)))
            .collect();
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": [program], "Cmd": arguments, "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [uncompressed]},
        });
        let config = blobs.add("config.v1+json", config.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": format!("{MEDIA}.manifest.v1+json"),
            "config": config,
            "layers": [layer],
        });
        let mut descriptor = blobs.add("manifest.v1+json", manifest.to_string().into_bytes());
        descriptor["platform"] = json!({"architecture": architecture, "os": "linux"});
        Ok(descriptor)
    }
}

/// What is named by its digest, each once.
#[derive(Default)]
struct Blobs(Vec<(String, Vec<u8>)>);

impl Blobs {
    /// Adds one of this kind, and gives its descriptor.
    fn add(&mut self, kind: &str, data: Vec<u8>) -> Value {
        let digest = digest(&data);
        let descriptor = json!({"mediaType": format!("{MEDIA}.{kind}"), "digest": digest, "size": data.len()});
        let path = format!("blobs/{}", digest.replace(':', "/"));
        if self.0.iter().all(|(other, _)| *other != path) {
            self.0.push((path, data));
        }
        descriptor
    }

    fn files(&self) -> impl Iterator<Item = File<'_>> {
        self.0.iter().map(|(path, data)| File { path, data, is_program: false })
    }
}

fn digest(data: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(data) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Files that are no image, in an archive that is compressed by gzip.
///
/// # Errors
/// A path that tar cannot hold.
pub fn compressed(files: &[File<'_>]) -> io::Result<Vec<u8>> {
    gzip(&tar(files)?)
}

/// Without a time and a name, so that the same bytes give the same.
fn gzip(data: &[u8]) -> io::Result<Vec<u8>> {
    let mut writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    writer.write_all(data)?;
    writer.finish()
}

/// An archive of these files and the directories around them, all as old as each other.
fn tar(files: &[File<'_>]) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    let mut add = |path: &str, mode: u32, kind: EntryType, data: &[u8]| {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(mode);
        header.set_mtime(0);
        archive.append_data(&mut header, path, data)
    };
    let names: Vec<&str> = files.iter().map(|file| file.path.trim_start_matches('/')).collect();
    let around: BTreeSet<&str> =
        names.iter().flat_map(|name| name.match_indices('/').map(|(end, _)| &name[..end])).collect();
    for folder in around {
        add(&format!("{folder}/"), 0o755, EntryType::Directory, &[])?;
    }
    for (name, file) in names.iter().zip(files) {
        add(name, if file.is_program { 0o755 } else { 0o644 }, EntryType::Regular, file.data)?;
    }
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use super::*;

    const ONE: &str = "plimsoll.test/a:1";

    fn image<'a>(architecture: &'a str, program: &'a [u8]) -> Image<'a> {
        let text = File { path: "/sbom/a.json", data: b"{}", is_program: false };
        let files = vec![File { path: "/plimsoll", data: program, is_program: true }, text];
        Image { architecture, files, program: "/plimsoll", arguments: &["idle"], labels: &[("version", "1")] }
    }

    /// The files of an archive by their paths, with their modes.
    fn files(archive: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().expect("an archive").map(|entry| {
            let mut entry = entry.expect("an entry");
            let mut data = Vec::new();
            entry.read_to_end(&mut data).expect("its data");
            let mode = entry.header().mode().expect("its mode");
            (entry.path().expect("its path").display().to_string(), (mode, data))
        });
        entries.collect()
    }

    /// What a descriptor names, after its digest and size were compared.
    fn blob(files: &BTreeMap<String, (u32, Vec<u8>)>, descriptor: &Value) -> Vec<u8> {
        let named = descriptor["digest"].as_str().expect("a digest");
        let (_, data) = &files[&format!("blobs/{}", named.replace(':', "/"))];
        let size = descriptor["size"].as_u64().expect("a size");
        assert_eq!((digest(data), data.len() as u64), (named.to_owned(), size));
        data.clone()
    }

    fn read(data: &[u8]) -> Value {
        serde_json::from_slice(data).expect("JSON")
    }

    #[test]
    fn every_blob_is_named_by_its_digest_and_found_from_the_index() {
        let files = files(&archive(ONE, &[image("amd64", b"program")], Layer::Plain).expect("an archive"));
        let index = read(&files["index.json"].1);
        let entry = &index["manifests"][0];
        assert_eq!((&entry["annotations"][NAME], &entry["annotations"][TAG]), (&json!(ONE), &json!("1")));
        let manifest = read(&blob(&files, entry));
        let config = read(&blob(&files, &manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/plimsoll"]));
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.version"], "1");
        let layer = blob(&files, &manifest["layers"][0]);
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&layer));
        let inside = super::tests::files(&layer);
        assert_eq!(inside["plimsoll"], (0o755, b"program".to_vec()));
        assert_eq!((inside["sbom/"].0, inside["sbom/a.json"].0), (0o755, 0o644));
        // Two directories, two files of the layout, and three blobs.
        assert_eq!(files.len(), 7);
    }

    #[test]
    fn a_node_finds_the_image_of_its_processor() {
        let images = [image("amd64", b"one"), image("arm64", b"other")];
        let files = files(&archive(ONE, &images, Layer::Compressed).expect("an archive"));
        let index = read(&blob(&files, &read(&files["index.json"].1)["manifests"][0]));
        let manifests = index["manifests"].as_array().expect("a list");
        let platforms: Vec<_> = manifests.iter().map(|it| it["platform"]["architecture"].as_str()).collect();
        assert_eq!(platforms, [Some("amd64"), Some("arm64")]);
        for (manifest, program) in manifests.iter().zip([&b"one"[..], b"other"]) {
            let manifest = read(&blob(&files, manifest));
            let mut layer = Vec::new();
            let compressed = blob(&files, &manifest["layers"][0]);
            flate2::read::GzDecoder::new(&compressed[..]).read_to_end(&mut layer).expect("gzip");
            assert_eq!(read(&blob(&files, &manifest["config"]))["rootfs"]["diff_ids"][0], digest(&layer));
            assert_eq!(super::tests::files(&layer)["plimsoll"].1, program);
        }
    }

    #[test]
    fn the_same_files_give_the_same_bytes_and_others_others() {
        for layer in [Layer::Plain, Layer::Compressed] {
            let of = |program: &[u8]| archive(ONE, &[image("amd64", program)], layer).expect("an archive");
            assert_eq!(of(b"program"), of(b"program"));
            assert_ne!(of(b"program"), of(b"another"));
        }
    }
}
