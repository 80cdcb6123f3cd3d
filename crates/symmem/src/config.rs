//! One configuration: set in code, else `SYMMEM_*` variables, else the default.

pub(crate) mod folders;
mod provider;
mod setting;
mod unknown;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

pub use self::provider::Provider;
pub(crate) use self::setting::is_pad_size;
use self::setting::{Setting, parse_bool, parse_pad_size, parse_ranks, parse_spin, parse_timeout};
pub(crate) use self::unknown::SPAWN_NAME;
use crate::operation::each_forced;
use crate::sys::secret::{self, Secret, Source};
use crate::{Error, Result};

/// Bytes of a signal pad unless configured: 32 channels of 72 ranks, as in PyTorch.
pub const DEFAULT_SIGNAL_PAD_SIZE: usize = 32 * 72 * 4;

const SECRET_FILE: &str = "SYMMEM_SECRET_FILE";
const SECRET_FD: &str = "SYMMEM_SECRET_FD";

/// How long to spin where nothing speaks against it: a few times what it takes to wake a sleeper.
const DEFAULT_SPIN: Duration = Duration::from_micros(200);
/// Longest spin: nobody looks at the group meanwhile.
const MAX_SPIN: Duration = Duration::from_millis(10);
/// Most threads per rank.
const MAX_THREADS: usize = 256;
/// Most blocks of a kernel that waits for peers.
const MAX_BLOCKS: u32 = 128;
/// Most lanes of an engine.
const MAX_LANES: u32 = 16;

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Set in code.
    Code,
    /// From the environment variable.
    Variable,
    /// Built in.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Code => "code",
            Self::Variable => "environment",
            Self::Default => "default",
        })
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

/// Every setting of the library.
///
/// ```
/// use std::time::Duration;
/// let config = symmem::Config::from_env()?.timeout(Duration::from_secs(30));
/// assert!(config.rows().iter().any(|row| row.variable == "SYMMEM_TIMEOUT" && row.value == "30"));
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    timeout: Setting<Option<Duration>>,
    wait_notice: Setting<Option<Duration>>,
    signal_pad_size: Setting<usize>,
    socket_dir: Setting<Option<PathBuf>>,
    spin: Setting<Duration>,
    populate: Setting<bool>,
    huge_pages: Setting<bool>,
    numa_node: Setting<Option<u32>>,
    pidfd: Setting<bool>,
    host_id: Setting<Option<String>>,
    secret: Setting<Option<Secret>>,
    allow_unauthenticated_hosts: Setting<bool>,
    store_bind: Setting<Option<String>>,
    tuning: Setting<Option<PathBuf>>,
    algorithm: Setting<String>,
    threads_per_rank: Setting<usize>,
    allow_overlapping_devices: Setting<bool>,
    multicast: Setting<bool>,
    cache_dir: Setting<Option<PathBuf>>,
    max_blocks: Setting<u32>,
    lanes: Setting<u32>,
    provider: Setting<Provider>,
    unreachable: Setting<Vec<usize>>,
}

impl Config {
    /// The environment's values, else the defaults. A variable that cannot be understood is an error; one that means nothing is
    /// a warning in the log, once.
    pub fn from_env() -> Result<Self> {
        static SAID: Once = Once::new();
        let config = Self::read()?;
        SAID.call_once(|| config.unknown_variables().iter().for_each(|unknown| tracing::warn!("{unknown}")));
        Ok(config)
    }

    /// A sentence for each `SYMMEM_*` variable that is set and means nothing, with the setting that is meant, for programs
    /// whose users see no log. Only one rank of a machine has any.
    pub fn unknown_variables(&self) -> Vec<String> {
        unknown::in_environment(&self.rows())
    }

    fn read() -> Result<Self> {
        Ok(Self {
            timeout: Setting::read(
                "SYMMEM_TIMEOUT",
                Some(Duration::from_secs(300)),
                parse_timeout,
                "a number of seconds above zero, or \"never\"",
            )?,
            wait_notice: Setting::read(
                "SYMMEM_WAIT_NOTICE",
                Some(Duration::from_secs(10)),
                parse_timeout,
                "a number of seconds above zero, or \"never\"",
            )?,
            signal_pad_size: Setting::read(
                "SYMMEM_SIGNAL_PAD_SIZE",
                DEFAULT_SIGNAL_PAD_SIZE,
                parse_pad_size,
                "a multiple of 8 between 8 and 2^30",
            )?,
            socket_dir: Setting::read(
                "SYMMEM_SOCKET_DIR",
                None,
                |text| Some((!text.is_empty()).then(|| PathBuf::from(text))),
                "a directory",
            )?,
            spin: Self::spin_from_env()?,
            populate: Setting::read("SYMMEM_POPULATE", true, parse_bool, "0 or 1")?,
            huge_pages: Setting::read("SYMMEM_HUGE_PAGES", true, parse_bool, "0 or 1")?,
            numa_node: Setting::read(
                "SYMMEM_NUMA_NODE",
                None,
                |text| text.parse().ok().map(Some),
                "the number of a NUMA node",
            )?,
            pidfd: Setting::read("SYMMEM_PIDFD", true, parse_bool, "0 or 1")?,
            host_id: Setting::read(
                "SYMMEM_HOST_ID",
                None,
                |text| Some((!text.is_empty()).then(|| text.to_owned())),
                "a name",
            )?,
            secret: Self::secret_from_env()?,
            allow_unauthenticated_hosts: Setting::read(
                "SYMMEM_ALLOW_UNAUTHENTICATED_HOSTS",
                false,
                parse_bool,
                "0 or 1",
            )?,
            store_bind: Setting::read(
                "SYMMEM_STORE_BIND",
                None,
                |text| Some((!text.is_empty()).then(|| text.to_owned())),
                "an address of this machine, or * for every interface",
            )?,
            tuning: Setting::read(
                "SYMMEM_TUNING",
                folders::tuning(),
                |text| Some(Some(text).filter(|text| *text != "off").map(PathBuf::from)),
                "a file, or \"off\"",
            )?,
            algorithm: Setting::read(
                "SYMMEM_ALGORITHM",
                String::new(),
                |text| each_forced(text, |_, _| ()).is_ok().then(|| text.to_owned()),
                "an algorithm, or a list like all_reduce=push,broadcast=direct",
            )?,
            threads_per_rank: Setting::read(
                "SYMMEM_THREADS_PER_RANK",
                1,
                |text| text.parse().ok().filter(|threads| (1..=MAX_THREADS).contains(threads)),
                "a number from 1 to 256",
            )?,
            allow_overlapping_devices: Setting::read(
                "SYMMEM_ALLOW_OVERLAPPING_DEVICES",
                false,
                parse_bool,
                "0 or 1",
            )?
            .or_torch("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", true),
            multicast: Setting::read("SYMMEM_MULTICAST", true, parse_bool, "0 or 1")?
                .or_torch("TORCH_SYMM_MEM_DISABLE_MULTICAST", false),
            cache_dir: Setting::read(
                "SYMMEM_CACHE_DIR",
                folders::kernels(),
                |text| Some(Some(text).filter(|text| *text != "off").map(PathBuf::from)),
                "a directory, or \"off\"",
            )?,
            max_blocks: Setting::read(
                "SYMMEM_MAX_BLOCKS",
                64,
                |text| text.parse().ok().filter(|blocks| (1..=MAX_BLOCKS).contains(blocks)),
                "a number from 1 to 128",
            )?,
            lanes: Setting::read(
                "SYMMEM_LANES",
                1,
                |text| text.parse().ok().filter(|lanes| (1..=MAX_LANES).contains(lanes)),
                "a number from 1 to 16",
            )?,
            provider: Self::provider_from_env()?,
            unreachable: Setting::read(
                "SYMMEM_UNREACHABLE",
                Vec::new(),
                parse_ranks,
                "a list of ranks like 1,3",
            )?,
        })
    }

    /// How long to spin. The variable that counted polls is refused, not ignored: whoever set it meant something by it.
    fn spin_from_env() -> Result<Setting<Duration>> {
        const GONE: &str = "SYMMEM_SPINS";
        if std::env::var_os(GONE).is_some() {
            let problem = "it counted polls and is no more. Hint: SYMMEM_SPIN is a time in microseconds; 200 is as long as 4000 polls";
            return Err(Error::invalid(GONE, problem));
        }
        let most = MAX_SPIN.as_micros();
        let expects = format!("a number of microseconds from 0 to {most}");
        Setting::read("SYMMEM_SPIN", DEFAULT_SPIN, parse_spin, &expects)
    }

    /// The job secret that the environment names, which never holds it itself.
    fn secret_from_env() -> Result<Setting<Option<Secret>>> {
        let file = Setting::read(SECRET_FILE, None, |text| Some(not_empty(text)), "a file")?;
        let number = |text: &str| match not_empty(text) {
            None => Some(None),
            Some(text) => text.parse::<u32>().ok().map(Some),
        };
        let fd = Setting::read(SECRET_FD, None, number, "the number of a descriptor")?;
        let value = match (&file.value, fd.value) {
            (Some(_), Some(_)) => {
                let problem = format!("{SECRET_FD} is set as well. Hint: one secret, so one of the two");
                return Err(Error::invalid(SECRET_FILE, problem));
            }
            (Some(path), None) => Some(Secret::from_file(Path::new(path))?),
            (None, Some(number)) => Some(Secret::from_descriptor(number)?),
            (None, None) => None,
        };
        let origin = if value.is_some() { Origin::Variable } else { Origin::Default };
        Ok(Setting { value, origin })
    }

    /// The provider that the environment names: for allocations, which know no configuration.
    fn provider_from_env() -> Result<Setting<Provider>> {
        Setting::read("SYMMEM_PROVIDER", Provider::default(), |text| text.parse().ok(), "vmm or nccl")
    }

    /// How long blocking calls wait unless told otherwise; 300 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout.set(Some(timeout));
        self
    }

    /// Lets blocking calls wait as long as it takes.
    pub fn no_timeout(mut self) -> Self {
        self.timeout.set(None);
        self
    }

    /// How long a wait lasts before it says so on stderr, with who waits for whom; `None`: never. 10 s by default, and more and more
    /// rarely after that.
    pub fn wait_notice(mut self, after: Option<Duration>) -> Self {
        self.wait_notice.set(after);
        self
    }

    /// Bytes of the signal pads of later allocations: a multiple of 8, at most 2^30.
    pub fn signal_pad_size(mut self, bytes: usize) -> Result<Self> {
        if !is_pad_size(bytes) {
            return Err(Error::invalid(
                "signal pad size",
                format!("{bytes} is not a multiple of 8 from 8 to 2^30"),
            ));
        }
        self.signal_pad_size.set(bytes);
        Ok(self)
    }

    /// A directory for the fd channel's sockets, for ranks in different network namespaces (abstract names, the
    /// default, do not cross them).
    pub fn socket_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.socket_dir.set(Some(dir.into()));
        self
    }

    /// How long a rank spins before it sleeps, at most 10 ms: on a quiet machine with a core for every rank. Ranks that outnumber
    /// the cores, share one or lose theirs to other programs spin less or not at all. 200 us by default.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin.set(spin.min(MAX_SPIN));
        self
    }

    /// Whether rendezvous touches every page up front (the default), so that no operation pays for it later.
    pub fn populate(mut self, populate: bool) -> Self {
        self.populate.set(populate);
        self
    }

    /// Whether the kernel is asked for huge pages.
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages.set(huge_pages);
        self
    }

    /// The NUMA node allocations prefer.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node.set(Some(node));
        self
    }

    /// Whether peers' lives are watched through pidfds (the default) or through `/proc`.
    pub fn pidfd(mut self, pidfd: bool) -> Self {
        self.pidfd.set(pidfd);
        self
    }

    /// A name that stands in for the kernel's boot id: ranks with different ones count as on different hosts.
    pub fn host_id(mut self, id: impl Into<String>) -> Self {
        self.host_id.set(Some(id.into()));
        self
    }

    /// The file that holds the job secret, which proves ranks on other hosts: a regular file of this user that nobody else
    /// may read, with 32 bytes or more that are the same for all ranks. Ranks on one host need none.
    pub fn secret_file(mut self, path: impl AsRef<Path>) -> Result<Self> {
        self.secret.set(Some(Secret::from_file(path.as_ref())?));
        Ok(self)
    }

    /// Makes a new file with a random job secret at `path`, which only this user may read, for [`Config::secret_file`] on every
    /// host. A file that exists already is an error, and stays as it is.
    pub fn new_secret_file(path: impl AsRef<Path>) -> Result<()> {
        secret::create(path.as_ref())
    }

    /// The job secret itself, for programs that have it from elsewhere; see [`Config::secret_file`]. It is never printed.
    pub fn secret(mut self, bytes: &[u8]) -> Result<Self> {
        self.secret.set(Some(Secret::from_code(bytes)?));
        Ok(self)
    }

    /// Whether a group may span hosts without a job secret. Whoever can write the store can then be a rank, and read and
    /// change what ranks tell each other. Off by default.
    pub fn allow_unauthenticated_hosts(mut self, allow: bool) -> Self {
        self.allow_unauthenticated_hosts.set(allow);
        self
    }

    /// The address at which a rank that serves the store listens, if that is not the one at which the others find it
    /// (`MASTER_ADDR`): behind NAT, in a container, or where `/etc/hosts` gives a loopback address for this machine's name. `*` is
    /// every interface.
    pub fn store_bind(mut self, address: impl Into<String>) -> Self {
        self.store_bind.set(Some(address.into()));
        self
    }

    /// The file in which rank 0 looks for what `symmem tune` measured; `None`: only what is built in counts.
    pub fn tuning(mut self, path: Option<PathBuf>) -> Self {
        self.tuning.set(path);
        self
    }

    /// The algorithm that rank 0 makes all ranks use: `"staged"`, or per collective `"all_reduce=push,broadcast=direct"`.
    pub fn algorithm(mut self, choice: &str) -> Result<Self> {
        each_forced(choice, |_, _| ())?;
        self.algorithm.set(choice.to_owned());
        Ok(self)
    }

    /// Threads that work on this rank's part of a large collective, the calling one included; at most 256. The results have
    /// the same bits whatever their number, which may differ between ranks.
    ///
    /// They inherit the affinity of the thread that calls, so they help only where a rank has several cores: start each rank
    /// with a mask of as many (`taskset -c 0-3 ...`, `numactl --physcpubind=0-3 ...`), or with none.
    pub fn threads_per_rank(mut self, threads: usize) -> Self {
        self.threads_per_rank.set(threads.clamp(1, MAX_THREADS));
        self
    }

    /// Whether several ranks may be on one GPU. Off by default, because it is a mistake more often than a plan.
    pub fn allow_overlapping_devices(mut self, allow: bool) -> Self {
        self.allow_overlapping_devices.set(allow);
        self
    }

    /// Whether GPU memory is also mapped for multicast, where all devices can (the default).
    pub fn multicast(mut self, multicast: bool) -> Self {
        self.multicast.set(multicast);
        self
    }

    /// Where compiled kernels are kept; `None`: nowhere, they are compiled for every engine.
    pub fn cache_dir(mut self, dir: Option<PathBuf>) -> Self {
        self.cache_dir.set(dir);
        self
    }

    /// Most blocks of a GPU kernel that waits for peers, from 1 to 128; 64 by default. Fewer leave more of the GPU to
    /// other work.
    pub fn max_blocks(mut self, blocks: u32) -> Self {
        self.max_blocks.set(blocks.clamp(1, MAX_BLOCKS));
        self
    }

    /// Number of independent orders of GPU operations in a group, from 1 to 16; 1 by default.
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.lanes.set(lanes.clamp(1, MAX_LANES));
        self
    }

    /// Where engines and their allocations have device memory from; the driver itself by default.
    pub fn provider(mut self, provider: Provider) -> Self {
        self.provider.set(provider);
        self
    }

    /// Ranks that count as out of reach of all others' loads and stores, so that NCCL carries what they take part in: for
    /// tests of that way. All ranks must say the same.
    pub fn unreachable(mut self, ranks: &[usize]) -> Self {
        self.unreachable.set(ranks.to_vec());
        self
    }

    /// As [`Config::provider`], from the environment.
    pub(crate) fn env_provider() -> Result<Provider> {
        Ok(Self::provider_from_env()?.value)
    }

    pub(crate) fn get_provider(&self) -> Provider {
        self.provider.value
    }

    pub(crate) fn get_unreachable(&self) -> &[usize] {
        &self.unreachable.value
    }

    pub(crate) fn get_allow_overlapping_devices(&self) -> bool {
        self.allow_overlapping_devices.value
    }

    pub(crate) fn get_multicast(&self) -> bool {
        self.multicast.value
    }

    pub(crate) fn get_cache_dir(&self) -> Option<&std::path::Path> {
        self.cache_dir.value.as_deref()
    }

    pub(crate) fn get_max_blocks(&self) -> u32 {
        self.max_blocks.value
    }

    pub(crate) fn get_lanes(&self) -> u32 {
        self.lanes.value
    }

    pub(crate) fn get_tuning(&self) -> Option<&std::path::Path> {
        self.tuning.value.as_deref()
    }

    pub(crate) fn get_algorithm(&self) -> &str {
        &self.algorithm.value
    }

    pub(crate) fn get_threads_per_rank(&self) -> usize {
        self.threads_per_rank.value
    }

    pub(crate) fn get_timeout(&self) -> Option<Duration> {
        self.timeout.value
    }

    pub(crate) fn get_wait_notice(&self) -> Option<Duration> {
        self.wait_notice.value
    }

    pub(crate) fn get_signal_pad_size(&self) -> usize {
        self.signal_pad_size.value
    }

    pub(crate) fn get_socket_dir(&self) -> Option<&std::path::Path> {
        self.socket_dir.value.as_deref()
    }

    pub(crate) fn get_spin(&self) -> Duration {
        self.spin.value
    }

    pub(crate) fn get_populate(&self) -> bool {
        self.populate.value
    }

    pub(crate) fn get_huge_pages(&self) -> bool {
        self.huge_pages.value
    }

    pub(crate) fn get_numa_node(&self) -> Option<u32> {
        self.numa_node.value
    }

    pub(crate) fn get_pidfd(&self) -> bool {
        self.pidfd.value
    }

    /// The address that [`Config::store_bind`] or the environment names.
    pub fn get_store_bind(&self) -> Option<&str> {
        self.store_bind.value.as_deref()
    }

    pub(crate) fn get_host_id(&self) -> Option<&str> {
        self.host_id.value.as_deref()
    }

    pub(crate) fn get_secret(&self) -> Option<&Secret> {
        self.secret.value.as_ref()
    }

    pub(crate) fn get_allow_unauthenticated_hosts(&self) -> bool {
        self.allow_unauthenticated_hosts.value
    }

    /// Whether ranks of several hosts can be one group: there is a job secret, or none is asked for
    /// ([`Config::allow_unauthenticated_hosts`]). Launchers ask before they start ranks that cannot meet.
    pub fn admits_other_hosts(&self) -> bool {
        self.get_secret().is_some() || self.get_allow_unauthenticated_hosts()
    }

    /// Where the secret came from, never what it is; "none" for the variable that did not give it.
    fn secret_row(&self, variable: &'static str, meaning: &'static str) -> ConfigRow {
        let source = self.get_secret().map(Secret::source);
        let fits = source.filter(|source| matches!(source, Source::Descriptor(_)) == (variable == SECRET_FD));
        let value = fits.map_or_else(|| "none".to_owned(), Source::to_string);
        let origin = if fits.is_some() { self.secret.origin } else { Origin::Default };
        ConfigRow { variable, value, origin, meaning }
    }

    /// Each setting with its value and origin, for `symmem config`.
    pub fn rows(&self) -> Vec<ConfigRow> {
        fn row<T>(
            variable: &'static str,
            setting: &Setting<T>,
            value: String,
            meaning: &'static str,
        ) -> ConfigRow {
            ConfigRow { variable, value, origin: setting.origin, meaning }
        }
        let or = |value: Option<String>, other: &str| value.unwrap_or_else(|| other.to_owned());
        vec![
            row(
                "SYMMEM_TIMEOUT",
                &self.timeout,
                or(self.timeout.value.map(|timeout| timeout.as_secs_f64().to_string()), "never"),
                "seconds a blocking call waits",
            ),
            row(
                "SYMMEM_WAIT_NOTICE",
                &self.wait_notice,
                or(self.wait_notice.value.map(|after| after.as_secs_f64().to_string()), "never"),
                "seconds after which a wait says so on stderr",
            ),
            row(
                "SYMMEM_SIGNAL_PAD_SIZE",
                &self.signal_pad_size,
                self.signal_pad_size.value.to_string(),
                "bytes of a signal pad",
            ),
            row(
                "SYMMEM_SOCKET_DIR",
                &self.socket_dir,
                or(self.socket_dir.value.as_ref().map(|dir| dir.display().to_string()), "abstract names"),
                "where the fd channel's sockets live",
            ),
            row(
                "SYMMEM_SPIN",
                &self.spin,
                self.spin.value.as_micros().to_string(),
                "microseconds of spinning before a rank sleeps",
            ),
            row(
                "SYMMEM_POPULATE",
                &self.populate,
                self.populate.value.to_string(),
                "touch all pages at rendezvous",
            ),
            row(
                "SYMMEM_HUGE_PAGES",
                &self.huge_pages,
                self.huge_pages.value.to_string(),
                "ask the kernel for huge pages",
            ),
            row(
                "SYMMEM_NUMA_NODE",
                &self.numa_node,
                or(self.numa_node.value.map(|node| node.to_string()), "where first touched"),
                "NUMA node of allocations",
            ),
            row(
                "SYMMEM_PIDFD",
                &self.pidfd,
                self.pidfd.value.to_string(),
                "watch peers by pidfd, not by /proc",
            ),
            row(
                "SYMMEM_HOST_ID",
                &self.host_id,
                or(self.host_id.value.clone(), "the kernel's boot id"),
                "ranks with equal ids share a host",
            ),
            self.secret_row(SECRET_FILE, "file with the secret that proves ranks on other hosts"),
            self.secret_row(SECRET_FD, "the same, as an inherited descriptor"),
            row(
                "SYMMEM_ALLOW_UNAUTHENTICATED_HOSTS",
                &self.allow_unauthenticated_hosts,
                self.allow_unauthenticated_hosts.value.to_string(),
                "let whoever writes the store be a rank",
            ),
            row(
                "SYMMEM_STORE_BIND",
                &self.store_bind,
                or(self.store_bind.value.clone(), "where the others find it"),
                "address at which a rank serves the store",
            ),
            row(
                "SYMMEM_TUNING",
                &self.tuning,
                or(self.tuning.value.as_ref().map(|path| path.display().to_string()), "off"),
                "what `symmem tune` measured",
            ),
            row(
                "SYMMEM_ALGORITHM",
                &self.algorithm,
                or(Some(self.algorithm.value.clone()).filter(|choice| !choice.is_empty()), "by size"),
                "algorithm of collectives, if forced",
            ),
            row(
                "SYMMEM_THREADS_PER_RANK",
                &self.threads_per_rank,
                self.threads_per_rank.value.to_string(),
                "threads that share a large collective",
            ),
            row(
                "SYMMEM_ALLOW_OVERLAPPING_DEVICES",
                &self.allow_overlapping_devices,
                self.allow_overlapping_devices.value.to_string(),
                "several ranks may be on one GPU",
            ),
            row(
                "SYMMEM_MULTICAST",
                &self.multicast,
                self.multicast.value.to_string(),
                "map GPU memory for multicast where possible",
            ),
            row(
                "SYMMEM_CACHE_DIR",
                &self.cache_dir,
                or(self.cache_dir.value.as_ref().map(|dir| dir.display().to_string()), "off"),
                "where compiled kernels are kept",
            ),
            row(
                "SYMMEM_MAX_BLOCKS",
                &self.max_blocks,
                self.max_blocks.value.to_string(),
                "most blocks of a GPU kernel",
            ),
            row(
                "SYMMEM_LANES",
                &self.lanes,
                self.lanes.value.to_string(),
                "independent orders of GPU operations",
            ),
            row(
                "SYMMEM_PROVIDER",
                &self.provider,
                self.provider.value.to_string(),
                "where GPU memory comes from",
            ),
            row(
                "SYMMEM_UNREACHABLE",
                &self.unreachable,
                or(
                    Some(&self.unreachable.value)
                        .filter(|ranks| !ranks.is_empty())
                        .map(|ranks| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
                    "none",
                ),
                "ranks that NCCL must carry, for tests",
            ),
        ]
    }
}

/// `text`, unless a variable is set to nothing.
fn not_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
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
        let row = |variable| config.rows().into_iter().find(|row| row.variable == variable).unwrap();
        assert_eq!((row(SECRET_FILE).value.as_str(), row(SECRET_FILE).origin), ("set in code", Origin::Code));
        assert_eq!((row(SECRET_FD).value.as_str(), row(SECRET_FD).origin), ("none", Origin::Default));
        assert!(Config::from_env().unwrap().secret(b"short").is_err());
    }

    #[test]
    fn code_beats_default_and_says_so() {
        let config = Config::from_env().unwrap().spin(Duration::from_micros(7)).populate(false);
        let rows = config.rows();
        let spin = rows.iter().find(|row| row.variable == "SYMMEM_SPIN").unwrap();
        assert_eq!((spin.value.as_str(), spin.origin), ("7", Origin::Code));
        assert_eq!(config.clone().spin(Duration::from_secs(1)).get_spin(), MAX_SPIN);
        assert!(config.signal_pad_size(12).is_err());
    }

    #[test]
    fn settings_of_the_gpu_side_stay_in_their_bounds() {
        let config = Config::from_env().unwrap().max_blocks(0).lanes(99).multicast(false).cache_dir(None);
        assert_eq!((config.get_max_blocks(), config.get_lanes()), (1, MAX_LANES));
        assert!(!config.get_multicast() && config.get_cache_dir().is_none());
        let value = |variable| {
            let row = config.rows().into_iter().find(|row| row.variable == variable);
            row.map(|row| (row.value, row.origin)).unwrap()
        };
        assert_eq!(value("SYMMEM_CACHE_DIR"), ("off".to_owned(), Origin::Code));
        assert_eq!(value("SYMMEM_LANES"), ("16".to_owned(), Origin::Code));
    }

    #[test]
    fn the_readme_has_a_row_for_every_setting() {
        let readme = include_str!("../../../README.md");
        for row in Config::from_env().unwrap().rows() {
            assert!(readme.contains(&format!("| `{}` |", row.variable)), "{}", row.variable);
        }
    }
}
