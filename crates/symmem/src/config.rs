//! One configuration: set in code, else `SYMMEM_*` variables, else the default.

mod folders;
mod kind;
mod provider;
mod setting;
mod table;
mod unknown;

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

pub(crate) use self::kind::check_pad_size;
pub use self::provider::{PlaceKind, Provider};
use self::setting::Setting;
use self::table::settings;
pub(crate) use self::unknown::SPAWN_NAME;
use crate::named::named;
use crate::operation::forced;
use crate::sys::secret::{self, Secret};
use crate::{Error, Result};

/// Bytes of a signal pad unless configured: 32 channels of 72 ranks, as in PyTorch.
pub const DEFAULT_SIGNAL_PAD_SIZE: usize = 32 * 72 * 4;

/// How long to spin where nothing speaks against it: a few times what it takes to wake a sleeper.
const DEFAULT_SPIN: Duration = Duration::from_micros(200);
/// Longest spin in microseconds: nobody looks at the group meanwhile.
const MAX_SPIN: u64 = 10_000;

named! {
    /// Where a value came from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Origin read as "origin" {
        /// Every one.
        ALL: {
            /// Set in code.
            Code = "code",
            /// From the environment variable.
            Variable = "environment",
            /// Built in.
            Default = "default",
        }
    }
}

/// One row of the configuration table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigRow {
    /// The environment variable.
    pub variable: &'static str,
    /// The value in force.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
    /// What it is for.
    pub meaning: &'static str,
}

settings! {
    /// Every setting of the library.
    ///
    /// ```
    /// use std::time::Duration;
    /// let config = symmem::Config::from_env()?.timeout(Duration::from_secs(30));
    /// assert!(config.rows().iter().any(|row| row.variable == "SYMMEM_TIMEOUT" && row.value == "30"));
    /// # Ok::<(), symmem::Error>(())
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Config;

    /// How long blocking calls wait unless told otherwise; 300 s by default.
    "SYMMEM_TIMEOUT" sets timeout: Option<Duration> = Some(timeout: Duration), by kind::seconds(), or Some(Duration::from_secs(300)); "seconds a blocking call waits";

    /// How long a wait lasts before it says so on stderr, with who waits for whom; `None`: never. 10 s by
    /// default, and more and more rarely after that.
    "SYMMEM_WAIT_NOTICE" sets wait_notice: Option<Duration> as after, by kind::seconds(), or Some(Duration::from_secs(10));
        "seconds after which a wait says so on stderr" + ", with who waits for whom";

    /// Bytes of the signal pads of later allocations: a multiple of 8, at most 2^30.
    "SYMMEM_SIGNAL_PAD_SIZE" sets signal_pad_size: usize, by kind::pad_size(), or DEFAULT_SIGNAL_PAD_SIZE; "bytes of a signal pad";
    from (bytes: usize) -> Result<Self> { check_pad_size(bytes)? }

    /// A directory for the fd channel's sockets, for ranks in different network namespaces (abstract names,
    /// the default, do not cross them).
    "SYMMEM_SOCKET_DIR" sets socket_dir: Option<PathBuf> = Some(dir: impl Into<PathBuf>), by kind::text("a directory").or(""), or None => "abstract names";
        "where the fd channel's sockets live" + ", for ranks in different network namespaces";

    /// How long a rank spins before it sleeps, at most 10 ms: on a quiet machine with a core for every rank.
    /// Ranks that outnumber the cores, share one or lose theirs to other programs spin less or not at all.
    /// 200 us by default.
    "SYMMEM_SPIN" sets spin: Duration as spin, by kind::micros(MAX_SPIN), or DEFAULT_SPIN;
        "microseconds of spinning before a rank sleeps"
            + ", when there is a core for every rank; less or not at all where ranks share cores with each other or with other programs";

    /// Whether a thread that is about to sleep for a peer asks Linux (6.12 and later) for shorter turns of
    /// its core (the default), so that it runs soon after it was woken. From then on Linux refuses to change
    /// its policy without the flag `SCHED_RESET_ON_FORK`, unless it is privileged.
    "SYMMEM_SHORT_TURNS" sets short_turns: bool as short_turns, by kind::switch(), or true; "ask Linux for short turns of a core before a rank sleeps";

    /// Whether rendezvous touches every page up front (the default), so that no operation pays for it later.
    "SYMMEM_POPULATE" sets populate: bool as populate, by kind::switch(), or true; "touch all pages at rendezvous";

    /// Whether the kernel is asked for huge pages.
    "SYMMEM_HUGE_PAGES" sets huge_pages: bool as huge_pages, by kind::switch(), or true; "ask the kernel for huge pages";

    /// The NUMA node allocations prefer.
    "SYMMEM_NUMA_NODE" sets numa_node: Option<u32> = Some(node: u32), by kind::value("the number of a NUMA node", |_| true).or(""), or None => "where first touched"; "NUMA node of allocations";

    /// Whether peers' lives are watched through pidfds (the default) or through `/proc`.
    "SYMMEM_PIDFD" sets pidfd: bool as pidfd, by kind::switch(), or true; "watch peers by pidfd, not by /proc";

    /// A name that stands in for the kernel's boot id: ranks with different ones count as on different hosts.
    "SYMMEM_HOST_ID" sets host_id: Option<String> = Some(id: impl Into<String>), by kind::text("a name").or(""), or None => "the kernel's boot id";
        "ranks with equal ids share a host";

    "SYMMEM_SECRET_FILE" sets secret_file: Option<Secret>, by kind::secret("a file", |path| Some(Secret::from_file(path.as_ref()))), or None => "none";
        "file with the secret that proves ranks on other hosts"
            + ": 32 bytes or more, mode 0600, the same on all ranks; one host needs none ([SECURITY.md](../SECURITY.md))";

    "SYMMEM_SECRET_FD" sets secret_fd: Option<Secret>, by kind::secret("the number of a descriptor", |number| Some(Secret::from_descriptor(number.parse().ok()?))), or None => "none";
        "the same, as an inherited descriptor" + " of a file or memfd that the launcher left open";

    /// Whether a group may span hosts without a job secret. Whoever can write the store can then be a rank,
    /// and read and change what ranks tell each other. Off by default.
    "SYMMEM_ALLOW_UNAUTHENTICATED_HOSTS" sets allow_unauthenticated_hosts: bool as allow, by kind::switch(), or false;
        "let whoever writes the store be a rank" + ", so that a group may span hosts without a secret";

    /// The address at which a rank that serves the store listens, if that is not the one at which the others
    /// find it (`MASTER_ADDR`): behind NAT, in a container, or where `/etc/hosts` gives a loopback address
    /// for this machine's name. `*` is every interface.
    "SYMMEM_STORE_BIND" sets store_bind: Option<String> = Some(address: impl Into<String>), by kind::text("an address of this machine, or * for every interface").or(""), or None => "where the others find it";
        "address at which a rank serves the store" + ", if that is not `MASTER_ADDR` (NAT, a container, 127.0.1.1 in /etc/hosts)";

    /// The file in which rank 0 looks for what `symmem tune` measured; `None`: only what is built in counts.
    "SYMMEM_TUNING" sets tuning: Option<PathBuf> as path, by kind::text("a file, or \"off\"").or("off"), or folders::cached("symmem/tuning.json") => "in the user's cache folder";
        "what `symmem tune` measured" + ", for rank 0";

    /// The algorithm that rank 0 makes all ranks use: `"staged"`, or per collective
    /// `"all_reduce=push,broadcast=direct"`. A wish for the whole program: a message that is too large for it
    /// goes by the algorithm for any size. [`SymmetricMemory::using`] is no wish.
    ///
    /// [`SymmetricMemory::using`]: crate::SymmetricMemory::using
    "SYMMEM_ALGORITHM" sets algorithm: String, by kind::value("an algorithm, or a list like all_reduce=push,broadcast=direct", |choice: &String| forced(choice).is_ok()), or String::new() => "by size";
        "algorithm of collectives, where it can carry them" + "; rank 0's counts";
    from (choice: &str) -> Result<Self> { forced(choice).map(|_| choice.to_owned())? }

    /// The algorithm of all-reduces on devices, by its name ([`cuda::Algorithm`](crate::cuda::Algorithm)),
    /// wherever it can carry them. All ranks must say the same. One that does not exist, or that needs
    /// multicast, is an error when an engine is made.
    "SYMMEM_DEVICE_ALGORITHM" sets device_algorithm: Option<String> = Some(name: impl Into<String>), by kind::text("the name of an algorithm of GPUs").or(""), or None => "by size";
        "algorithm of all-reduces on GPUs, wherever it can carry them" + "; all ranks must say the same";

    /// Threads that work on this rank's part of a large collective, the calling one included; at most 256.
    /// The results have the same bits whatever their number, which may differ between ranks.
    ///
    /// They inherit the affinity of the thread that calls, so they help only where a rank has several cores:
    /// start each rank with a mask of as many (`taskset -c 0-3 ...`, `numactl --physcpubind=0-3 ...`), or
    /// with none.
    "SYMMEM_THREADS_PER_RANK" sets threads_per_rank: usize as threads, by kind::number(1..=256), or 1; "threads that share a large collective" + ", in each rank";

    /// Whether several ranks may be on one GPU. Off by default, because it is a mistake more often than a
    /// plan.
    "SYMMEM_ALLOW_OVERLAPPING_DEVICES" sets allow_overlapping_devices: bool as allow, by kind::switch(), or false, torch "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES" gives true;
        "several ranks may be on one GPU";

    /// Whether GPU memory is also mapped for multicast, where all devices can (the default).
    "SYMMEM_MULTICAST" sets multicast: bool as multicast, by kind::switch(), or true, torch "TORCH_SYMM_MEM_DISABLE_MULTICAST" gives false;
        "map GPU memory for multicast where possible";

    /// Where compiled kernels are kept; `None`: nowhere, they are compiled for every engine.
    "SYMMEM_CACHE_DIR" sets cache_dir: Option<PathBuf> as dir, by kind::text("a directory, or \"off\"").or("off"), or folders::cached("symmem") => "in the user's cache folder";
        "where compiled kernels are kept";

    /// Most blocks of a GPU kernel that waits for peers, from 1 to 128; 64 by default. Fewer leave more of
    /// the GPU to other work.
    "SYMMEM_MAX_BLOCKS" sets max_blocks: u32 as blocks, by kind::number(1..=128), or 64; "most blocks of a GPU kernel" + " that waits for peers";

    /// Number of independent orders of GPU operations in a group, from 1 to 16; 1 by default.
    "SYMMEM_LANES" sets lanes: u32 as lanes, by kind::number(1..=16), or 1; "independent orders of GPU operations" + " in a group";

    /// Where memory comes from: that of the provider's place, host or device. The other place keeps its
    /// default.
    "SYMMEM_PROVIDER" sets provider: Provider, by kind::value(Provider::names(), |_| true), or Provider::default();
        "where memory comes from" + ": on GPUs `vmm` (the driver) or `nccl` (NCCL's windows, [NCCL](nccl.md)), on the host `shm`";
    from (provider: Provider) { provider }

    /// Ranks that count as out of reach of all others' loads and stores, so that NCCL carries what they take
    /// part in: for tests of that way. All ranks must say the same.
    "SYMMEM_UNREACHABLE" sets unreachable: Vec<usize>, by kind::ranks(), or Vec::new() => "none";
        "ranks that NCCL must carry, for tests" + ": they count as out of reach";
    from (ranks: &[usize]) { ranks.to_vec() }
}

impl Config {
    /// The environment's values, else the defaults. A variable that cannot be understood is an error; one
    /// that means nothing is a warning in the log, once.
    pub fn from_env() -> Result<Self> {
        static SAID: Once = Once::new();
        refuse()?;
        let config = Self::read(|name| std::env::var_os(name))?;
        // By force: a subscriber that panicked at it must not have every later call panic.
        SAID.call_once_force(|_| {
            config.unknown_variables().iter().for_each(|unknown| tracing::warn!("{unknown}"))
        });
        Ok(config)
    }

    /// Lets blocking calls wait as long as it takes.
    pub fn no_timeout(mut self) -> Self {
        self.timeout = Setting { value: None, origin: Origin::Code };
        self
    }

    /// A sentence for each `SYMMEM_*` variable that is set and means nothing, with the setting that is meant,
    /// for programs whose users see no log. Only one rank of a machine has any.
    pub fn unknown_variables(&self) -> Vec<String> {
        unknown::in_environment(&self.rows())
    }

    /// The file that holds the job secret, which proves ranks on other hosts: a regular file of this user
    /// that nobody else may read, with 32 bytes or more that are the same for all ranks. Ranks on one host
    /// need none.
    pub fn secret_file(self, path: impl AsRef<Path>) -> Result<Self> {
        Ok(self.with_secret(Secret::from_file(path.as_ref())?))
    }

    /// Makes a new file with a random job secret at `path`, which only this user may read, for
    /// [`Config::secret_file`] on every host. A file that exists already is an error, and stays as it is.
    pub fn new_secret_file(path: impl AsRef<Path>) -> Result<()> {
        secret::create(path.as_ref())
    }

    /// The job secret itself, for programs that have it from elsewhere; see [`Config::secret_file`]. It is
    /// never printed.
    pub fn secret(self, bytes: &[u8]) -> Result<Self> {
        Ok(self.with_secret(Secret::from_code(bytes)?))
    }

    /// There is one secret: what the environment says of another one counts no more.
    fn with_secret(mut self, secret: Secret) -> Self {
        self.secret_file = Setting { value: Some(secret), origin: Origin::Code };
        self.secret_fd = Setting { value: None, origin: Origin::Default };
        self
    }

    pub(crate) fn get_secret(&self) -> Option<&Secret> {
        self.secret_file.as_ref().or(self.secret_fd.as_ref())
    }

    /// Whether ranks of several hosts can be one group: there is a job secret, or none is asked for
    /// ([`Config::allow_unauthenticated_hosts`]). Launchers ask before they start ranks that cannot meet.
    pub fn admits_other_hosts(&self) -> bool {
        self.get_secret().is_some() || *self.allow_unauthenticated_hosts
    }

    /// The address that [`Config::store_bind`] or the environment names.
    pub fn get_store_bind(&self) -> Option<&str> {
        self.store_bind.as_deref()
    }
}

/// Refuses what is wrong with variables beside the value of one.
fn refuse() -> Result<()> {
    // Refused, not ignored: whoever set it meant something by it.
    if std::env::var_os("SYMMEM_SPINS").is_some() {
        let problem = "it counted polls and is no more. Hint: SYMMEM_SPIN is a time in microseconds; 200 is as long as 4000 polls";
        return Err(Error::invalid("SYMMEM_SPINS", problem));
    }
    let says = |variable: &&str| {
        std::env::var_os(variable).is_some_and(|text| !text.to_string_lossy().trim().is_empty())
    };
    if ["SYMMEM_SECRET_FILE", "SYMMEM_SECRET_FD"].iter().all(says) {
        let problem = "SYMMEM_SECRET_FD is set as well. Hint: one secret, so one of the two";
        return Err(Error::invalid("SYMMEM_SECRET_FILE", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_named_by_its_source_and_never_shown() {
        let secret = b"correct horse battery staple, twice over";
        let config = Config::from_env().unwrap().secret(secret).unwrap();
        let shown = format!("{config:?}{:?}", config.rows());
        let text = std::str::from_utf8(secret).unwrap();
        let bytes = format!("{secret:?}");
        assert!(!shown.contains(text) && !shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
        let row = |variable| {
            let row = config.rows().into_iter().find(|row| row.variable == variable).unwrap();
            (row.value, row.origin)
        };
        assert_eq!(row("SYMMEM_SECRET_FILE"), ("set in code".to_owned(), Origin::Code));
        assert_eq!(row("SYMMEM_SECRET_FD"), ("none".to_owned(), Origin::Default));
        assert!(Config::from_env().unwrap().secret(b"short").is_err());
    }

    #[test]
    fn code_beats_default_and_says_so() {
        let config = Config::from_env().unwrap().spin(Duration::from_micros(7)).populate(false);
        let rows = config.rows();
        let spin = rows.iter().find(|row| row.variable == "SYMMEM_SPIN").unwrap();
        assert_eq!((spin.value.as_str(), spin.origin), ("7", Origin::Code));
        assert_eq!(*config.clone().spin(Duration::from_secs(1)).spin, Duration::from_micros(MAX_SPIN));
        assert!(config.signal_pad_size(12).is_err());
    }

    #[test]
    fn settings_of_the_gpu_side_stay_in_their_bounds() {
        let config = Config::from_env().unwrap().max_blocks(0).lanes(99).multicast(false).cache_dir(None);
        assert_eq!((*config.max_blocks, *config.lanes), (1, 16));
        assert!(!*config.multicast && config.cache_dir.is_none());
        let value = |variable| {
            let row = config.rows().into_iter().find(|row| row.variable == variable);
            row.map(|row| (row.value, row.origin)).unwrap()
        };
        assert_eq!(value("SYMMEM_CACHE_DIR"), ("off".to_owned(), Origin::Code));
        assert_eq!(value("SYMMEM_LANES"), ("16".to_owned(), Origin::Code));
    }

    /// The table of docs/settings.md.
    fn table() -> String {
        let mut table = "| variable | default | values | meaning |\n|---|---|---|---|\n".to_owned();
        for (row, [default, values, more]) in Config::documented() {
            // As it is written in a variable.
            let shown = match row.value.as_str() {
                _ if !default.is_empty() => &default,
                "true" => "1",
                "false" => "0",
                value => value,
            };
            table += &format!("| `{}` | {shown} | {values} | {}{more} |\n", row.variable, row.meaning);
        }
        table
    }

    fn has_the_table(page: &str) -> bool {
        let settings = page.split("\n\n").find(|part| part.starts_with("| variable |")).unwrap_or_default();
        settings == table().trim_end()
    }

    #[test]
    fn the_page_of_settings_has_their_table() {
        let page = include_str!("../../../docs/settings.md");
        assert!(has_the_table(page), "docs/settings.md must have this table:\n{}", table());
    }

    #[test]
    fn a_wrong_cell_of_the_table_is_noticed() {
        let right = format!("Text.\n\n{}\nMore.", table());
        assert!(has_the_table(&right));
        for (planted, cell) in
            [("| 301 |", "| 300 |"), ("| `SYMMEM_TIMEOUTS` |", "| `SYMMEM_TIMEOUT` |"), ("", "bytes of ")]
        {
            let wrong = right.replacen(cell, planted, 1);
            assert!(wrong != right && !has_the_table(&wrong), "{cell}");
        }
    }
}
