//! What the integration tests share: bounded groups, errors by shape, and ranks started the way `torchrun`
//! does.

// Every test program uses a part of it.
#![allow(dead_code, unused_macros, unused_imports)]

mod launch;

use std::sync::Arc;
use std::time::Duration;

use symmem::store::{ServerLimits, Store, TcpStore, TcpStoreServer, Wait};
use symmem::{Config, Group, RankContext, Result};

pub(crate) use self::launch::{Launch, is_rank_of, report, start};

/// How long anything may take before a test counts as hung. Nothing waits this long unless something is
/// broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// "At once" for people, on a machine that is busy with other tests.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(2);

/// The terms of a store call.
pub(crate) fn patiently() -> Wait<'static> {
    Wait::for_at_most(PATIENCE)
}

/// The environment's configuration, with bounded waits.
pub(crate) fn config() -> Config {
    Config::from_env().expect("the environment's configuration").timeout(PATIENCE)
}

/// The job secret of ranks that count as on several hosts.
pub(crate) const SECRET: &[u8] = b"a secret that only these tests have";

/// [`config`] with a job secret, for ranks that count as on several hosts.
pub(crate) fn config_with_secret() -> Config {
    config().secret(SECRET).expect("the secret is long enough")
}

/// A context with `config`.
pub(crate) fn context() -> RankContext {
    RankContext::new(config())
}

/// Panics unless the result is an error of this shape.
macro_rules! assert_error {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {
        match $result {
            Err($pattern) $(if $guard)? => {}
            other => panic!("expected {}, got {other:?}", stringify!($pattern $(if $guard)?)),
        }
    };
}
pub(crate) use assert_error;

/// A store that this process serves, for ranks of any kind.
pub(crate) fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::default()).expect("a port for a store")
}

/// A client of the store at `port`.
pub(crate) fn connect(port: u16) -> Arc<dyn Store> {
    Arc::new(TcpStore::connect("127.0.0.1", port, &patiently()).expect("the store answers"))
}

/// Collective. A new store that rank 0 serves for as long as it keeps the first value.
pub(crate) fn new_store(group: &Group) -> Result<(Option<TcpStoreServer>, Arc<dyn Store>)> {
    let server = (group.rank() == 0).then(serve);
    let port = group.broadcast(0, &server.as_ref().map_or(0, TcpStoreServer::port))?;
    Ok((server, connect(port)))
}

/// Collective. The same ranks as a group with a context of their own.
pub(crate) fn same_ranks_with(group: &Group, config: Config) -> Result<Group> {
    let context = RankContext::new(config);
    let name = format!("own/{}", group.id());
    Group::from_store_in(&context, Arc::clone(group.store()), group.rank(), group.size(), &name)
}

/// A small random number generator: seeded, so that ranks agree and failures repeat.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // xorshift64*.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
