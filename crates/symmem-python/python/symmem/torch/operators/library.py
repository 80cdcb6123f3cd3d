"""How operators are registered: through torch's interface for extensions, from Rust, or by `torch.library` where that is not there.

From torch 2.10 on, kernels are functions of the extension module, which torch's dispatcher calls without Python. Up to 2.9 the interface
knows no strings, which all these operators take, so the kernels are Python's. Schemas, shape functions and results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from symmem import _symmem
from symmem.torch.operators.table import OPERATORS, Operator

NAMESPACE = "symmem"

#: Libraries of torch take back what they registered when they go.
_kept: list[Any] = []
_numbers: dict[str, int] = {}


def is_stable() -> bool:
    """Whether kernels are the extension module's."""
    return _symmem._torch_is_stable()


def new_library(namespace: str) -> Any:
    """A library of torch's, to define and implement operators in a namespace; it takes them back when it is destroyed."""
    make: Any = torch.library.Library
    return make(namespace, "FRAGMENT")


def register() -> None:
    """Defines every operator of the table. Once per process."""
    if _kept:
        return
    by_python = new_library(NAMESPACE)
    stable = is_stable()
    fragment = _symmem._TorchLibrary(NAMESPACE) if stable else None
    kernels: dict[str, Any] = {}
    for operator in OPERATORS:
        if fragment is None or operator.in_python:
            by_python.define(operator.signature)
            implement_in_python(by_python, NAMESPACE, operator, operator.devices)
        else:
            fragment.define(operator.signature)
            number = kernel(operator, torch._C.parse_schema(f"{NAMESPACE}::{operator.signature}"))
            for key in operator.devices:
                if key not in kernels:
                    kernels[key] = _symmem._TorchLibrary(NAMESPACE, key)
                kernels[key].implement(operator.name, number)
        register_shape(by_python, NAMESPACE, operator.name, operator.shape)
        if operator.acts:
            _mark_acting(f"{NAMESPACE}::{operator.name}")
    # Last: whoever imports again after a failure is told again.
    _kept.extend([by_python, fragment, *kernels.values()])


def _mark_acting(name: str) -> None:
    try:
        from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
    except ImportError:
        # An older torch: eager programs do not need it.
        return
    _register_effectful_op(name if _takes_names() else _overload(name), _EffectType.ORDERED)


def _takes_names() -> bool:
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)


def _overload(name: str) -> Any:
    namespace, _, short = name.partition("::")
    return getattr(getattr(torch.ops, namespace), short).default


def kernel(operator: Operator, schema: Any) -> int:
    """The number of the extension module's kernel for an operator with this schema of torch's."""
    name = str(schema.name)
    if name not in _numbers:
        _numbers[name] = _symmem._torch_operation(
            [_type(each.type) for each in schema.arguments],
            _returned(schema),
            written(schema),
            operator.function,
            operator.fast,
        )
    return _numbers[name]


def _type(kind: Any) -> str:
    """A type as the extension module calls it."""
    name = str(kind)
    for theirs, ours in (("Optional[", "?"), ("List[", "[]")):
        if name.startswith(theirs):
            return _type(kind.getElementType()) + ours
    return "int" if name == "SymInt" else name


def written(schema: Any) -> list[int]:
    """The arguments that are written."""
    return [at for at, each in enumerate(schema.arguments) if each.is_write]


def _returned(schema: Any) -> str:
    """What is returned, as the extension module wants it: see `_torch_operation`."""
    if not schema.returns:
        return ""
    (only,) = schema.returns
    if _type(only.type) == "int":
        return "int"
    if only.alias_info is not None:
        return f"={_same(schema, only)}"
    # Of those with two tensors, the second is what the program has; the first is where it goes through.
    names = [each.name for each in schema.arguments]
    return f"~{names.index('local_input') if 'local_input' in names else 0}"


def _same(schema: Any, returned: Any) -> int:
    """The argument that is returned: the one with the same alias set."""
    sets = [each.alias_info and each.alias_info.before_set for each in schema.arguments]
    return sets.index(returned.alias_info.before_set)


def register_shape(library: Any, namespace: str, name: str, shape: Callable[..., Any]) -> None:
    """Registers a shape function, until the library goes: what `torch.library.register_fake` does, which looks for the line of the source that
    called it, for a millisecond per operator."""
    full = f"{namespace}::{name}"
    try:
        place = torch._library.simple_registry.singleton.find(full).fake_impl
        library._registration_handles.append(place.register(shape, "symmem", lib=library))
    except (AttributeError, TypeError):
        # Torch has it in another place.
        torch.library.register_fake(full, shape, lib=library)


def shape_of(operator: Operator, schema: Any) -> Callable[..., Any]:
    """The shape function for torch's own schema, which may return what the operator writes."""
    returned = _returned(schema) if len(schema.returns) == 1 else ""
    if not returned.startswith("="):
        return operator.shape
    at = int(returned[1:])

    def same(*args: Any) -> Any:
        return args[at]

    return same


def implement_in_python(
    library: Any, namespace: str, operator: Operator, keys: tuple[str, ...], allow_override: bool = False
) -> None:
    """Registers a kernel of Python's for these keys."""
    schema = torch._C._get_schema(f"{namespace}::{operator.name}", "")
    function = _kernel_in_python(operator, schema)
    for key in keys:
        try:
            library.impl(operator.name, function, key, allow_override=allow_override)
        except TypeError:
            # An older torch has no such argument, and does not mind.
            library.impl(operator.name, function, key)


def _kernel_in_python(operator: Operator, schema: Any) -> Callable[..., Any]:
    """What the extension module's kernels do, in Python."""
    function, writes = operator.function, written(schema)
    names = [each.name for each in schema.arguments]
    returned = "" if operator.in_python or not schema.returns else _returned(schema)

    def run(*args: Any, **kwargs: Any) -> Any:
        if returned.startswith("~"):
            out = torch.empty_like(args[int(returned[1:])], memory_format=torch.contiguous_format)
            function(*args, out, **kwargs)
            result: Any = out
        elif returned.startswith("="):
            function(*args, **kwargs)
            result = args[int(returned[1:])]
        else:
            result = function(*args, **kwargs)
        for at in writes:
            changed = args[at] if at < len(args) else kwargs.get(names[at])
            # Not where an optional argument was left out.
            if changed is not None:
                torch.autograd.graph.increment_version(changed)
        return result if schema.returns else None

    # No operator has a gradient, also where torch could make one of what it is made of.
    kernel: Callable[..., Any] = torch.no_grad()(run)
    return kernel
