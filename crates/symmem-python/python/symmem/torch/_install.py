"""Takes over PyTorch's own symmetric memory, when a program asks for it: `install()`, and `uninstall()` gives everything back.

Programs that call `torch.ops.symm_mem.*` and `torch.distributed._symmetric_memory` run on symmem then, without a changed line. Nothing is taken
over by importing this package.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from symmem import _symmem
from symmem.torch import _external, _memory, _ops, _pool
from symmem.torch.operators import BY_NAME, Operator, library

THEIRS = "symm_mem"
MODULE = "torch.distributed._symmetric_memory"
CLASS = "torch._C._distributed_c10d"

#: Why operators are left to torch.
OF_ITS_CLASS = "takes or returns torch's class SymmetricMemory, of which only torch can make objects"
NOT_ON_CUDA = "torch's kernel for CUDA stays: symmem has none"
ANOTHER_SIGNATURE = "this torch has it with other arguments"
UNKNOWN = "symmem has none of this name"

#: Functions of torch's module that stay, and why.
LEFT_FUNCTIONS: dict[str, str] = {
    "restride_A_for_fused_matmul_reduce_scatter": "works on strides only",
    "restride_A_shard_for_fused_all_gather_matmul": "works on strides only",
}

_log = logging.getLogger("symmem.torch")


@dataclass
class Installed:
    """What `install` did. `print` it."""

    #: Operators of `torch.ops.symm_mem` by name, and the devices they are taken over for.
    operators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Names that were replaced, with their modules.
    functions: list[str] = field(default_factory=list)
    #: What is torch's as before, and why.
    left: dict[str, str] = field(default_factory=dict)
    #: Operators whose kernels for CUDA, which torch has, are symmem's now.
    overridden: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"symmem has taken over {len(self.operators)} operators of torch.ops.{THEIRS} and {len(self.functions)} names of torch",
            f"  operators on the CPU: {', '.join(sorted(n for n, d in self.operators.items() if 'CPU' in d))}",
            f"  on CUDA, over torch's kernels: {', '.join(sorted(self.overridden)) or 'none'}",
            f"  names: {', '.join(self.functions)}",
        ]
        return "\n".join(lines + [f"  left to torch: {name}: {why}" for name, why in sorted(self.left.items())])


class _State:
    report: Installed | None = None
    kernels: list[Any] = []
    #: Libraries of Python's, with shape functions and kernels.
    libraries: list[Any] = []
    #: Module, name, and what it was.
    replaced: list[tuple[Any, str, Any]] = []


def install() -> Installed:
    """Makes `torch.ops.symm_mem.*` and `torch.distributed._symmetric_memory` symmem's, in this process. Says what it did.

    A second call changes nothing and says the same. Memory that torch allocated before stays torch's, and symmem's operators do not take
    it for symmetric: call this before the first allocation.
    """
    if _State.report is not None:
        return _State.report
    theirs = importlib.import_module(MODULE)
    report = Installed()
    by_python = library.new_library(THEIRS)
    _State.libraries.append(by_python)
    try:
        _take_operators(by_python, report)
        _take_names(theirs, report)
    except BaseException:
        _give_back()
        raise
    _State.report = report
    _log.info("%s", report)
    return report


def uninstall() -> str:
    """Gives back what `install` took. Says what it did; a second call does nothing."""
    if _State.report is None:
        return "symmem has taken over nothing of torch"
    report = _State.report
    _give_back()
    text = f"torch has its {len(report.operators)} operators and {len(report.functions)} names back"
    _log.info("%s", text)
    return text


def _give_back() -> None:
    for module, name, before in reversed(_State.replaced):
        setattr(module, name, before)
    _State.replaced.clear()
    for kernels in _State.kernels:
        kernels.close()
    _State.kernels.clear()
    for each in _State.libraries:
        each._destroy()
    _State.libraries.clear()
    _State.report = None


def _take_operators(by_python: Any, report: Installed) -> None:
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith(f"{THEIRS}::"))
    carried: list[tuple[Operator, Any, tuple[str, ...]]] = []
    for full in sorted(names):
        name = full.partition("::")[2]
        schema, operator = torch._C._get_schema(full, ""), BY_NAME.get(name)
        why = _why_not(schema, operator)
        if why or operator is None:
            report.left[name] = why
            continue
        carried.append((operator, schema, operator.devices))
        if "CUDA" not in operator.devices and _has(full, "CUDA"):
            report.left[f"{name} on CUDA"] = NOT_ON_CUDA
        elif _has(full, "CUDA"):
            report.overridden.append(name)
        report.operators[name] = operator.devices
    # Kernels in Python are registered where Python filters that warning.
    if report.overridden and library.is_stable():
        _burn_warning()
    _implement(by_python, carried)


def _has(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def _why_not(schema: Any, operator: Operator | None) -> str:
    if any("__torch__" in str(each.type) for each in [*schema.arguments, *schema.returns]):
        return OF_ITS_CLASS
    if operator is None:
        return UNKNOWN
    ours = torch._C.parse_schema(f"{THEIRS}::{operator.signature}")
    same = [(each.name, str(each.type)) for each in ours.arguments] == [
        (each.name, str(each.type)) for each in schema.arguments
    ]
    return "" if same else ANOTHER_SIGNATURE


def _implement(by_python: Any, carried: list[tuple[Operator, Any, tuple[str, ...]]]) -> None:
    kernels: dict[str, Any] = {}
    for operator, schema, keys in carried:
        if operator.in_python or not library.is_stable():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                library.implement_in_python(by_python, THEIRS, operator, keys, allow_override=True)
        else:
            for key in keys:
                if key not in kernels:
                    kernels[key] = _symmem._TorchLibrary(THEIRS, key)
                    _State.kernels.append(kernels[key])
                kernels[key].implement(operator.name, library.kernel(operator, schema))
        if not _has(str(schema.name), "Meta"):
            library.register_shape(by_python, THEIRS, operator.name, library.shape_of(operator, schema))


def _burn_warning() -> None:
    """Spends torch's warning, where nobody sees it.

    Torch warns of the first kernel in the process that is put over another, on stderr. `install` says which those are instead.
    """
    scratch = [library.new_library(library.NAMESPACE) for _ in range(2)]
    scratch[0].define("_scratch(Tensor x) -> ()")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in scratch:
            each.impl("_scratch", lambda x: None, "CPU", allow_override=True)
    for each in reversed(scratch):
        each._destroy()


def _take_names(theirs: Any, report: Installed) -> None:
    ours = {
        "_SymmetricMemory": _memory.SymmetricMemory,
        "empty": _memory.empty,
        "get": _ops.get,
        "get_backend": _memory.get_backend,
        "get_mem_pool": _pool.get_mem_pool,
        "get_mempool_allocator": _pool.get_mempool_allocator,
        "get_signal_pad_size": _memory.get_signal_pad_size,
        "get_symm_mem_workspace": _memory.get_symm_mem_workspace,
        "is_nvshmem_available": _memory.is_nvshmem_available,
        "is_symm_mem_tensor": _memory.is_symm_mem_tensor,
        "put_signal": _ops.put_signal,
        "register_external_nccl_comm": _external.register_external_nccl_comm,
        "rendezvous": _memory.rendezvous,
        "set_backend": _memory.set_backend,
        "set_signal_pad_size": _memory.set_signal_pad_size,
        "wait_signal": _ops.wait_signal,
        **_enabling(),
    }
    for module, names in ((theirs, ours), (importlib.import_module(CLASS), {"_SymmetricMemory": ours["_SymmetricMemory"]})):
        for name, value in names.items():
            # Older torch has fewer; nothing is added.
            if hasattr(module, name):
                _State.replaced.append((module, name, getattr(module, name)))
                setattr(module, name, value)
                report.functions.append(f"{module.__name__}.{name}")
    report.left.update({name: why for name, why in LEFT_FUNCTIONS.items() if hasattr(theirs, name)})


def _enabling() -> dict[str, Any]:
    package = importlib.import_module("symmem.torch")
    return {name: getattr(package, name) for name in ("enable_symm_mem_for_group", "is_symm_mem_enabled_for_group")}
