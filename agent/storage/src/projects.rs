//! Which volumes have a project of their own, by the list that root keeps of projects and their directories (projects(5)), in
//! which the kubelet writes what it assigns (`createProjectID`, pkg/volume/util/fsquota/project.go).

use crate::pod::VolumeKind;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// A longer list is not believed, as one with more projects is not: a project that several directories share may be named
/// again in what was not read.
const MOST_BYTES: u64 = 1 << 20;
/// The same.
const MOST_PROJECTS: usize = 4096;
/// The longest name of a volume, and UID of a pod: that of an object's label (RFC 1123).
const MOST_OF_A_NAME: usize = 63;

/// An `emptyDir` that is named as the only directory of a project. Whether it has that project the kernel knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeProject {
    /// The project's number.
    pub number: u32,
    /// The pod's UID, as its directory has it.
    pub pod: String,
    /// The volume's name.
    pub volume: String,
}

/// The volumes of pods in this directory (`ROOT/pods`) that `list` names, by the project's number. What several lines name
/// as the directory of one project is left out, since the kernel counts for all of them together.
///
/// # Errors
/// Where the list cannot be read, and [`io::ErrorKind::FileTooLarge`] where it is longer than 1 MiB or has more than 4,096
/// projects.
pub fn volume_projects(list: impl Read, pods: &Path) -> io::Result<Vec<VolumeProject>> {
    let mut text = Vec::new();
    if list.take(MOST_BYTES + 1).read_to_end(&mut text)? as u64 > MOST_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut volumes: BTreeMap<u32, Option<VolumeProject>> = BTreeMap::new();
    for (number, directory) in text.split(|byte| *byte == b'\n').filter_map(parse) {
        let named = || volume(directory, pods).map(|(pod, volume)| VolumeProject { number, pod, volume });
        volumes.entry(number).and_modify(|shared| *shared = None).or_insert_with(named);
        if volumes.len() > MOST_PROJECTS {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
    Ok(volumes.into_values().flatten().collect())
}

/// A line `NUMBER:DIRECTORY`. Comments have no number, and zero is what all files have that were given none.
fn parse(line: &[u8]) -> Option<(u32, &Path)> {
    let (digits, directory) = line.split_at(line.iter().position(|byte| *byte == b':')?);
    let number = str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some((number.parse().ok().filter(|number| *number > 0)?, Path::new(OsStr::from_bytes(&directory[1..]))))
}

/// The pod and the name of an `emptyDir` by its directory.
fn volume(directory: &Path, pods: &Path) -> Option<(String, String)> {
    let names = directory.strip_prefix(pods).ok()?.components().map(|component| match component {
        Component::Normal(name) => name.to_str().filter(|name| name.len() <= MOST_OF_A_NAME),
        _ => None,
    });
    match names.collect::<Option<Vec<_>>>()?[..] {
        [pod, "volumes", plugin, volume] if plugin == VolumeKind::EmptyDir.plugin() => {
            Some((pod.to_owned(), volume.to_owned()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: &str = "/var/lib/kubelet/pods";

    fn read(list: &[u8]) -> io::Result<Vec<(u32, String)>> {
        let found = volume_projects(list, Path::new(PODS))?;
        Ok(found.into_iter().map(|it| (it.number, format!("{}/{}", it.pod, it.volume))).collect())
    }

    fn line(number: &str, pod: &str, volume: &str) -> String {
        format!("{number}:{PODS}/{pod}/volumes/kubernetes.io~empty-dir/{volume}\n")
    }

    #[test]
    fn volumes_of_pods_are_found_whatever_else_is_in_the_list() {
        let mut list =
            b"# 5:/var/lib/kubelet\n\n:\n::\n7\n7:\n-1:/a\n+8:/a\n99999999999:/a\n9:\xff\xfe\n\xff:/a\n\0\n".to_vec();
        list.extend_from_slice(line("1048577", "a-1", "data").as_bytes());
        list.extend_from_slice(line("1048578", "a-1", "logs").as_bytes());
        for other in [
            // That of all that has no project.
            line("0", "a-2", "data"),
            line("11", "a-2", "data/below"),
            line("12", "..", "data"),
            line("13", "a-2", ".."),
            line("14", "a-2", ""),
            line("15", &"a".repeat(64), "data"),
            line("16", "a-2", &"v".repeat(64)),
            format!("17:{PODS}/a-2/volumes/kubernetes.io~configmap/data\n"),
            format!("18:{PODS}2/a-2/volumes/kubernetes.io~empty-dir/data\n"),
            "19:a-2/volumes/kubernetes.io~empty-dir/data\n".to_owned(),
        ] {
            list.extend_from_slice(other.as_bytes());
        }
        // The last line has no end.
        list.extend_from_slice(line("20", "b", "data").trim_end().as_bytes());
        let expected =
            [(20, "b/data"), (1_048_577, "a-1/data"), (1_048_578, "a-1/logs")].map(|(n, it)| (n, it.to_owned()));
        assert_eq!(read(&list).expect("it can be read"), expected);
    }

    #[test]
    fn a_project_that_several_directories_share_is_that_of_none() {
        let own = line("5", "a", "one");
        for shared in [line("6", "a", "two") + &line("6", "a", "three"), line("6", "a", "two") + "6:/home\n06:/home\n"]
        {
            assert_eq!(read((own.clone() + &shared).as_bytes()).expect("it can be read"), [(5, "a/one".to_owned())]);
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_not_believed_as_far_as_it_was_read() {
        let refused = |list: &[u8]| read(list).expect_err("it is too long").kind();
        let volume = line("5000", "a", "one");
        let most: Vec<String> = (1..MOST_PROJECTS).map(|number| format!("{number}:/a\n")).collect();
        let most = most.concat();
        assert_eq!(read((volume.clone() + &most).as_bytes()).expect("it fits").len(), 1);
        assert_eq!(refused((volume.clone() + &most + "6000:/a\n").as_bytes()), io::ErrorKind::FileTooLarge);
        let mut bytes = volume.into_bytes();
        bytes.resize(usize::try_from(MOST_BYTES).expect("a mebibyte"), b'\n');
        assert_eq!(read(&bytes).expect("it fits").len(), 1);
        bytes.push(b'\n');
        assert_eq!(refused(&bytes), io::ErrorKind::FileTooLarge);
    }
}
