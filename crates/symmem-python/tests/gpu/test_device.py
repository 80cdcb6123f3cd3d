"""The package on a GPU with torch, ranks as processes (on one device under MPS, or on one each)."""

from __future__ import annotations

import json

import harness


def ready() -> None:
    """Skips where there is no torch, or no device for it."""
    try:
        import torch
    except ImportError:
        harness.skip("there is no torch")
    if not torch.cuda.is_available():
        harness.skip("torch finds no CUDA device")


def run_all(world: int) -> None:
    outcomes = harness.run_ranks("gpu_all", world, limit=2 * harness.LIMIT)
    for name, words in outcomes[0].items():
        print(json.dumps({"trial": name, "ranks": world, "outcome": words}), flush=True)
    wrong = {name: words for name, words in outcomes[0].items() if not words.startswith(("ok", "skipped"))}
    assert not wrong, wrong
    assert len(outcomes[0]) >= 9, "trials are missing"


def try_operators(world: int, names: str) -> None:
    """Every operator of the table, by the names of a namespace."""
    ready()
    outcomes = harness.run_ranks("gpu_operators", world, {"OPERATOR_NAMESPACE": names}, limit=2 * harness.LIMIT)
    for name, words in outcomes[0].items():
        print(json.dumps({"operator": f"{names}.{name}", "ranks": world, "outcome": words}), flush=True)
    wrong = [
        (rank, name, words)
        for rank, outcome in enumerate(outcomes)
        for name, words in outcome.items()
        if not words.startswith(("ok", "skipped"))
    ]
    assert not wrong, wrong


def test_operators_on_two_processes() -> None:
    try_operators(2, "symmem")


def test_operators_on_four_processes() -> None:
    try_operators(4, "symmem")


def test_installed_operators_on_two_processes() -> None:
    try_operators(2, "symm_mem")


def test_one_process() -> None:
    ready()
    run_all(1)


def test_two_processes() -> None:
    ready()
    run_all(2)


def test_four_processes() -> None:
    ready()
    run_all(4)


def test_ranks_that_want_different_things_of_a_room_are_told() -> None:
    ready()
    for case in ("rows", "room", "workspace", "scale", "scale of more", "kinds of scales"):
        outcomes = harness.run_ranks("gpu_unlike", 2, {"UNLIKE": case})
        print(json.dumps({"ranks that differ in": case, "outcome": outcomes}), flush=True)
        heard = [any(text in words for text in ("disagree", "in another operation", "Invalid scale shape")) for words in outcomes]
        assert all(heard), (case, outcomes)


def test_a_rank_that_waits_alone_gives_up() -> None:
    ready()
    assert harness.run_ranks("gpu_failure", 2) == ["gave up", "was told"]


if __name__ == "__main__":
    harness.main(dict(globals()))
