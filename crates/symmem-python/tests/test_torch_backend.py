"""Where symmetric memory comes from is chosen by torch's names and variables.

    python test_torch_backend.py CASE      # what a test runs in a process of its own, on the fake driver and the fake NCCL
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_nccl import run_script

torch = pytest.importorskip("torch")

import symmem  # noqa: E402
import symmem.torch as symm_mem  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
# Those that the reference reads, wherever in it.
VARIABLES = (
    "TORCH_SYMMMEM",
    "TORCH_SYMMMEM_NBLOCKS",
    "TORCH_SYMMMEM_IMPLICIT_POOL",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES",
    "TORCH_SYMM_MEM_ENABLE_NATIVE_ASYNC_TP",
    "ENABLE_INTRA_NODE_COMM",
    "TEST_INTRA_NODE_COMM",
)
UNKNOWN = "does not find allocation backend.*there are CUDA, NCCL, SHM"
TOO_LATE = "can not be changed after use"


# ------------------------------------------------------------------------------------- in processes with the fakes


def made_on(device: str = "cuda:0") -> symmem.Array:
    return symmem.empty(4, device=device)


def late() -> None:
    """After the first memory of a GPU the choice stands; to make it again is fine."""
    symm_mem.set_backend("CUDA")
    symm_mem.set_backend("NCCL")
    symm_mem.set_backend("CUDA")
    symmem.empty(4)
    symm_mem.set_backend("NCCL")
    assert symm_mem.get_backend("cuda") == symm_mem.get_backend("cuda:1") == "NCCL"
    assert symm_mem.get_backend("cpu") == "SHM"
    symm_mem.set_backend("CUDA")
    made_on()
    for name in ("CUDA", "cuda", "SHM"):
        symm_mem.set_backend(name)
    with pytest.raises(RuntimeError, match=f"{TOO_LATE}.*by vmm.*choose nccl"):
        symm_mem.set_backend("NCCL")
    assert symm_mem.get_backend("cuda") == "CUDA"
    # A rank of its own has its own choice.
    with symmem.Context():
        symm_mem.set_backend("NCCL")
        assert symm_mem.get_backend("cuda") == "NCCL"
    assert symm_mem.get_backend("cuda") == "CUDA"


def by_an_engine() -> None:
    """A group that has worked on a device has chosen too, also where the memory was not symmetric."""
    store = symmem.HashStore()
    group = symmem.Group(store, 0, 1, "engine")
    x = made_on()
    symmem.rendezvous(x, group)
    with pytest.raises(RuntimeError, match=TOO_LATE):
        symm_mem.set_backend("NCCL")
    group.close()


def from_nccl() -> None:
    """What is chosen is what allocates: memory of NCCL, which its group meets on."""
    import ctypes
    import os

    log = ctypes.CDLL(os.environ["SYMMEM_NCCL_LIBRARY"]).fakenccl_log
    log.restype = ctypes.c_char_p
    if "TORCH_SYMMMEM" not in os.environ:
        symm_mem.set_backend("NCCL")
    assert symm_mem.get_backend("cuda") == "NCCL"
    x = made_on()
    assert "ncclMemAlloc" in log().decode()
    group = symmem.Group(symmem.HashStore(), 0, 1, "windows")
    handle = symmem.rendezvous(x, group)
    assert "ncclCommWindowRegister" in log().decode()
    handle.close()
    group.close()


def code_wins() -> None:
    """With TORCH_SYMMMEM=NCCL: what the program says counts, in either order."""
    symm_mem.set_backend("CUDA")
    assert symm_mem.get_backend("cuda") == "CUDA"
    made_on()
    assert symm_mem.get_backend("cuda") == "CUDA"


def own_variable_wins() -> None:
    """With TORCH_SYMMMEM=NCCL and SYMMEM_PROVIDER=vmm."""
    assert symm_mem.get_backend("cuda") == "CUDA"


def variable_too_late() -> None:
    """With TORCH_SYMMMEM=NCCL, heeded by `symmem.torch`: `symmem.empty` came before."""
    made_on()
    with pytest.raises(RuntimeError, match=TOO_LATE):
        symm_mem.get_backend("cuda")


def no_multicast() -> None:
    """With devices that have multicast, and a variable that switches it off."""
    import os

    on = "TORCH_SYMM_MEM_DISABLE_MULTICAST" not in os.environ
    assert symm_mem.has_multicast_support("cuda", 0) is on
    assert symmem.current_context().has_multicast_support("cuda:0") is on
    assert not symm_mem.has_multicast_support("cuda", 7)


CASES: list[tuple[Callable[[], None], dict[str, str]]] = [
    (late, {}),
    (by_an_engine, {}),
    (from_nccl, {}),
    (from_nccl, {"TORCH_SYMMMEM": "NCCL"}),
    (from_nccl, {"SYMMEM_PROVIDER": "nccl", "TORCH_SYMMMEM": "CUDA"}),
    (code_wins, {"TORCH_SYMMMEM": "NCCL"}),
    (own_variable_wins, {"TORCH_SYMMMEM": "NCCL", "SYMMEM_PROVIDER": "vmm"}),
    (variable_too_late, {"TORCH_SYMMMEM": "NCCL"}),
    (no_multicast, {"FAKECUDA_MULTICAST": "1"}),
    (no_multicast, {"FAKECUDA_MULTICAST": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}),
]


@pytest.mark.parametrize(("case", "variables"), CASES, ids=[f"{case.__name__}{number}" for number, (case, _) in enumerate(CASES)])
def test_on_the_fakes(case: Callable[[], None], variables: dict[str, str]) -> None:
    run_script(["test_torch_backend.py", case.__name__], 2, **variables)


# --------------------------------------------------------------------------------------------------------- anywhere


def test_a_name_that_is_none_is_an_error_that_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with symmem.Context():
        for choose in (symm_mem.set_backend, symmem.set_backend, symmem.current_context().set_backend):
            for name in ("NVSHMEM", "NIXL", "", "CUDA "):
                with pytest.raises(RuntimeError, match=UNKNOWN):
                    choose(name)
        for name in ("CUDA", "NCCL", "SHM", "nccl"):
            symm_mem.set_backend(name)
        assert symm_mem.get_backend("cpu") == "SHM"
        assert symm_mem.get_backend("cuda") == symm_mem.get_backend(torch.device("cuda", 1)) == "NCCL"
        assert symm_mem.get_backend("meta") is None


def test_the_variable_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYMMEM_PROVIDER", raising=False)
    with symmem.Context():
        monkeypatch.setenv("TORCH_SYMMMEM", "NCCL")
        assert symm_mem.get_backend("cuda") == "NCCL" and symm_mem.get_backend("cpu") == "SHM"
        assert symm_mem.empty(4, device="cpu").numel() == 4
        symm_mem.set_backend("CUDA")
        assert symm_mem.get_backend("cuda") == "CUDA"
        monkeypatch.setenv("TORCH_SYMMMEM", "no such")
        for ask in (lambda: symm_mem.empty(4, device="cpu"), lambda: symm_mem.get_backend("cuda")):
            with pytest.raises(RuntimeError, match=f"TORCH_SYMMMEM: {UNKNOWN}"):
                ask()
        # The CPU's memory is the same whatever GPUs have; theirs cannot be had.
        monkeypatch.setenv("TORCH_SYMMMEM", "NVSHMEM")
        assert symm_mem.empty(4, device="cpu").numel() == 4
        for device in ("cuda", "cuda:0"):
            with pytest.raises(RuntimeError, match=f"TORCH_SYMMMEM: {UNKNOWN}"):
                symm_mem.empty(4, device=device)


def test_every_variable_of_torch_is_in_the_table() -> None:
    section = (ROOT / "docs" / "torch.md").read_text().split("\n## Variables\n", 1)[1].split("\n## ", 1)[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([A-Z_]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(VARIABLES)
    for row in rows:
        here = row.split("|")[2].strip()
        assert here.startswith(("honoured", "no effect: ")) and len(here) > 8, row


if __name__ == "__main__":
    globals()[sys.argv[1]]()
