//! The server on real sockets: whatever some connections do, the next client is served, and the server stops
//! when told.

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::script::{CONNECTIONS, Step, greeting, steps, tight};
use crate::tcp::{ServerLimits, TcpStore, TcpStoreServer};
use crate::{Store, Wait};

/// How long the server may take for anything.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(bytes: &[u8]) {
    // As tight as for the service, but for the good client, which needs some room.
    let limits = ServerLimits { max_stored_bytes: 1 << 20, ..tight() };
    let server = TcpStoreServer::bind("127.0.0.1", 0, limits).expect("a free port");
    let mut streams: [Option<TcpStream>; CONNECTIONS] = Default::default();
    for step in steps(bytes) {
        match step {
            Step::Send(who, bytes) => send(&server, &mut streams[who], bytes),
            Step::Greet(who, bytes) => send(&server, &mut streams[who], &[&greeting(), bytes].concat()),
            Step::HalfClose(who) => {
                let _ = streams[who].as_ref().map(|stream| stream.shutdown(Shutdown::Write));
            }
            Step::Close(who) => streams[who] = None,
        }
    }
    be_good(&server);
    drop(streams);
    be_good(&server);
}

fn send(server: &TcpStoreServer, stream: &mut Option<TcpStream>, bytes: &[u8]) {
    if stream.is_none() {
        *stream = Some(connect(server));
    }
    let Some(open) = stream else { return };
    match open.write_all(bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the server does not read"),
        // The server has closed it, as it may.
        Err(_) => *stream = None,
    }
}

fn connect(server: &TcpStoreServer) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server accepts");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket option");
    stream.set_nodelay(true).expect("a socket option");
    // Reset on close: a long run must not use up the ports.
    set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket option");
    stream
}

/// A client that nothing happens to.
fn be_good(server: &TcpStoreServer) {
    let wait = Wait::for_at_most(PATIENCE);
    let store = TcpStore::connect("127.0.0.1", server.port(), &wait).expect("a good client is let in");
    store.set("good", b"value", &wait).expect("a good client is served");
    assert_eq!(store.get("good", &wait).expect("a good client is served"), b"value");
}
