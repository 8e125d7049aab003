//! The way into a machine with a network card, which nothing can connect to otherwise: HTTP CONNECT on a Unix socket, as an
//! API server reaches kubelets that are on another network than its own (`EgressSelectorConfiguration`).

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, ensure};

use crate::ports;

/// Where a node waits for the programs that it goes on with (`tests/vm/guest/src/kubelet.rs`).
pub(crate) const PROGRAMS: u16 = 10251;
/// What can be reached: a kubelet, an agent's metrics where they are not on the machine's loopback, and that.
const REACHED: [u16; 3] = [10250, 9464, PROGRAMS];
/// How long the head of a request may be.
const HEAD: usize = 4096;
/// The answer to a request from when both sides are connected.
const OK: &[u8; 19] = b"HTTP/1.1 200 OK\r\n\r\n";

/// Listens for as long as this process runs. What QEMU's user network needs to hand on to the machine: each port that is
/// reached, from a port of this host's loopback that is free now.
pub(crate) fn open(socket: &Path) -> anyhow::Result<String> {
    // Of an earlier machine.
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let from: [u16; REACHED.len()] = ports::free()?;
    let ports: Vec<(u16, u16)> = REACHED.into_iter().zip(from).collect();
    let forward = |(to, from): &(u16, u16)| format!(",hostfwd=tcp:{}:{from}-:{to}", Ipv4Addr::LOCALHOST);
    let forwards = ports.iter().map(forward).collect();
    let ports: Arc<[(u16, u16)]> = ports.into();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let ports = Arc::clone(&ports);
            thread::spawn(move || {
                if let Err(error) = serve(connection, &ports) {
                    eprintln!("a connection into the machine ended: {error}");
                }
            });
        }
    });
    Ok(forwards)
}

/// A connection to a port of the machine.
pub(crate) fn connect(socket: &Path, port: u16) -> anyhow::Result<UnixStream> {
    let mut tunnel = UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
    write!(tunnel, "CONNECT machine:{port} HTTP/1.1\r\n\r\n")?;
    let mut answer = [0; OK.len()];
    tunnel.read_exact(&mut answer).context("the tunnel ended")?;
    ensure!(answer == *OK, "the machine is not reached: {}", String::from_utf8_lossy(&answer).trim_end());
    Ok(tunnel)
}

/// Answers one request, and hands on what both sides send until both have ended.
fn serve(mut client: UnixStream, ports: &[(u16, u16)]) -> io::Result<()> {
    let asked = target(&mut client)?;
    let Some((_, port)) = ports.iter().find(|(to, _)| Some(*to) == asked) else {
        return client.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n");
    };
    let Ok(machine) = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)) else {
        return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n");
    };
    client.write_all(OK)?;
    let (mut from, mut to) = (client.try_clone()?, machine.try_clone()?);
    let upwards = thread::spawn(move || {
        let copied = io::copy(&mut from, &mut to);
        // It may have ended meanwhile.
        let _ = to.shutdown(Shutdown::Write);
        copied
    });
    let copied = io::copy(&mut &machine, &mut client);
    let _ = client.shutdown(Shutdown::Write);
    let sent = upwards.join().map_err(|_| io::Error::other("a thread panicked"))?;
    copied.and(sent).map(drop)
}

/// The port that a client asks for; whatever address it names is the machine's. A client sends no more before the answer.
fn target(client: &mut UnixStream) -> io::Result<Option<u16>> {
    let (mut head, mut length) = ([0; HEAD], 0);
    while !head[..length].ends_with(b"\r\n\r\n") {
        match client.read(&mut head[length..])? {
            0 => return Ok(None),
            more => length += more,
        }
    }
    let head = String::from_utf8_lossy(&head[..length]);
    let asked = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    Ok(asked.and_then(|it| it.rsplit_once(':')?.1.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// What a client gets that sends this, where the machine's port 10250 is `port` here, and then `more` where it may.
    fn answered(port: u16, sent: &str, more: &str) -> String {
        let (client, mut here) = UnixStream::pair().expect("a pair");
        let server = thread::spawn(move || serve(client, &[(10250, port)]));
        here.write_all(sent.as_bytes()).expect("it reads");
        let mut answer = String::new();
        if !more.is_empty() {
            (&here).take(OK.len() as u64).read_to_string(&mut answer).expect("it answers");
            here.write_all(more.as_bytes()).expect("it reads");
        }
        here.shutdown(Shutdown::Write).expect("it is open");
        here.read_to_string(&mut answer).expect("it answers");
        server.join().expect("no panic").expect("no error");
        answer
    }

    #[test]
    fn what_a_client_sends_reaches_the_port_and_its_answer_the_client() {
        let machine = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = machine.local_addr().expect("it is bound").port();
        let echo = thread::spawn(move || {
            let (mut one, _) = machine.accept().expect("a client");
            let mut asked = String::new();
            one.read_to_string(&mut asked).expect("it ends");
            one.write_all(asked.to_uppercase().as_bytes()).expect("it reads");
        });
        let answer = answered(port, "CONNECT 10.0.2.15:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "hello");
        echo.join().expect("no panic");
        assert_eq!(answer.as_bytes(), [OK, &b"HELLO"[..]].concat());
    }

    #[test]
    fn no_other_port_is_reached_and_nothing_without_a_whole_request() {
        let [unused] = ports::free().expect("a free port");
        for (sent, status) in [
            ("CONNECT 10.0.2.15:22 HTTP/1.1\r\n\r\n", "403"),
            ("GET / HTTP/1.1\r\n\r\n", "403"),
            ("CONNECT 10.0.2.15:10250", "403"),
            ("CONNECT 10.0.2.15:10250 HTTP/1.1\r\n\r\n", "502"),
        ] {
            let answer = answered(unused, sent, "");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{sent:?}: {answer}");
        }
    }

    #[test]
    fn each_port_is_handed_on_from_the_loopback() {
        let place = tempfile::tempdir().expect("a directory");
        let socket = place.path().join("socket");
        for again in [false, true] {
            let forwards = open(&socket).expect("it listens");
            let ends: Vec<&str> = forwards.split(",hostfwd=tcp:127.0.0.1:").skip(1).collect();
            assert!(
                ends.len() == 3 && ends[0].ends_with("-:10250") && ends[1].ends_with("-:9464"),
                "{forwards} {again}"
            );
        }
    }
}
