"""The process group of the backend "symmem".

`torch.distributed` makes it and calls its methods by the names of c10d. Collectives run in order, on the caller's thread or on a
worker, messages beside them; both give real works. Tensors on other devices go to the backend that
`cpu:symmem,cuda:nccl` names.
"""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup, Store

import symmem
from symmem._symmem import _tensor_all_reduce_now
from symmem.torch._groups import forget, group_name
from symmem.torch.c10d import operations as run
from symmem.torch.c10d.companions import Companions, collective, collective_each, routed
from symmem.torch.c10d.messages import Messages
from symmem.torch.c10d.work import JointWork, Work
from symmem.torch.c10d.worker import Worker
from symmem.typing import Op

if TYPE_CHECKING:
    # Not there before 2.10.
    from torch.distributed.distributed_c10d import GroupName

# Seconds in which an operation notices that its group was aborted.
_PATIENCE = 5.0
# What torch says where a call names no timeout.
_UNSET = timedelta(milliseconds=-1)
_SUM = c10d.ReduceOp.SUM
# Bytes from which an operation is started beside the caller at once, however soon that may wait for it.
_LARGE = 256 << 10
#: In the dictionary of an error of which the other ranks know, or will know by themselves.
_TOLD = "_symmem_told"
_alive: weakref.WeakSet[SymmemProcessGroup] = weakref.WeakSet()


class SymmemProcessGroup(ProcessGroup):
    """A `torch.distributed` process group whose CPU tensors move through shared memory.

    Made by `torch.distributed.init_process_group("symmem")` and `new_group(backend="symmem")`, collectively:
    it returns when all ranks are connected.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, name: str) -> None:
        # The form with a store makes a group that Python cannot override.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        self._name = name
        self._description = "undefined"
        self._seconds = timeout.total_seconds()
        self._group = symmem.Group(store, rank, size, f"c10d/{name}", timeout=self._seconds).any_shape()
        self._limited: dict[float, symmem.Group] = {}
        self._messages = Messages(self._group, f"symmem-messages-{name}", self._seconds)
        self._worker = Worker(f"symmem-worker-{name}")
        self._turn = self._worker.turn
        self._companions = Companions(store, rank, size, timeout, name)
        self._at_once = Work.of("operation", [])
        self._at_once.complete()
        self._coalescing: list[Work] | None = None
        #: The types of other devices on which the caller has begun to coalesce.
        self._coalescing_on: set[str] = set()
        self._sequence = 0
        self._ended = False
        _alive.add(self)

    @classmethod
    def for_torch(cls, *args: Any) -> SymmemProcessGroup:
        """What torch makes when a program asks for this backend: the same, until it is noted among torch's groups."""
        group = cls(*args)
        group._companions.is_being_made()
        return group

    # What the group is

    def getBackendName(self) -> str:
        """The name of the backend, for torch."""
        return "symmem"

    @property
    def group_name(self) -> GroupName:
        """The name under which torch knows this group."""
        return group_name(self._name)

    def getGroupName(self) -> str:
        """The same, for torch's C++ side."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name
        super()._set_group_name(group_name(name))

    @property
    def group_desc(self) -> str:
        """What the group is for, as its maker said."""
        return self._description

    def getGroupDesc(self) -> str:
        """The same, for torch's C++ side."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def get_group_store(self) -> Store:
        """The store that the group was made from."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in self._companions.devices(self)]

    def _get_backend(self, device: torch.device) -> Any:
        return self if device.type == "cpu" else self._companions.of(self, device.type)

    get_backend = _get_backend

    @property
    def supports_splitting(self) -> bool:
        """No: torch asks this of what makes groups from a part of others without a store."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """Yes: coalesced operations give one work."""
        return True

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: timedelta) -> None:
        """How long operations that name no timeout may take from now on."""
        self._seconds = timeout.total_seconds()
        self._messages.seconds = self._seconds
        self._limited.clear()
        self._group = self._group.within(self._seconds)

    _set_default_timeout = set_timeout

    # How operations run

    def _within(self, timeout: timedelta) -> symmem.Group:
        """The group with an operation's own timeout; torch says -1 ms for none."""
        seconds = timeout.total_seconds()
        if seconds <= 0 or seconds == self._seconds:
            return self._group
        if seconds not in self._limited:
            self._limited[seconds] = self._group.within(seconds)
        return self._limited[seconds]

    def _start(
        self,
        name: str,
        written: Sequence[Tensor],
        opts: Any,
        function: Callable[..., None],
        calls: Sequence[tuple[Any, ...]],
    ) -> Work:
        """An operation: `function(group, *call)` for every call, as one work.

        `opts.asyncOp` is false where the caller waits for it next, and asks for nothing else: then it runs here, unless
        another thread is at one, and its error is raised here.
        """
        self._sequence += 1
        is_begun = False
        try:
            group = self._group if opts.timeout == _UNSET else self._within(opts.timeout)
            # Some options of older torch do not say.
            if not getattr(opts, "asyncOp", True) and self._coalescing is None:
                is_begun = True
                if self._worker.run_here(name, (group, function, calls, written)):
                    return self._at_once
                is_begun = False
            for tensor in written:
                run.check_dense(name, tensor)
            written = list(written)  # the caller may change its own meanwhile
            large = sum([tensor.nbytes for tensor in written]) >= _LARGE
        except Exception as error:
            # An operation tells by itself. A callback, whose thread has the turn, has begun none.
            if not is_begun or self._turn.is_here():
                self._say(error)
            vars(error)[_TOLD] = True
            raise
        operation = (group, function, calls, written)
        return self._remember(self._worker.submit(Work.of(name, written), operation, at_once=large))

    def _tell(self, error: Exception) -> None:
        """What failed in a call before its operation began is told to the others, in the turn of that operation.

        The error says whether they know already; other threads may begin operations meanwhile, so nothing that is counted could.
        """
        if not getattr(error, _TOLD, False):
            self._sequence += 1
            self._say(error)
            vars(error)[_TOLD] = True

    def _say(self, error: Exception) -> None:
        """Tells the others in place of an operation. What comes of it, after the end of the group say, is not what the caller is to hear."""
        with suppress(Exception):
            telling: run.Operation = (self._group, run.refuse, [(str(error),)], [])
            self._worker.submit(Work.of("refusal", []), telling, at_once=True)

    def _remember(self, work: Work) -> Work:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        if device.type != "cpu":
            self._companions.of(self, device.type)._start_coalescing()
            self._coalescing_on.add(device.type)
            return
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> Any:
        if device.type != "cpu":
            self._coalescing_on.discard(device.type)
            return self._companions.of(self, device.type)._end_coalescing()
        works, self._coalescing = self._coalescing or [], None
        return JointWork("coalesced", works)

    # Collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        """Every tensor becomes its reduction over all ranks."""
        is_begun = False
        try:
            # What most calls are takes the shortest way.
            if type(tensors) is list and len(tensors) == 1 and opts is not None and tensors[0].is_cpu:
                op = "sum" if opts.reduceOp == _SUM else run.op_name(opts.reduceOp, tensors)
                if not getattr(opts, "asyncOp", True) and self._coalescing is None and opts.timeout == _UNSET:
                    self._sequence += 1
                    is_begun = True  # An operation that began tells by itself.
                    if _tensor_all_reduce_now(self._turn, self._group, tensors[0], op):
                        return self._at_once
                    is_begun = False
                    self._sequence -= 1
                return self._start("all_reduce", tensors, opts, run.all_reduce, ((tensors[0], op),))
            work: Work = self._allreduce(tensors, opts)
            return work
        except Exception as error:
            if is_begun:
                vars(error)[_TOLD] = True
            self._tell(error)
            raise

    @functools.partial(collective, name="allreduce")
    def _allreduce(self, tensors: Any, opts: Any = None) -> Work:
        tensors, opts = listed(tensors), opts or c10d.AllreduceOptions()
        op = run.op_name(opts.reduceOp, tensors)
        return self._start("all_reduce", tensors, opts, run.all_reduce, [(each, op) for each in tensors])

    @collective
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """`allreduce` of a list, as one work."""
        work: Work = self.allreduce(tensors, opts or c10d.AllreduceCoalescedOptions())
        return work

    @collective
    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        """The root's tensor becomes the reduction over all ranks."""
        tensors, opts = listed(tensors), opts or c10d.ReduceOptions()
        op = run.op_name(opts.reduceOp, tensors)
        return self._start(
            "reduce", tensors, opts, run.reduce, [(each, op, opts.rootRank) for each in tensors]
        )

    @collective
    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Everybody's tensors become the root's."""
        tensors, opts = listed(tensors), opts or c10d.BroadcastOptions()
        return self._start(
            "broadcast", tensors, opts, run.broadcast, [(each, opts.rootRank) for each in tensors]
        )

    @collective
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        """`outputs[i][r]` becomes rank r's `inputs[i]`."""
        opts = opts or c10d.AllgatherOptions()
        return self._start("all_gather", flat(outputs), opts, run.all_gather_list, pairs(outputs, inputs))

    @collective
    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """`outputs[r][i]` becomes rank r's `inputs[i]`: the older form, with the ranks outside."""
        work: Work = self.allgather([list(column) for column in zip(*outputs, strict=True)], inputs, opts)
        return work

    @collective
    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        work: Work = self.allgather_into_tensor_coalesced([output], [input], opts)
        return work

    @collective_each("_allgather_base")
    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """`outputs[i]` becomes everybody's `inputs[i]`, in rank order."""
        opts = opts or c10d.AllgatherOptions()
        return self._start("all_gather_into_tensor", outputs, opts, run.all_gather, pairs(outputs, inputs))

    @collective
    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Work:
        """`outputs[i]` becomes the reduction of everybody's `inputs[i][rank]`."""
        opts = opts or c10d.ReduceScatterOptions()
        op = run.op_name(opts.reduceOp, outputs)
        calls = [(*pair, op) for pair in pairs(outputs, inputs)]
        return self._start("reduce_scatter", outputs, opts, run.reduce_scatter_list, calls)

    @collective
    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        work: Work = self.reduce_scatter_tensor_coalesced([output], [input], opts)
        return work

    @collective_each("_reduce_scatter_base")
    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """`outputs[i]` becomes the reduction of this rank's slice of everybody's `inputs[i]`."""
        opts = opts or c10d.ReduceScatterOptions()
        op = run.op_name(opts.reduceOp, outputs)
        calls = [(*pair, op) for pair in pairs(outputs, inputs)]
        return self._start("reduce_scatter_tensor", outputs, opts, run.reduce_scatter, calls)

    @collective
    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        """The root's `outputs[0][r]` becomes rank r's `inputs[0]`."""
        opts = opts or c10d.GatherOptions()
        outs = outputs[0] if outputs else []
        return self._start("gather", outs, opts, run.gather, [(outs, inputs[0], opts.rootRank)])

    @collective
    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """The root's `output` becomes everybody's `input`, in rank order; the others' is left alone."""
        opts = opts or c10d.GatherOptions()
        written = [output] if opts.rootRank == self.rank() else []
        return self._start("gather", written, opts, run.gather_single, [(output, input, opts.rootRank)])

    @collective
    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Work:
        """Everybody's `outputs[0]` becomes its part of the root's `inputs[0]`."""
        opts = opts or c10d.ScatterOptions()
        parts = inputs[0] if inputs else []
        return self._start("scatter", outputs, opts, run.scatter, [(outputs[0], parts, opts.rootRank)])

    @collective
    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        """`outputs[s]` becomes rank s's `inputs[rank]`."""
        opts = opts or c10d.AllToAllOptions()
        return self._start("all_to_all", outputs, opts, run.all_to_all, [(outputs, inputs)])

    @collective
    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Work:
        """`alltoall` of slices of two tensors; no split sizes mean equal ones."""
        opts = opts or c10d.AllToAllOptions()
        if not output_splits and not input_splits:
            return self._start("all_to_all_single", [output], opts, run.all_to_all_even, [(output, input)])
        outs = run.split_rows(output, output_splits or even(output, self.size()))
        parts = run.split_rows(input, input_splits or even(input, self.size()))
        return self._start("all_to_all_single", [output], opts, run.all_to_all, [(outs, parts)])

    # Since 2.13 torch calls these by other names; the older ones are for programs that call a group's methods.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
    gather_into_tensor = gather_single

    def barrier(self, opts: Any = None) -> Work:
        """Done when every rank is here."""
        return self._start("barrier", [], opts or c10d.BarrierOptions(), symmem.Group.barrier, [()])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that waits at most `timeout`; its `symmem.Timeout` says which ranks are missing.

        `torch.distributed.monitored_barrier` of older torch calls it for Gloo only; `symmem.torch.monitored_barrier` always does.
        """
        opts = c10d.BarrierOptions()
        if hasattr(opts, "asyncOp"):
            opts.asyncOp = False
        if timeout is not None:
            opts.timeout = timeout
        self.barrier(opts).wait()

    # Messages

    @routed
    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Work:
        """Starts a message to a rank; done when it may be overwritten."""
        run.check_dense("send", tensors[0])
        return self._remember(self._messages.send(tensors[0], destination, tag))

    @routed
    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        """Starts to receive a message from a rank."""
        run.check_dense("recv", tensors[0])
        return self._remember(self._messages.receive(tensors[0], source, tag))

    @routed
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Starts to receive a message from whichever rank sends first; `source_rank` then says which."""
        run.check_dense("recv", tensors[0])
        return self._remember(self._messages.receive(tensors[0], None, tag))

    # The end

    def shutdown(self) -> None:
        """Ends the threads once what was started is done, and leaves the group.

        `destroy_process_group` calls it.
        """
        self._end(self._seconds, "the process group was destroyed while an operation ran")

    def abort(self) -> None:
        """Fails what runs, here and on the other ranks, and ends."""
        self._end(0.0, "the process group was aborted", always=True)

    def leave(self) -> None:
        """The end of a process that did not destroy the group:

        Like a shutdown, but waits for nobody for long.
        """
        self._end(1.0, "the process ended while an operation ran")

    def _end(self, patience: float, reason: str, *, always: bool = False) -> None:
        if self._ended:
            return
        self._ended = True
        done = not always and self._worker.close(patience)
        if not done:
            self._group.abort(reason)
            self._worker.close(_PATIENCE)
        forget(self)
        self._messages.close()
        self._group.close()
        self._companions.shutdown()
        _alive.discard(self)


def listed(tensors: Any) -> list[Tensor]:
    """c10d takes a tensor or a list of them."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def flat(lists: list[list[Tensor]]) -> list[Tensor]:
    """The tensors of all lists."""
    return [tensor for tensors in lists for tensor in tensors]


def pairs(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Outputs with their inputs, as many."""
    if len(outputs) != len(inputs):
        raise symmem.Invalid(f"{len(outputs)} outputs for {len(inputs)} inputs")
    return list(zip(outputs, inputs, strict=True))


def even(tensor: Tensor, size: int) -> list[int]:
    """Equal split sizes of the first dimension."""
    if tensor.shape[0] % size:
        raise symmem.Invalid(
            f"all_to_all: a dimension of {tensor.shape[0]} does not split evenly over {size} ranks"
        )
    return [tensor.shape[0] // size] * size


@atexit.register
def _leave_all() -> None:
    for group in list(_alive):
        group.leave()


# The groups are the parent's, and so are the threads that a child would wait for at its end.
os.register_at_fork(after_in_child=_alive.clear)
