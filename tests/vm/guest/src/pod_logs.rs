//! Logs of pods on the machine's console, where they are also while the API server is stopped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// Where the kubelet keeps them, a directory for each pod: `NAMESPACE_NAME_UID`, with `CONTAINER/RESTARTS.log` in it.
const PLACE: &str = "/var/log/pods";

/// The pods of one namespace.
pub(crate) struct PodLogs {
    prefix: String,
    /// How far each file was printed.
    printed: BTreeMap<PathBuf, u64>,
}

impl PodLogs {
    /// Of which nothing was printed yet.
    pub(crate) fn of(namespace: &str) -> Self {
        Self { prefix: format!("{namespace}_"), printed: BTreeMap::new() }
    }

    /// Prints what is new, with the pod's name before each line, and gives whether one of the lines has this part. What
    /// cannot be read is left for the next time.
    pub(crate) fn print_new(&mut self, part: &str) -> bool {
        let mut is_found = false;
        for pod in entries(Path::new(PLACE)) {
            let name = pod.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(name) = name.strip_prefix(&self.prefix).and_then(|rest| rest.split('_').next()) else { continue };
            for log in entries(&pod).iter().flat_map(|container| entries(container)) {
                let from = self.printed.entry(log.clone()).or_default();
                if let Some(text) = after(&log, *from) {
                    *from += text.len() as u64;
                    text.lines().for_each(|line| println!("{name} | {line}"));
                    is_found |= text.contains(part);
                }
            }
        }
        is_found
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The whole lines of a file from there on.
fn after(log: &Path, from: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.truncate(text.rfind('\n')? + 1);
    Some(text)
}
