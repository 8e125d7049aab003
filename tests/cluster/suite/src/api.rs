//! Requests to an API server, one a connection: HTTP/1.0 over TLS, answers as JSON.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// An API server, and the user who sends the requests.
#[derive(Clone)]
pub struct Api {
    /// Host and port, of the loopback.
    address: String,
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
        let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        let data = |from: &Value, key: &str| -> Result<Vec<u8>> {
            let text = from[key].as_str().with_context(|| format!("the kubeconfig has no {key}"))?;
            STANDARD.decode(text).with_context(|| format!("{key} is not base64"))
        };
        let server = cluster["server"].as_str().context("the kubeconfig has no server")?;
        let address = server.strip_prefix("https://").with_context(|| format!("{server} is no https"))?.to_owned();
        let authority = data(cluster, "certificate-authority-data")?;
        let own = (data(user, "client-certificate-data")?, data(user, "client-key-data")?);
        Ok(Self { tls: Arc::new(tls(&authority, Some(own))?), address, authority, token: None })
    }

    /// The same server, as the user of this token.
    pub fn by_token(&self, token: &str) -> Result<Self> {
        Ok(Self { tls: Arc::new(tls(&self.authority, None)?), token: Some(token.to_owned()), ..self.clone() })
    }

    /// The server's port.
    pub fn port(&self) -> Option<u16> {
        self.address.rsplit_once(':')?.1.parse().ok()
    }

    /// `path` begins with `/api` or `/apis` and may have a query; a body is absent where it is null.
    pub fn request(&self, method: &str, path: &str, format: Format, body: &Value) -> Result<Answer> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let user = self.token.as_ref().map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\n{user}Accept: application/json\r\nContent-Type: {}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            format.media_type(),
            body.len()
        );
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

    fn exchange(&self, request: &str) -> Result<String> {
        let stream =
            TcpStream::connect(&self.address).with_context(|| format!("cannot connect to {}", self.address))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let host = self.address.rsplit_once(':').map_or(&self.address[..], |(host, _)| host);
        let name = ServerName::try_from(host.to_owned()).context("the server has no name to be checked by")?;
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::clone(&self.tls), name)?, stream);
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            // The server closes the connection after its answer, with or without saying so in TLS.
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(error.into()),
            _ => Ok(String::from_utf8(answer)?),
        }
    }
}

fn tls(authority: &[u8], own: Option<(Vec<u8>, Vec<u8>)>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots);
    let Some((chain, key)) = own else { return Ok(builder.with_no_client_auth()) };
    let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>()?;
    Ok(builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key)?)?)
}
