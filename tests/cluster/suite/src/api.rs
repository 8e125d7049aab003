//! Requests to an API server, or to a kubelet, one a connection: HTTP/1.0 over TLS, answers as JSON.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned,
    WantsVerifier,
};
use serde_json::Value;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A kubelet as the tunnel's other end has it: the name means nothing there.
const KUBELET: &str = "node:10250";
/// What the tunnel answers when both sides are connected.
const CONNECTED: &[u8; 19] = b"HTTP/1.1 200 OK\r\n\r\n";

/// A server, and the user that sends the requests.
#[derive(Clone)]
pub struct Api {
    /// Host and port.
    address: String,
    /// The socket of the tunnel to it (`xtask/src/tunnel.rs`); absent where it is on the loopback.
    tunnel: Option<PathBuf>,
    /// The certificate authority, as PEM.
    authority: Vec<u8>,
    tls: Arc<ClientConfig>,
    /// The user's token; absent where a certificate names the user.
    token: Option<String>,
}

/// What an API server answers.
#[derive(Debug)]
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// The object, or the `Status` that says why there is none.
    pub body: Value,
}

/// What the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// An object, or options.
    Json,
    /// A JSON merge patch.
    Merge,
    /// A strategic merge patch.
    Strategic,
    /// A configuration to apply on the server.
    Apply,
}

impl Format {
    const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

impl Answer {
    /// Why it was refused; empty where it was not.
    pub fn message(&self) -> &str {
        self.body["message"].as_str().filter(|_| self.status >= 300).unwrap_or_default()
    }

    /// The object, or why there is none as an error.
    pub fn object(self) -> Result<Value> {
        ensure!(self.status < 300, "the API server answered {}: {}", self.status, self.message());
        Ok(self.body)
    }
}

impl Api {
    /// As the user of a kubeconfig's only context, which has a client certificate; `config` is the kubeconfig as JSON.
    pub fn of_kubeconfig(config: &Value) -> Result<Self> {
        let cluster = &config["clusters"][0]["cluster"];
        let server = cluster["server"].as_str().context("the kubeconfig has no server")?;
        let address = server.strip_prefix("https://").with_context(|| format!("{server} is no https"))?.to_owned();
        let authority = data(cluster, "certificate-authority-data")?;
        let tls = Arc::new(with_certificate(trusting(&authority)?, config)?);
        Ok(Self { address, tunnel: None, authority, tls, token: None })
    }

    /// The kubelet behind the tunnel of this socket, as the user of the kubeconfig's only context. Its certificate is not
    /// checked: a kubelet signs its own unless it is configured, and an API server takes that as well.
    pub fn of_kubelet(config: &Value, tunnel: PathBuf) -> Result<Self> {
        let builder = builder()?;
        let unchecked = Arc::new(Unchecked(Arc::clone(builder.crypto_provider())));
        let tls = with_certificate(builder.dangerous().with_custom_certificate_verifier(unchecked), config)?;
        let (address, tunnel) = (KUBELET.to_owned(), Some(tunnel));
        Ok(Self { address, tunnel, authority: Vec::new(), tls: Arc::new(tls), token: None })
    }

    /// The same server, as the user of this token.
    pub fn by_token(&self, token: &str) -> Result<Self> {
        let tls = trusting(&self.authority)?.with_no_client_auth();
        Ok(Self { tls: Arc::new(tls), token: Some(token.to_owned()), ..self.clone() })
    }

    /// The server's port.
    pub fn port(&self) -> Option<u16> {
        self.address.rsplit_once(':')?.1.parse().ok()
    }

    /// `path` begins with `/` and may have a query; a body is absent where it is null.
    pub fn request(&self, method: &str, path: &str, format: Format, body: &Value) -> Result<Answer> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = format!("{}{body}", self.head(method, path, format, body.len()));
        let answer = self.exchange(&request).with_context(|| format!("{method} {path}"))?;
        let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no end of its head")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        // Some answers are plain text.
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::from(body));
        Ok(Answer { status: status.with_context(|| format!("{head:?} has no status"))?, body })
    }

    /// A request without a body.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.request("GET", path, Format::Json, &Value::Null)
    }

    /// Makes an object.
    pub fn create(&self, path: &str, object: &Value) -> Result<Answer> {
        self.request("POST", path, Format::Json, object)
    }

    /// Begins to make an object, and sends nothing of it.
    pub fn begin(&self, path: &str) -> Result<Unfinished> {
        Ok(Unfinished { _connection: self.send(&self.head("POST", path, Format::Json, 2))? })
    }

    fn head(&self, method: &str, path: &str, format: Format, length: usize) -> String {
        let user = self.token.as_ref().map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\n{user}Accept: application/json\r\nContent-Type: {}\r\n\
             Content-Length: {length}\r\n\r\n",
            self.address,
            format.media_type()
        )
    }

    fn exchange(&self, request: &str) -> Result<String> {
        let mut answer = Vec::new();
        match self.send(request)?.read_to_end(&mut answer) {
            // The server closes the connection after its answer, with or without saying so in TLS.
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(error.into()),
            _ => Ok(String::from_utf8(answer)?),
        }
    }

    /// Sends this over a connection of its own.
    fn send(&self, request: &str) -> Result<Tls> {
        let host = self.address.rsplit_once(':').map_or(&self.address[..], |(host, _)| host);
        let name = ServerName::try_from(host.to_owned()).context("the server has no name to be checked by")?;
        let connection = ClientConnection::new(Arc::clone(&self.tls), name)?;
        let mut stream = StreamOwned::new(connection, self.connect()?);
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        Ok(stream)
    }

    fn connect(&self) -> Result<Box<dyn Stream>> {
        let Some(socket) = &self.tunnel else {
            let stream =
                TcpStream::connect(&self.address).with_context(|| format!("cannot connect to {}", self.address))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            return Ok(Box::new(stream));
        };
        let mut tunnel =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        tunnel.set_read_timeout(Some(PATIENCE))?;
        write!(tunnel, "CONNECT {} HTTP/1.1\r\n\r\n", self.address)?;
        let mut answer = [0; CONNECTED.len()];
        tunnel.read_exact(&mut answer).context("the tunnel ended")?;
        let is_connected = answer == *CONNECTED;
        ensure!(is_connected, "{} is not reached: {}", self.address, String::from_utf8_lossy(&answer));
        Ok(Box::new(tunnel))
    }
}

/// A request of which the server waits for the rest, until this is dropped, or for as long as it waits for any: a minute
/// unless configured.
pub struct Unfinished {
    _connection: Tls,
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

type Tls = StreamOwned<ClientConnection, Box<dyn Stream>>;

fn data(from: &Value, key: &str) -> Result<Vec<u8>> {
    let text = from[key].as_str().with_context(|| format!("the kubeconfig has no {key}"))?;
    STANDARD.decode(text).with_context(|| format!("{key} is not base64"))
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])?)
}

/// Trusts a certificate authority, as PEM.
fn trusting(authority: &[u8]) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate?)?;
    }
    Ok(builder()?.with_root_certificates(roots))
}

/// As the user of a kubeconfig's only context.
fn with_certificate(builder: ConfigBuilder<ClientConfig, WantsClientCert>, config: &Value) -> Result<ClientConfig> {
    let user = &config["users"][0]["user"];
    let (chain, key) = (data(user, "client-certificate-data")?, data(user, "client-key-data")?);
    let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>()?;
    Ok(builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key)?)?)
}

/// Takes whichever certificate a server has the key of.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
