//! Where runtimes listen.

use crate::connection::Limits;
use crate::dial::{self, Dial};
use crate::error::Error;
use crate::runtime::Runtime;
use std::path::{Path, PathBuf};

/// Where runtimes listen unless configured otherwise. containerd's is what a kubelet takes without configuration
/// (`SetDefaults_KubeletConfiguration`); k3s and RKE2 bring a containerd of their own; CRI-O's is where crictl looks
/// (`defaultRuntimeEndpoints` in cri-tools' `cmd/crictl`). `/var/run`, which some documents name, is a link to `/run`.
///
/// Not cri-dockerd's: the service manager listens there (`cri-docker.socket`), so that to connect is to start it. Where it is
/// the runtime, it has to be named.
pub const USUAL_SOCKETS: [(&str, &str); 3] = [
    ("containerd", "/run/containerd/containerd.sock"),
    ("k3s", "/run/k3s/containerd/containerd.sock"),
    ("CRI-O", "/run/crio/crio.sock"),
];

pub(crate) fn usual() -> String {
    USUAL_SOCKETS.map(|(runtime, path)| format!("{path} ({runtime})")).join(", ")
}

/// The path in an endpoint as kubelets write it: `unix:///run/crio/crio.sock`, or the path alone.
pub fn socket_path(endpoint: &str) -> Result<PathBuf, Error> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if path.starts_with('/') { Ok(path.into()) } else { Err(Error::Endpoint { text: endpoint.to_owned() }) }
}

impl Runtime {
    /// The runtime behind one of these sockets. A kubelet does not search, and kubeadm refuses to guess between two
    /// (`DetectCRISocket`); so does this: where several answer it is an error, because Docker brings a containerd that
    /// the kubelet may not use. Takes [`Limits::read`] for each socket at most.
    pub async fn find_among(sockets: &[impl AsRef<Path>], limits: Limits) -> Result<Self, Error> {
        Self::find_through(sockets, limits, &dial::by_this_process()).await
    }

    /// The same, over connections that are made so.
    pub async fn find_through(sockets: &[impl AsRef<Path>], limits: Limits, dial: &Dial) -> Result<Self, Error> {
        let (mut found, mut tried) = (Vec::new(), Vec::new());
        for socket in sockets {
            match Self::at(socket.as_ref(), limits).through(dial.clone()).answering().await {
                Ok(runtime) => found.push(runtime),
                Err(Error::Connect { source, .. }) => tried.push(format!("{} ({source})", quoted(socket.as_ref()))),
                Err(error) => tried.push(error.to_string()),
            }
        }
        match (found.pop(), found.as_slice()) {
            (Some(runtime), []) => Ok(runtime),
            (Some(last), others) => {
                let sockets: Vec<_> = others.iter().chain([&last]).map(|it| quoted(it.socket())).collect();
                Err(Error::Ambiguous { found: sockets.join(", ") })
            }
            (None, _) => Err(Error::NotFound { tried: tried.join(", ") }),
        }
    }
}

/// A path as people can read it, whatever is in it.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_path_with_or_without_its_scheme() {
        for (endpoint, path) in [
            ("unix:///run/crio/crio.sock", Some("/run/crio/crio.sock")),
            ("/run/crio/crio.sock", Some("/run/crio/crio.sock")),
            ("unix://run/crio.sock", None),
            ("tcp://127.0.0.1:1234", None),
            ("run/crio.sock", None),
            ("", None),
        ] {
            let found = socket_path(endpoint);
            assert_eq!(found.as_deref().ok(), path.map(Path::new), "{endpoint}");
        }
    }
}
