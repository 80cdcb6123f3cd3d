//! A store by itself: a server that PyTorch's TCPStore clients could join, and two clients of ours.

use std::time::Duration;

use symmem::Result;
use symmem::store::{ServerLimits, Store, TcpStore, TcpStoreServer, Wait};

fn main() -> Result<()> {
    let server = TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::default())?;
    let wait = Wait::for_at_most(Duration::from_secs(10));
    let one = TcpStore::connect("127.0.0.1", server.port(), &wait)?;
    let other = one.try_clone()?;

    one.set("greeting", b"hello", &wait)?;
    assert_eq!(other.get("greeting", &wait)?, b"hello");
    assert_eq!(other.add("visitors", 2, &wait)?, 2);
    assert_eq!(one.add("visitors", 1, &wait)?, 3);
    one.queue_push("jobs", b"first", &wait)?;
    println!("popped {:?}", String::from_utf8_lossy(&other.queue_pop("jobs", true, &wait)?));

    let soon = Wait::for_at_most(Duration::from_millis(50));
    println!("a key nobody sets: {}", one.get("never", &soon).expect_err("nobody sets it"));
    Ok(())
}
