//! Where the API server is, by what it is trusted, and what it is shown.

use crate::error::{AccessError, chain};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use core::fmt;
use http::HeaderValue;
use http::uri::{Authority, Uri};
use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError};
use rustix::fs::{Mode, OFlags, openat};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use secrecy::ExposeSecret;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a pod finds the token and the authority of its service account (Accessing the Kubernetes API from a Pod).
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN: &str = "token";
const AUTHORITY: &str = "ca.crt";
/// The longest of these files, in bytes: a token has one or two KiB, an authority a few certificates.
const MOST_BYTES: u64 = 1 << 20;
/// The variables in which a kubelet says where the API server is.
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";
/// What a kubeconfig's server means without a port.
const HTTPS: u16 = 443;

/// Where the API server is, by what it is trusted, and what it is shown. Nothing of the last is printed.
pub struct Access {
    host: String,
    port: u16,
    /// By which its certificate is checked.
    server: ServerName<'static>,
    identity: Identity,
}

enum Identity {
    /// Of a kubeconfig, as it was read.
    Kubeconfig { tls: Arc<ClientConfig>, token: Option<HeaderValue> },
    /// The directory of a service account, whose files a kubelet replaces: the token before it expires.
    ServiceAccount(OwnedFd),
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Access {
    /// By a kubeconfig's current context, whose files are read now. A program or a provider that gets credentials, a proxy, a
    /// password and a server that is not checked are refused.
    pub fn of_kubeconfig(path: &Path) -> Result<Self, AccessError> {
        let refused = |why: String| AccessError::Kubeconfig { path: path.to_owned(), why };
        let kubeconfig = Kubeconfig::read_from(path).map_err(|error| match error {
            // The path stands before it already.
            KubeconfigError::ReadConfig(error, _) => refused(format!("it cannot be read: {error}")),
            error => refused(chain(&error)),
        })?;
        let (cluster, user) = current(kubeconfig).map_err(refused)?;
        let server = cluster.server.as_deref().ok_or_else(|| refused("its cluster has no server".into()))?;
        let (host, port) = address(server).map_err(refused)?;
        let name = cluster.tls_server_name.clone().unwrap_or_else(|| host.clone());
        let authority =
            content(cluster.certificate_authority_data.as_deref(), cluster.certificate_authority.as_deref())?;
        let authority = authority.ok_or_else(|| refused("its cluster has no certificate-authority".into()))?;
        let certificate = content(user.client_certificate_data.as_deref(), user.client_certificate.as_deref())?;
        let key_data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
        let key = content(key_data, user.client_key.as_deref())?;
        let token = user.token.as_ref().map(|token| bearer(token.expose_secret())).transpose()?;
        let certificate = match (certificate, key, &token) {
            (Some(certificate), Some(key), _) => Some((certificate, key)),
            (None, None, Some(_)) => None,
            (None, None, None) => return Err(refused("its user has neither a token nor a client certificate".into())),
            _ => return Err(refused("its user has a client certificate without a key, or a key alone".into())),
        };
        let tls = Arc::new(tls(&authority, certificate)?);
        Self::new(host, port, &name, Identity::Kubeconfig { tls, token })
    }

    /// By the service account in this directory, [`SERVICE_ACCOUNT`] opened by a process that sees it, and by the two variables
    /// of a pod.
    pub fn in_cluster(
        directory: OwnedFd,
        variable: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Self, AccessError> {
        let set = |name| {
            let missing = AccessError::Environment { variable: name, why: "is not set" };
            variable(name).filter(|text| !text.is_empty()).ok_or(missing)
        };
        let host = set(HOST)?;
        let port = set(PORT)?.parse().map_err(|_| AccessError::Environment { variable: PORT, why: "is no port" })?;
        Self::new(host.clone(), port, &host, Identity::ServiceAccount(directory))
    }

    fn new(host: String, port: u16, name: &str, identity: Identity) -> Result<Self, AccessError> {
        let server = ServerName::try_from(name.to_owned()).map_err(|error| AccessError::Certificate {
            what: "the name that the API server's certificate is checked by",
            why: format!("{name:?}: {error}"),
        })?;
        Ok(Self { host, port, server, identity })
    }

    /// Its address, which is looked up where it is a name: while a resolver can be asked.
    pub fn resolve(&self) -> Result<SocketAddr, AccessError> {
        let failed = |source| AccessError::Name { host: self.host.clone(), source };
        let mut found = (self.host.as_str(), self.port).to_socket_addrs().map_err(failed)?;
        found.next().ok_or_else(|| failed(io::Error::from(io::ErrorKind::NotFound)))
    }

    /// The directory whose files it reads while it runs.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        match &self.identity {
            Identity::Kubeconfig { .. } => None,
            Identity::ServiceAccount(directory) => Some(directory.as_fd()),
        }
    }

    pub(crate) fn server(&self) -> ServerName<'static> {
        self.server.clone()
    }

    pub(crate) fn authority(&self) -> Result<Authority, http::Error> {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        Ok(Authority::try_from(format!("{host}:{}", self.port))?)
    }

    /// For the next connection.
    pub(crate) fn tls(&self) -> Result<Arc<ClientConfig>, AccessError> {
        match &self.identity {
            Identity::Kubeconfig { tls, .. } => Ok(Arc::clone(tls)),
            Identity::ServiceAccount(directory) => Ok(Arc::new(tls(&read(directory, AUTHORITY)?, None)?)),
        }
    }

    /// The header that says which user this is, read anew where it comes from a file; absent with a certificate.
    pub(crate) fn bearer(&self) -> Result<Option<HeaderValue>, AccessError> {
        match &self.identity {
            Identity::Kubeconfig { token, .. } => Ok(token.clone()),
            Identity::ServiceAccount(directory) => {
                let bytes = read(directory, TOKEN)?;
                let not_text = |_| certificate("the token", "it is no text");
                core::str::from_utf8(&bytes).map_err(not_text).and_then(bearer).map(Some)
            }
        }
    }
}

fn certificate(what: &'static str, why: &(impl ToString + ?Sized)) -> AccessError {
    AccessError::Certificate { what, why: why.to_string() }
}

fn read(directory: &OwnedFd, name: &str) -> Result<Vec<u8>, AccessError> {
    let failed = |source| AccessError::Read { path: Path::new(SERVICE_ACCOUNT).join(name), source };
    // A FIFO must not keep it waiting.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = openat(directory, name, how, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let mut bytes = Vec::new();
    File::from(file).take(MOST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// What a kubeconfig has in itself or in a file.
fn content(data: Option<&str>, file: Option<&str>) -> Result<Option<Vec<u8>>, AccessError> {
    match (data, file) {
        (Some(data), _) => {
            let decoded = STANDARD.decode(data.trim());
            decoded.map(Some).map_err(|error| certificate("what a kubeconfig has as base64", &error))
        }
        (None, Some(file)) => {
            let failed = |source| AccessError::Read { path: PathBuf::from(file), source };
            std::fs::read(file).map(Some).map_err(failed)
        }
        (None, None) => Ok(None),
    }
}

fn bearer(token: &str) -> Result<HeaderValue, AccessError> {
    let header = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    let mut header = header.map_err(|_| certificate("the token", "it has characters that no token has"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// TLS 1.3 and HTTP/2, as every API server speaks them.
fn tls(authority: &[u8], own: Option<(Vec<u8>, Vec<u8>)>) -> Result<ClientConfig, AccessError> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(authority) {
        let added =
            root.map_err(|error| error.to_string()).and_then(|root| roots.add(root).map_err(|error| error.to_string()));
        added.map_err(|why| certificate("the API server's certificate authority", &why))?;
    }
    if roots.is_empty() {
        return Err(certificate("the API server's certificate authority", "there is no certificate in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| certificate("TLS 1.3", &error))?
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>();
            let chain = chain.map_err(|error| certificate("the client certificate", &error))?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| certificate("the client key", &error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| certificate("the client certificate", &error))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// The cluster and the user of the current context.
fn current(kubeconfig: Kubeconfig) -> Result<(Cluster, AuthInfo), String> {
    let Kubeconfig { clusters, auth_infos, contexts, current_context, .. } = kubeconfig;
    let name = current_context.ok_or("it has no current-context")?;
    let context = contexts.into_iter().find(|it| it.name == name).and_then(|it| it.context);
    let context = context.ok_or_else(|| format!("it has no context {name:?}"))?;
    let cluster = clusters.into_iter().find(|it| it.name == context.cluster).and_then(|it| it.cluster);
    let cluster = cluster.ok_or_else(|| format!("it has no cluster {:?}", context.cluster))?;
    let user = context.user.unwrap_or_default();
    let user = auth_infos.into_iter().find(|it| it.name == user).and_then(|it| it.auth_info);
    let user = user.ok_or_else(|| format!("it has no user of the context {name:?}"))?;
    for (is_set, what) in [
        (cluster.insecure_skip_tls_verify == Some(true), "insecure-skip-tls-verify"),
        (cluster.proxy_url.is_some(), "proxy-url"),
        (user.exec.is_some(), "exec"),
        (user.auth_provider.is_some(), "auth-provider"),
        (user.token_file.is_some(), "tokenFile"),
        (user.username.is_some() || user.password.is_some(), "username and password"),
        (user.impersonate.is_some(), "act-as"),
    ] {
        if is_set {
            return Err(format!("{what} is not supported; expected a client certificate or a token"));
        }
    }
    Ok((cluster, user))
}

/// Host and port of `https://host:port`.
fn address(server: &str) -> Result<(String, u16), String> {
    let expected = || format!("expected a server such as https://10.0.0.1:6443, not {server:?}");
    let uri: Uri = server.parse().map_err(|_| expected())?;
    let is_root = matches!(uri.path(), "" | "/") && uri.query().is_none();
    let host = uri.host().filter(|_| uri.scheme_str() == Some("https") && is_root).ok_or_else(expected)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_owned(), uri.port_u16().unwrap_or(HTTPS)))
}
