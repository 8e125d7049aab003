//! What `check` reports of a Kubernetes node: its container runtime, and the file systems that the disk signals are read
//! of. A runtime and a disk may hang, so that all of it has a time limit, and what did not answer in time is a row.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_config::{Configuration, Origin};
use plimsoll_cri::{FileSystems, Limits, Runtime, USUAL_SOCKETS, Version, socket_path};
use plimsoll_node::clock::monotonic;
use plimsoll_policy::kubelet::{DiskLayout, FsStats};
use plimsoll_storage::{DiskWatch, Disks, FileSystem, Roots, Slots, Warning, Worker, find};
use plimsoll_units::{Bytes, counted};
use tokio::time::timeout_at;

use super::{Row, bounded, row};
use crate::scanner::quotas::{self, Quotas};

/// All calls to the runtime together. On an emulated machine containerd took 4 s.
const RUNTIME_LIMIT: Duration = Duration::from_secs(4);
/// Everything that is asked of disks. A local disk answers in microseconds.
const DISK_LIMIT: Duration = Duration::from_secs(1);
/// One thread that finds the layout, and one for each of the file systems.
const DISK_THREADS: usize = 4;
/// Characters of what a runtime calls itself.
const NAME_CHARACTERS: usize = 64;

/// What is known of this machine as a node.
pub(super) struct NodeFacts {
    /// The configuration names a kubelet's, or where the kubelet or the runtime is.
    is_configured: bool,
    /// The runtime, or why none answers.
    runtime: Result<RuntimeFacts, String>,
    disks: DiskFacts,
}

/// What a runtime answered; in place of what it did not, why.
struct RuntimeFacts {
    socket: PathBuf,
    /// What named the socket; absent where it was found.
    origin: Option<String>,
    version: Option<Version>,
    sandboxes: Result<usize, String>,
    containers: Result<usize, String>,
    images: Result<usize, String>,
    file_systems: Result<FileSystems, String>,
}

/// The file systems, as far as they are known.
#[derive(Clone)]
enum DiskFacts {
    /// The kubelet's directory does not exist.
    NoKubelet(String),
    /// Nothing is known, and why.
    Unknown(String),
    Known {
        disks: Box<Disks>,
        /// Why only `nodefs` of these is known, if so.
        only_node: Option<String>,
        /// What is left on each, or why that is not known.
        left: Vec<(FileSystem, Result<FsStats, String>)>,
        /// What the kernel counts for volumes with projects of their own, or why the list of these is not believed.
        quotas: Result<Quotas, String>,
    },
}

impl NodeFacts {
    /// Asks the runtime and the disks. `names_kubelet`: a source of a kubelet's configuration is named.
    pub(super) fn gather(configuration: &Configuration, names_kubelet: bool) -> Self {
        let endpoint = configuration.runtime_endpoint();
        let is_configured = names_kubelet || endpoint.is_some() || configuration.machine.kubelet_root.is_some();
        let runtime = ask_runtime(endpoint, &USUAL_SOCKETS.map(|(_, path)| path), RUNTIME_LIMIT);
        let images = match &runtime {
            Ok(facts) => facts.file_systems.clone(),
            Err(_) => Err("no container runtime says where images are".to_owned()),
        };
        let root = configuration.kubelet_root();
        let name = root.display().to_string();
        let layout = move || layout(&root, &images, Path::new(quotas::LIST));
        Self { is_configured, runtime, disks: ask_disks(&name, DISK_LIMIT, layout) }
    }

    /// A machine that is no node.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        let [runtime, disks] = ["none", "none"].map(str::to_owned);
        Self { is_configured: false, runtime: Err(runtime), disks: DiskFacts::NoKubelet(disks) }
    }
}

/// Asks the runtime at the endpoint, or the one of these sockets that answers.
fn ask_runtime(
    endpoint: Option<(String, &Origin)>,
    sockets: &[impl AsRef<Path>],
    limit: Duration,
) -> Result<RuntimeFacts, String> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tokio.map_err(|error| error.to_string())?.block_on(async {
        let deadline = tokio::time::Instant::now() + limit;
        // One of several sockets that hangs leaves time for the others.
        let limits = Limits { read: limit * 3 / 4, ..Limits::default() };
        let connect = async {
            match &endpoint {
                Some((endpoint, _)) => Runtime::connect(socket_path(endpoint)?, limits).await,
                None => Runtime::find_among(sockets, limits).await,
            }
        };
        let mut runtime = in_time(deadline, connect).await.map_err(|why| match (why, &endpoint) {
            (Some(error), Some((_, origin))) => format!("{error} (named by {origin})"),
            (Some(error), None) => error.to_string(),
            (None, _) => {
                let tried: Vec<_> = sockets.iter().map(|socket| socket.as_ref().display().to_string()).collect();
                format!("no container runtime answers within {limit:?} at {}", tried.join(", "))
            }
        })?;
        let said = |error: Option<plimsoll_cri::Error>| error.map_or("no answer in time".into(), |it| it.to_string());
        // First what the disks depend on.
        let file_systems = in_time(deadline, runtime.file_systems()).await.map_err(said);
        let sandboxes = in_time(deadline, runtime.sandboxes()).await.map(|list| list.len()).map_err(said);
        let containers = in_time(deadline, runtime.containers()).await.map(|list| list.len()).map_err(said);
        let images = in_time(deadline, runtime.images()).await.map(|list| list.len()).map_err(said);
        Ok(RuntimeFacts {
            socket: runtime.socket().to_owned(),
            origin: endpoint.map(|(_, origin)| origin.to_string()),
            version: runtime.version().cloned(),
            sandboxes,
            containers,
            images,
            file_systems,
        })
    })
}

/// The answer, or the error; none where it was too late.
async fn in_time<T>(
    deadline: tokio::time::Instant,
    call: impl Future<Output = Result<T, plimsoll_cri::Error>>,
) -> Result<T, Option<plimsoll_cri::Error>> {
    match timeout_at(deadline, call).await {
        Ok(answer) => answer.map_err(Some),
        Err(_) => Err(None),
    }
}

/// Asks for the layout and for what is left, in threads that may hang. They end with this process.
fn ask_disks(root: &str, limit: Duration, layout: impl FnMut() -> DiskFacts + Send + 'static) -> DiskFacts {
    let (slots, deadline) = (Slots::new(DISK_THREADS), Instant::now() + limit);
    let worker = match Worker::start(&slots, root, layout) {
        Ok(worker) => worker,
        Err(error) => return DiskFacts::Unknown(error.to_string()),
    };
    worker.ask(monotonic());
    wait(deadline, || worker.outstanding(monotonic()).is_none());
    match worker.answer(monotonic(), Duration::MAX) {
        Some((_, DiskFacts::Known { disks, only_node, quotas, .. })) => {
            DiskFacts::Known { left: left(&disks, &slots, deadline), disks, only_node, quotas }
        }
        Some((_, unknown)) => unknown,
        None => DiskFacts::Unknown(format!("{root}, or where images are, does not answer within {limit:?}")),
    }
}

/// Which file systems there are, without what is left, and what the kernel counts for volumes with projects that are in the
/// list. May hang.
fn layout(root: &Path, images: &Result<FileSystems, String>, projects: &Path) -> DiskFacts {
    let node = match find(Roots { kubelet: root, images: root, containers: None }) {
        Ok(disks) => disks,
        Err(error) if error.is_not_found() => return DiskFacts::NoKubelet(error.to_string()),
        Err(error) => return DiskFacts::Unknown(error.to_string()),
    };
    let all = images.as_ref().map_err(String::clone).and_then(|FileSystems { images, containers }| {
        let images = images.first().ok_or("the container runtime names no file system of images")?;
        let containers = containers.first().map(|fs| fs.directory.as_path());
        find(Roots { kubelet: root, images: &images.directory, containers }).map_err(|error| error.to_string())
    });
    let (disks, only_node) = all.map_or_else(|why| (node, Some(why)), |disks| (disks, None));
    let quotas = quotas::read(projects, root).map_err(|error| format!("{}: {error}", projects.display()));
    DiskFacts::Known { disks: Box::new(disks), only_node, left: Vec::new(), quotas }
}

fn left(disks: &Disks, slots: &Slots, deadline: Instant) -> Vec<(FileSystem, Result<FsStats, String>)> {
    let watch = match DiskWatch::start(disks.clone(), slots) {
        Ok(watch) => watch,
        Err(error) => {
            let all = [&disks.node, &disks.image, &disks.container];
            return all.map(|fs| (fs.clone(), Err(error.to_string()))).into();
        }
    };
    watch.ask(monotonic());
    wait(deadline, || watch.states(monotonic()).all(|state| state.outstanding.is_none()));
    let states = watch.states(monotonic()).map(|state| {
        let answer = state.answer.map(|(_, answer)| answer.map_err(|trouble| trouble.to_string()));
        (state.fs.clone(), answer.unwrap_or_else(|| Err("it does not answer".to_owned())))
    });
    states.collect()
}

/// Waits until it is done, or late.
fn wait(deadline: Instant, is_done: impl Fn() -> bool) {
    while !is_done() && Instant::now() < deadline {
        sleep(Duration::from_millis(1));
    }
}

/// On a machine that is no node, one row that is in order.
pub(super) fn rows(facts: &NodeFacts) -> Vec<Row> {
    let is_node = facts.is_configured || !matches!(facts.disks, DiskFacts::NoKubelet(_));
    let mut rows = vec![runtime_row(&facts.runtime, is_node)];
    if is_node {
        rows.extend(disk_rows(&facts.disks));
    }
    for row in &mut rows {
        row.found = bounded(&row.found);
    }
    rows
}

fn runtime_row(runtime: &Result<RuntimeFacts, String>, is_node: bool) -> Row {
    let name = "container runtime";
    let RuntimeFacts { socket, origin, version, sandboxes, containers, images, file_systems: _ } = match runtime {
        Ok(facts) => facts,
        Err(_) if !is_node => return row(name, true, "none, and no kubelet", ""),
        Err(why) => {
            let advice = "names, containers and images of pods are not known, nor which disk is imagefs: start the \
                          runtime, or set machine.runtimeSocket to the one that the kubelet uses";
            return row(name, false, why.clone(), advice);
        }
    };
    let of_runtime = |of: fn(&Version) -> &String| -> String {
        version.as_ref().map(of).into_iter().flat_map(|text| text.chars().take(NAME_CHARACTERS)).collect()
    };
    let (runtime, version) = (of_runtime(|it| &it.runtime), of_runtime(|it| &it.version));
    let origin = origin.as_ref().map_or_else(|| "found".to_owned(), |origin| format!("named by {origin}"));
    let lists =
        [(sandboxes, "sandbox", "sandboxes"), (containers, "container", "containers"), (images, "image", "images")];
    let texts = lists.map(|(list, one, many)| match list {
        Ok(count) => counted(*count, one, many).to_string(),
        Err(why) => format!("{many}: {why}"),
    });
    let is_good = lists.iter().all(|(list, ..)| list.is_ok());
    let found = format!("{runtime} {version} at {}, {origin}: {}", socket.display(), texts.join(", "));
    row(name, is_good, found, "what it does not list is not known of pods: its own log may say why")
}

fn disk_rows(facts: &DiskFacts) -> Vec<Row> {
    let name = "disk layout";
    match facts {
        DiskFacts::NoKubelet(why) => {
            let advice = "no signal of a disk can be read: set machine.kubeletRoot to the kubelet's --root-dir";
            vec![row(name, false, why.clone(), advice)]
        }
        DiskFacts::Unknown(why) => vec![row(name, false, why.clone(), "no signal of a disk can be read")],
        DiskFacts::Known { disks, only_node: Some(why), left, quotas } => {
            let advice = "imagefs and containerfs have no signals: the runtime has to answer";
            let layout = row(name, false, format!("only nodefs is known: {why}"), advice);
            [layout, disk_row("nodefs", disks, left)].into_iter().chain(quotas_row(quotas)).collect()
        }
        DiskFacts::Known { disks, only_node: None, left, quotas } => {
            let unsupported = disks.warnings.iter().find(|warning| !matches!(warning, Warning::UnknownType { .. }));
            let found = match (unsupported, disks.layout) {
                (Some(warning), _) => warning.to_string(),
                (None, DiskLayout::Single) => "one file system for everything".to_owned(),
                (None, DiskLayout::DedicatedImageFs) => {
                    "dedicated imagefs: images and writable layers on one of their own".to_owned()
                }
                (None, DiskLayout::SplitImageFs) => {
                    "split: images on one of their own, writable layers on nodefs".to_owned()
                }
            };
            let advice = "writable layers belong with images, or on the kubelet's file system with images elsewhere \
                          (KEP-4191)";
            let layout = row(name, unsupported.is_none(), found, advice);
            let each = ["nodefs", "imagefs", "containerfs"].map(|role| disk_row(role, disks, left));
            [layout].into_iter().chain(each).chain(quotas_row(quotas)).collect()
        }
    }
}

fn disk_row(role: &'static str, disks: &Disks, left: &[(FileSystem, Result<FsStats, String>)]) -> Row {
    let fs = match role {
        "nodefs" => &disks.node,
        "imagefs" => &disks.image,
        _ => &disks.container,
    };
    let FileSystem { device, mount_point, fs_type, source, measured_at: _ } = fs;
    let place = format!(
        "{} ({}:{}, {fs_type}) at {}",
        source.to_string_lossy(),
        device.major,
        device.minor,
        mount_point.display()
    );
    let stats = left.iter().find(|(other, _)| other.is(fs)).map(|(_, stats)| stats.as_ref());
    match stats {
        Some(Ok(stats)) => {
            let is_unknown = disks
                .warnings
                .iter()
                .any(|warning| matches!(warning, Warning::UnknownType { role: of, .. } if *of == role));
            let advice = "the kubelet knows no file system of this type, and evicts nothing for the disks of this node";
            row(role, !is_unknown, format!("{place}: {}", amounts(stats)), advice)
        }
        Some(Err(why)) => row(role, false, format!("{place}: {why}"), "its signals are absent until it answers"),
        None => row(role, false, place, "its signals are absent"),
    }
}

/// Of how many volumes with projects of their own, all of which are on nodefs, the kernel's figures are known.
fn quotas_row(quotas: &Result<Quotas, String>) -> Option<Row> {
    let (is_good, found) = match quotas {
        Ok(Quotas { listed: 0, .. }) => return None,
        Ok(Quotas { listed, figures, refused }) => {
            let volumes = counted(*listed, "volume of a pod", "volumes of pods");
            let found = match refused {
                Some(errno) => {
                    format!("{volumes} in {}, and the kernel gives this process no figures: {errno}", quotas::LIST)
                }
                None => format!("read of {} of {volumes} in {}", figures.len(), quotas::LIST),
            };
            (refused.is_none(), found)
        }
        Err(why) => (false, why.clone()),
    };
    let advice = "volumes are scanned, without files that are removed and still open: a list in order, CAP_SYS_ADMIN and \
                  quotactl_fd(2) of Linux 5.14 are needed";
    Some(row("project quotas", is_good, found, advice))
}

/// What is left of what; a file system may count no blocks or no inodes.
fn amounts(FsStats { available, capacity, inodes_free, inodes, time: _ }: &FsStats) -> String {
    let bytes = match available.zip(*capacity) {
        Some((available, capacity)) => format!("{} of {} available", Bytes(available), Bytes(capacity)),
        None => "bytes are not counted".to_owned(),
    };
    let inodes = match inodes_free.zip(*inodes) {
        Some((free, inodes)) => format!("{free} of {inodes} inodes free"),
        None => "inodes are not counted".to_owned(),
    };
    format!("{bytes}, {inodes}")
}

#[cfg(test)]
mod tests;
