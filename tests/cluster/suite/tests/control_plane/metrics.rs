//! What gives metrics to those that may read them: the rights of the proxy, what it answers, and its pods.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use plimsoll_cluster_suite::{Answer, Api, wait_for};
use serde_json::{Value, json};

use crate::{NODES, cluster};

const READER: &str = "plimsoll-test-reader";
/// The account of the proxy.
const ACCOUNT: &str = "plimsoll-metrics";
/// The variable that names the program of the proxy (`xtask/src/cluster/kube.rs`).
const PROXY: &str = "PLIMSOLL_TEST_RBAC_PROXY";
/// What the agent would serve.
const METRICS: &str = "plimsoll_memory_pressure 0";
/// What kubectl says of a token that is none.
const UNKNOWN: &str = "You must be logged in";
const PATIENCE: Duration = Duration::from_secs(30);

/// The API server as the proxy uses it.
fn proxy() -> Api {
    cluster().install("metrics").expect("it is accepted");
    let token = cluster().token(ACCOUNT, &json!({})).expect("a token");
    cluster().api.by_token(&token).expect("an API server")
}

/// Grants this user the role for what collects metrics, and waits until that holds.
fn bind(proxy: &Api, user: &str) {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"generateName": "plimsoll-test-"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "plimsoll-metrics-reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    let made = cluster().api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding);
    made.and_then(Answer::object).expect("it is accepted");
    wait_for("the binding holds", PATIENCE, || Ok(is_allowed(proxy, user, "/metrics").then_some(())))
        .expect("the role grants it");
}

/// Answers requests for its metrics with [`METRICS`], and others with another text, as long as the test runs: the address.
fn agent() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one").to_string();
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            // A request is short, and has no body.
            let mut request = [0; 4096];
            let read = connection.read(&mut request).unwrap_or_default();
            let is_for_metrics = request[..read].starts_with(b"GET /metrics HTTP/");
            let text = if is_for_metrics { METRICS } else { "ready" };
            let length = text.len();
            let _ =
                write!(connection, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{text}");
        }
    });
    address
}

/// Where what this makes is kept.
fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// A proxy, until this is dropped.
struct Running {
    proxy: RefCell<Child>,
    address: String,
    log: PathBuf,
}

impl Running {
    /// Starts one before the agent with this address, as its service account.
    fn start(agent: &str) -> Result<Self> {
        let program = std::env::var_os(PROXY).expect("`cargo xtask test cluster` names the program of the proxy");
        // Free, until the proxy has it.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let [kubeconfig, log] = ["conf", "log"].map(|ending| folder().join(format!("rbac-proxy.{ending}")));
        fs::write(&kubeconfig, cluster().kubeconfig_by(&cluster().token(ACCOUNT, &json!({}))?)?)?;
        let daemonset = cluster().api.get("/apis/apps/v1/namespaces/plimsoll/daemonsets/plimsoll-metrics")?.object()?;
        let arguments = daemonset["spec"]["template"]["spec"]["containers"][0]["args"].as_array().cloned();
        let arguments = arguments.unwrap_or_default().into_iter().map(|argument| {
            let argument = argument.as_str().unwrap_or_default();
            match argument.split_once('=') {
                Some((name @ "--secure-listen-address", _)) => format!("{name}={address}"),
                _ => argument.replace("//127.0.0.1:9464", &format!("//{agent}")),
            }
        });
        let mut proxy = Command::new(program);
        proxy.args(arguments).arg("--kubeconfig").arg(kubeconfig);
        let output = File::create(&log)?;
        let proxy = proxy.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()?;
        Ok(Self { proxy: proxy.into(), address, log })
    }

    /// An error with what it printed where it has ended.
    fn ensure(&self) -> Result<()> {
        let ended = self.proxy.borrow_mut().try_wait()?;
        ensure!(ended.is_none(), "it has ended with {ended:?}: {}", fs::read_to_string(&self.log)?);
        Ok(())
    }

    /// What it answers to this token, with kubectl as the client, which says how it was refused otherwise.
    fn get(&self, token: &str, path: &str) -> Result<String> {
        let (server, token) = (format!("--server=https://{}", self.address), format!("--token={token}"));
        // Its certificate is one that it made for itself.
        cluster().kubectl(&["get", "--raw", path, &server, &token, "--insecure-skip-tls-verify"])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let proxy = self.proxy.get_mut();
        // It can have ended by itself.
        let _ = proxy.kill();
        let _ = proxy.wait();
    }
}

fn is_allowed(api: &Api, user: &str, path: &str) -> bool {
    let spec = json!({"user": user, "nonResourceAttributes": {"verb": "get", "path": path}});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let answer = api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review);
    answer.and_then(Answer::object).expect("it may ask")["status"]["allowed"] == true
}

#[test]
fn metrics_are_for_those_that_are_bound_to_the_role_and_the_proxy_may_ask_and_do_nothing_else() {
    let proxy = proxy();
    bind(&proxy, READER);
    assert!(!is_allowed(&proxy, READER, "/readyz"), "the role grants more than metrics");
    assert!(!is_allowed(&proxy, "another", "/metrics"), "it is granted to all");

    let token = cluster().agent_token(NODES[0]).expect("a token");
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let of_token = proxy.create("/apis/authentication.k8s.io/v1/tokenreviews", &review).expect("an answer");
    let of_token = of_token.object().expect("it may ask");
    assert_eq!(of_token["status"]["user"]["username"], "system:serviceaccount:plimsoll:plimsoll");

    for path in ["/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces/plimsoll/secrets"] {
        let answer = proxy.get(path).expect("an answer");
        assert!(answer.message().contains("plimsoll-metrics"), "{path}: {}", answer.message());
    }
}

/// The proxy of the manifest with its arguments, but for where it listens and what it stands before.
#[test]
fn the_proxy_serves_metrics_alone_and_to_a_token_that_is_bound_to_the_role_alone() {
    let account = proxy();
    let reader = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": READER}});
    let made = cluster().api.create("/api/v1/namespaces/plimsoll/serviceaccounts", &reader);
    made.and_then(Answer::object).expect("it is accepted");
    bind(&account, &format!("system:serviceaccount:plimsoll:{READER}"));
    let agent = agent();
    let running = Running::start(&agent).expect("it is started");

    let token = |account, spec| cluster().token(account, &spec).expect("a token");
    let bound = token(READER, json!({}));
    let served = wait_for("it serves them", PATIENCE, || {
        running.ensure()?;
        Ok(running.get(&bound, "/metrics").ok())
    });
    assert_eq!(served.expect("the token may"), METRICS);
    let cases = [
        ("a token without the role", &token(ACCOUNT, json!({}))[..], "/metrics", "Forbidden"),
        ("a token for another audience", &token(READER, json!({"audiences": ["another"]})), "/metrics", UNKNOWN),
        ("what is no token", "a.b.c", "/metrics", UNKNOWN),
        // Which each user may `get` of an API server.
        ("another path", &bound, "/readyz", "NotFound"),
    ];
    for (what, token, path, refused) in cases {
        let error = running.get(token, path).expect_err(what).to_string();
        assert!(error.contains(refused), "{what}: {error}");
    }
}

#[test]
fn every_node_has_a_proxy_that_is_no_root_and_has_no_capability() {
    drop(proxy());
    let path = "/api/v1/namespaces/plimsoll/pods?labelSelector=app.kubernetes.io/name=plimsoll-metrics";
    let pods = wait_for("every node has one", Duration::from_mins(1), || {
        let list = cluster().api.get(path)?.object()?;
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        Ok((pods.len() >= NODES.len()).then_some(pods))
    });
    for pod in pods.expect("they are admitted") {
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(spec["hostPID"], Value::Null);
    }
}
