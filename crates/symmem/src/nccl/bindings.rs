//! NCCL's C interface, bound by hand: every type, constant and symbol of it that this crate uses is in this
//! file.
//!
//! Signatures are those of `nccl.h` and `nccl_device/core.h` of NCCL 2.30.7, which are those of every version
//! since the one that [`Gate`] names. Called by the rest of `nccl` only. What it guarantees: a symbol that a
//! version does not have is an `Option` that is `None`; structures whose size changed are filled by the
//! version that runs.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::os::unix::Library;

use super::version::Version;

/// `ncclResult_t`. A number, since a newer library may have codes that nobody here has heard of.
pub(crate) type Code = c_int;
pub(crate) const SUCCESS: Code = 0;
pub(crate) const IN_PROGRESS: Code = 7;
pub(crate) const TIMEOUT: Code = 8;

/// `ncclComm_t`.
pub(crate) type RawComm = *mut c_void;
/// `ncclWindow_t`: before 2.29 the device address of a structure.
pub(crate) type RawWindow = *mut c_void;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(crate) type RawStream = *mut c_void;

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawId(pub(crate) [u8; 128]);

/// `ncclTeam_t`, returned by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct NcclTeam {
    pub(crate) ranks: c_int,
    pub(crate) rank: c_int,
    pub(crate) stride: c_int,
}

/// `ncclWaitSignalDesc_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitSignal {
    pub(crate) count: c_int,
    pub(crate) peer: c_int,
    pub(crate) signal: c_int,
    pub(crate) context: c_int,
}

/// `NCCL_WIN_COLL_SYMMETRIC`.
pub(crate) const SYMMETRIC: c_int = 1;
/// What a window's memory must begin at a multiple of (`NCCL_WIN_REQUIRED_ALIGNMENT`).
pub(crate) const WINDOW_ALIGNMENT: usize = 4096;
/// `NCCL_SPLIT_NOCOLOR`.
pub(crate) const NO_COLOUR: c_int = -1;
/// `NCCL_SHRINK_DEFAULT` and `NCCL_SHRINK_ABORT`.
pub(crate) const SHRINK: [c_int; 2] = [0, 1];

const MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`: NCCL chooses.
const UNSET: c_int = c_int::MIN;

/// The newest structure that is bound here.
const BOUND: Version = Version::new(2, 30, 7);

/// `ncclConfig_t` of 2.30. Older ones are its beginning.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    pub(crate) blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    pub(crate) split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    channels_per_net_peer: c_int,
    nvlink_centric_sched: c_int,
    graph_usage_mode: c_int,
    rma_contexts: c_int,
    max_p2p_peers: c_int,
    graph_stream_ordering: c_int,
}

impl RawConfig {
    /// Everything left to NCCL, but that calls return before they are done; as the library of `version`
    /// expects it. A newer library than is bound here takes the structure of an older program.
    pub(crate) fn new(version: Version) -> Self {
        Self {
            size: Self::size(version),
            magic: MAGIC,
            version: version.min(BOUND).code() as c_uint,
            blocking: 0,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: ptr::null(),
            split_share: UNSET,
            // Before 2.25 this is padding.
            traffic_class: UNSET,
            comm_name: ptr::null(),
            collnet_enable: UNSET,
            cta_policy: UNSET,
            shrink_share: UNSET,
            nvls_ctas: UNSET,
            channels_per_net_peer: UNSET,
            nvlink_centric_sched: UNSET,
            graph_usage_mode: UNSET,
            rma_contexts: UNSET,
            max_p2p_peers: UNSET,
            graph_stream_ordering: UNSET,
        }
    }

    /// Bytes of the structure of `version`.
    fn size(version: Version) -> usize {
        match (version.major, version.minor) {
            (2, ..=26) => 48,
            (2, 27) => 72,
            (2, 28) => 80,
            (2, 29) => 88,
            _ => 96,
        }
    }
}

/// What a version must have for something, and since when there is it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    /// What needs it, as in a sentence.
    pub(crate) what: &'static str,
    pub(crate) since: Version,
}

const fn gate(what: &'static str, major: u32, minor: u32, patch: u32) -> Gate {
    Gate { what, since: Version::new(major, minor, patch) }
}

/// Anything at all: communicators that can be split, and memory that NCCL allocates.
pub(crate) const ANYTHING: Gate = gate("symmem", 2, 19, 1);
pub(crate) const FP8: Gate = gate("reducing 8-bit floats", 2, 24, 3);
pub(crate) const WINDOWS: Gate = gate("symmetric windows (ncclCommWindowRegister)", 2, 27, 3);
pub(crate) const SHRINKING: Gate = gate("shrinking a communicator (ncclCommShrink)", 2, 27, 3);
pub(crate) const REVOKING: Gate = gate("revoking a communicator (ncclCommRevoke)", 2, 28, 9);
pub(crate) const TEAMS: Gate = gate("asking which ranks load and store directly (ncclTeamLsa)", 2, 28, 3);
pub(crate) const MOVEMENT: Gate = gate("native all-to-all, gather and scatter", 2, 28, 3);
pub(crate) const SIGNALS: Gate = gate("signals (ncclSignal, ncclWaitSignal)", 2, 29, 2);
pub(crate) const PEER_POINTERS: Gate =
    gate("asking for peers' pointers (ncclGetPeerDevicePointer)", 2, 29, 2);

/// One table of function pointers: those that every accepted library has, and those that came later.
macro_rules! functions {
    (
        always { $($field:ident = $symbol:ident($($arg:ty),*) $(-> $result:ty)?;)* }
        since { $($gate:ident: $later:ident = $later_symbol:ident($($later_arg:ty),*) $(-> $later_result:ty)?;)* }
    ) => {
        /// The functions of a library.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> functions!(@result $($result)?),)*
            $(pub(crate) $later:
                Option<unsafe extern "C" fn($($later_arg),*) -> functions!(@result $($later_result)?)>,)*
        }

        impl Functions {
            /// The functions that `library`, which is of `version`, has; or the name of one that is missing.
            ///
            /// # Safety
            /// It is NCCL, and stays loaded.
            pub(crate) unsafe fn load(library: &Library, version: Version) -> Result<Self, &'static str> {
                // SAFETY: the types are those of the header, as the caller promises that it is NCCL.
                unsafe {
                    Ok(Self {
                        $($field: *library.get(stringify!($symbol)).map_err(|_| stringify!($symbol))?,)*
                        $($later: match version >= $gate.since {
                            true => library.get(stringify!($later_symbol)).ok().map(|symbol| *symbol),
                            false => None,
                        },)*
                    })
                }
            }
        }
    };
    (@result) => { Code };
    (@result $result:ty) => { $result };
}

functions! {
    always {
        get_unique_id = ncclGetUniqueId(*mut RawId);
        init_rank = ncclCommInitRankConfig(*mut RawComm, c_int, RawId, c_int, *mut RawConfig);
        finalize = ncclCommFinalize(RawComm);
        destroy = ncclCommDestroy(RawComm);
        abort = ncclCommAbort(RawComm);
        split = ncclCommSplit(RawComm, c_int, c_int, *mut RawComm, *mut RawConfig);
        error_string = ncclGetErrorString(Code) -> *const c_char;
        last_error = ncclGetLastError(RawComm) -> *const c_char;
        async_error = ncclCommGetAsyncError(RawComm, *mut Code);
        count = ncclCommCount(RawComm, *mut c_int);
        cuda_device = ncclCommCuDevice(RawComm, *mut c_int);
        user_rank = ncclCommUserRank(RawComm, *mut c_int);
        mem_alloc = ncclMemAlloc(*mut *mut c_void, usize);
        mem_free = ncclMemFree(*mut c_void);
        group_start = ncclGroupStart();
        group_end = ncclGroupEnd();
        all_reduce = ncclAllReduce(u64, u64, usize, c_int, c_int, RawComm, RawStream);
        reduce = ncclReduce(u64, u64, usize, c_int, c_int, c_int, RawComm, RawStream);
        reduce_scatter = ncclReduceScatter(u64, u64, usize, c_int, c_int, RawComm, RawStream);
        broadcast = ncclBroadcast(u64, u64, usize, c_int, c_int, RawComm, RawStream);
        all_gather = ncclAllGather(u64, u64, usize, c_int, RawComm, RawStream);
        send = ncclSend(u64, usize, c_int, c_int, RawComm, RawStream);
        recv = ncclRecv(u64, usize, c_int, c_int, RawComm, RawStream);
    }
    since {
        MOVEMENT: all_to_all = ncclAlltoAll(u64, u64, usize, c_int, RawComm, RawStream);
        MOVEMENT: gather = ncclGather(u64, u64, usize, c_int, c_int, RawComm, RawStream);
        MOVEMENT: scatter = ncclScatter(u64, u64, usize, c_int, c_int, RawComm, RawStream);
        SHRINKING: shrink = ncclCommShrink(RawComm, *mut c_int, c_int, *mut RawComm, *mut RawConfig, c_int);
        REVOKING: revoke = ncclCommRevoke(RawComm, c_int);
        WINDOWS: window_register = ncclCommWindowRegister(RawComm, u64, usize, *mut RawWindow, c_int);
        WINDOWS: window_deregister = ncclCommWindowDeregister(RawComm, RawWindow);
        TEAMS: team_lsa = ncclTeamLsa(RawComm) -> NcclTeam;
        PEER_POINTERS: peer_pointer = ncclGetPeerDevicePointer(RawWindow, usize, c_int, *mut u64);
        PEER_POINTERS: multicast_pointer = ncclGetLsaMultimemDevicePointer(RawWindow, usize, *mut u64);
        SIGNALS: signal = ncclSignal(c_int, c_int, c_int, c_uint, RawComm, RawStream);
        SIGNALS: wait_signal = ncclWaitSignal(c_int, *mut WaitSignal, RawComm, RawStream);
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn a_configuration_is_as_long_as_its_version_wants() {
        let fields = [
            (Version::new(2, 19, 3), offset_of!(RawConfig, comm_name)),
            (Version::new(2, 26, 2), offset_of!(RawConfig, comm_name)),
            (Version::new(2, 27, 7), offset_of!(RawConfig, channels_per_net_peer)),
            (Version::new(2, 28, 9), offset_of!(RawConfig, graph_usage_mode)),
            (Version::new(2, 29, 7), offset_of!(RawConfig, max_p2p_peers)),
            (Version::new(2, 30, 7), size_of::<RawConfig>()),
            (Version::new(2, 32, 3), size_of::<RawConfig>()),
        ];
        for (version, size) in fields {
            assert_eq!(RawConfig::new(version).size, size, "{version}");
        }
        assert_eq!(size_of::<RawConfig>(), 96);
        assert_eq!(RawConfig::new(Version::new(2, 28, 9)).version, 22809);
        assert_eq!(RawConfig::new(Version::new(2, 32, 3)).version, 23007, "what this crate knows");
    }

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<RawId>(), size_of::<NcclTeam>(), size_of::<WaitSignal>()), (128, 12, 16));
    }
}
