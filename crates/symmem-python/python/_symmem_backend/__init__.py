"""Tells torch of the backend "symmem", so that `init_process_group("symmem")` needs no import of ours.

Every `import torch` on the machine runs `autoload` (the entry point group `torch.backends`), also in programs that have no business
with symmem, and what it raises breaks that import. So it is a package of its own that loads neither the extension nor numpy, only adds
a name to what torch has loaded already, and never raises. The backend itself is imported by the first who asks for it, and its
errors are theirs. `symmem.torch` registers by the same function, for where autoloading is off.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["autoload", "register"]


def autoload() -> None:
    """What torch calls at the end of its import."""
    try:
        # What it has not loaded by then is not there, or takes time.
        if (c10d := sys.modules.get("torch.distributed.distributed_c10d")) is not None:
            register(c10d.Backend)
    except Exception:
        # Whoever needs the backend learns why not from `import symmem.torch`.
        pass


def register(backend: Any) -> None:
    """Adds the name to torch's class `Backend`. Harmless when it is there."""
    if "SYMMEM" not in backend._plugins:
        backend.register_backend("symmem", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _backend_options: object) -> Any:
    from symmem.torch.c10d import SymmemProcessGroup

    return SymmemProcessGroup.for_torch(
        options.store, options.group_rank, options.group_size, options.timeout, options.group_id
    )
