"""The exceptions of symmem: one class per kind of failure. The text is the library's own, with a hint."""

from __future__ import annotations

__all__ = [
    "Error",
    "Timeout",
    "Cancelled",
    "PeerLost",
    "PeerLeft",
    "GroupFailed",
    "Mismatch",
    "RankFailed",
    "Unproven",
    "Busy",
    "Borrowed",
    "Poisoned",
    "Closed",
    "NothingBrought",
    "NotShared",
    "Forked",
    "OutOfMemory",
    "RankOutOfRange",
    "ChannelOutOfRange",
    "OutOfBounds",
    "Invalid",
    "Persistent",
    "NotLocal",
    "StoreFailed",
    "StoreTimeout",
    "QueueEmpty",
    "ChannelFailed",
    "SystemFailed",
    "NoCuda",
    "CudaFailed",
    "OverlappingDevices",
    "NoPeerAccess",
    "NoMulticast",
    "DeviceFailed",
    "NoLibrary",
    "LibraryTooOld",
    "LibraryFailed",
    "NoNccl",
    "NcclTooOld",
    "NcclFailed",
    "Spawned",
]


class Error(RuntimeError):
    """Anything that symmem itself raises. What is not known about a failure is None."""

    op: str | None = None  # the operation, e.g. "barrier"
    group: str | None = None  # the group's name
    rank: int | None = None  # the rank that raised it
    world_size: int | None = None
    culprit: int | None = None  # the rank to blame
    is_group_failure: bool = False  # the group has failed for good: every later operation on it fails too


class Timeout(Error, TimeoutError):
    """The deadline passed while the ranks in `missing` had not arrived."""

    missing: list[int] | None = None


class Cancelled(Error):
    """The wait was cancelled."""


class PeerLost(Error):
    """The process `pid` of rank `culprit` died."""

    pid: int | None = None


class PeerLeft(Error):
    """Rank `culprit` left the group while this rank needed it."""


class GroupFailed(Error):
    """The group is dead because of rank `culprit`; `cause` says what happened to it."""

    cause: str | None = None


class Mismatch(Error, ValueError):
    """The ranks called with arguments that must agree and do not."""


class RankFailed(Error):
    """Rank `culprit` failed in a collective set-up step, or had a wrong argument; all other ranks get this."""


class Unproven(Error):
    """The ranks in `ranks` have not proven that they belong to this job."""

    ranks: list[int] | None = None


class Busy(Error):
    """Another operation of this rank is running on the group."""


class Borrowed(Error):
    """The memory is in use by another operation."""


class Poisoned(Error):
    """A group failed while it was using the memory."""


class Closed(Error):
    """The handle was closed, or its group was."""


class NothingBrought(Error):
    """The ranks in `ranks` brought no memory to the rendezvous, and the call needs theirs."""

    ranks: list[int] | None = None


class NotShared(Error):
    """An array that another process shared cannot be opened, or not any more."""


class Forked(Error):
    """This process was forked from a rank and is not a rank itself."""


class OutOfMemory(Error, MemoryError):
    """More memory than there is."""


class RankOutOfRange(Error, IndexError):
    """A rank outside the group: `given`."""

    given: int | None = None


class ChannelOutOfRange(Error, IndexError):
    """A channel beyond the signal pad."""


class OutOfBounds(Error, IndexError):
    """A view, offset or copy beyond the buffer."""


class Invalid(Error, ValueError):
    """An argument that cannot be right."""


class Persistent(Error):
    """A persistent allocation that is still in use, or of another size."""


class NotLocal(Error):
    """Ranks that are not on this host."""


class StoreFailed(Error):
    """The store failed."""


class StoreTimeout(StoreFailed, Timeout):
    """The store did not answer, or a key was not there, before the deadline."""


class QueueEmpty(StoreFailed):
    """A pop that does not wait found nothing."""


class ChannelFailed(Error):
    """The channel that passes file descriptors to a peer failed."""


class SystemFailed(Error, OSError):
    """A system call failed with `errno`."""


class NoCuda(Error):
    """CUDA cannot be used at all: no driver, too old a one, or no device."""


class CudaFailed(Error):
    """A call of the CUDA driver or compiler failed with `code`."""

    code: int | None = None


class OverlappingDevices(Error):
    """Several ranks are on one device, and that was not asked for."""


class NoPeerAccess(Error):
    """A rank's device cannot reach the memory of another rank's."""


class NoMulticast(Error):
    """An operation was told to use multicast, and the ranks do not have it."""


class DeviceFailed(Error):
    """An operation failed on the device because of rank `culprit`; `cause` says what happened to it."""

    cause: str | None = None


class NoLibrary(Error):
    """A foreign `library` ("NCCL", "NVRTC") cannot be used at all: there is none, or it is something else."""

    library: str | None = None


class LibraryTooOld(Error):
    """The foreign `library` that was found is too old for what was asked."""

    library: str | None = None


class LibraryFailed(Error):
    """A call of a foreign `library` failed with `code`."""

    library: str | None = None
    code: int | None = None


# What they were called when NCCL was the only one.
NoNccl = NoLibrary
NcclTooOld = LibraryTooOld
NcclFailed = LibraryFailed


class Spawned(Error):
    """The spawned rank `rank` failed first."""

    traceback: str | None = None  # the rank's own, where it had one
