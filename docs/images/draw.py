"""Draws the book's pictures: `python3 docs/images/draw.py` writes them, `--check` says whether they are up to date."""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # Only this folder's pictures belong here.

import svg

NAMES = ["rank 0", "rank 1", "rank 2"]


def rendezvous() -> svg.Drawing:
    d = svg.Drawing(640, 400, "Every rank allocates a buffer; after one rendezvous every rank maps everybody's")
    for rank in range(3):
        x = 20 + 205 * rank
        d.box(x, 20, 190, 92)
        d.text(x + 95, 44, NAMES[rank], "head")
        d.box(x + 25, 58, 140, 40, f"t{rank}", "its buffer")
        d.arrow(x + 95, 112, x + 95, 148)
        d.arrow(x + 95, 212, x + 95, 246)
        d.box(x, 248, 190, 106)
        d.text(x + 95, 271, NAMES[rank], "head")
        for peer in range(3):
            w = 54
            d.box(x + 8 + 60 * peer, 284, w, 56, f"t{peer}", str(peer), "head" if peer == rank else "")
            if peer == rank:
                d.line([(x + 8 + 60 * peer, 346), (x + 8 + 60 * peer + w, 346)], f"s{peer}", 'stroke-width="4"')
    d.box(20, 150, 600, 62)
    d.text(320, 176, "rendezvous: collective, once", "head")
    d.text(320, 199, "compare sizes, send descriptors, map, vote", "small faint")
    d.text(320, 381, "the same three buffers in every rank: load, store, signal, reduce", "faint")
    return d


def signals() -> svg.Drawing:
    d = svg.Drawing(640, 440, "A signal: rank 0 stores into its slot of rank 1's pad; rank 1 waits for it and clears it")
    d.text(130, 36, "rank 0", "head")
    d.text(510, 36, "rank 1", "head")
    steps = [
        (20, 54, 220, "t0", "writes its data"),
        (20, 122, 220, "t0", "put_signal(1, 0)"),
        (400, 190, 220, "t1", "wait_signal(0, 0)"),
        (400, 258, 220, "t1", "reads rank 0's data"),
    ]
    for x, y, w, kind, words in steps:
        d.box(x, y, w, 44, kind, words, "code" if "(" in words else "")
    d.arrow(130, 98, 130, 120)
    d.arrow(510, 234, 510, 256)
    d.arrow(240, 150, 398, 206)
    d.text(330, 143, "slot: 0 becomes 1", "small")
    d.text(314, 228, "slot: 1 becomes 0", "small", "middle")
    d.text(20, 290, "rank 1's signal pad", "head", "start")
    d.text(20, 312, "slot = world x channel + source", "small faint", "start")
    for channel in range(2):
        d.text(110, 350 + 40 * channel, f"channel {channel}", "small", "end")
        for source in range(3):
            mine = channel == 0 and source == 0
            d.box(122 + 84 * source, 328 + 40 * channel, 76, 32, "t0" if mine else "box", "0 or 1" if mine else "0", "small")
    d.text(110, 421, "from", "small faint", "end")
    for source in range(3):
        d.text(160 + 84 * source, 421, NAMES[source], "small faint")
    d.text(400, 352, "One writer and one reader", "small", "start")
    d.text(400, 372, "per slot. What was written", "small", "start")
    d.text(400, 392, "before the put is visible", "small", "start")
    d.text(400, 412, "after the wait.", "small", "start")
    return d


def meeting() -> svg.Drawing:
    d = svg.Drawing(640, 388, "A meeting: every rank tells every rank which call it makes, and hears the same from everybody")
    said = ["7: all_reduce", "7: all_reduce", "7: all_reduce"]
    for rank in range(3):
        x = 20 + 205 * rank
        d.box(x, 20, 190, 68)
        d.text(x + 95, 44, NAMES[rank], "head")
        d.box(x + 20, 54, 150, 26, f"t{rank}", said[rank], "code")
    for a in range(3):
        for b in range(3):
            if a != b:
                d.line([(115 + 205 * a, 88), (115 + 205 * b + 14 * (a - b), 148)], f"s{a}", 'stroke-width="1.6" marker-end="url(#tip)"')
    for rank in range(3):
        x = 20 + 205 * rank
        d.box(x, 152, 190, 122)
        d.text(x + 95, 172, "slots, one per rank", "small faint")
        for peer in range(3):
            d.box(x + 20, 180 + 30 * peer, 150, 26, f"t{peer}", said[peer], "code")
    d.box(20, 292, 295, 76)
    d.text(167, 318, "all say the same", "head")
    d.text(167, 342, "the operation runs", "small")
    d.box(325, 292, 295, 76)
    d.text(472, 318, "one says something else", "head")
    d.text(472, 342, "all ranks get the same Mismatch,", "small")
    d.text(472, 360, "and no byte has changed", "small")
    return d


def failure() -> svg.Drawing:
    d = svg.Drawing(640, 430, "Rank 2 dies; the others learn of it while they wait, and go on as a smaller group")
    for rank in range(4):
        y = 70 + 62 * rank
        d.text(20, y + 5, f"rank {rank}", "head", "start")
        if rank == 2:
            d.line([(90, y), (196, y)], "s5", 'stroke-width="3"')
            d.line([(188, y - 10), (208, y + 10)], "s5", 'stroke-width="3"')
            d.line([(208, y - 10), (188, y + 10)], "s5", 'stroke-width="3"')
            d.text(222, y + 5, "killed", "small", "start")
        else:
            d.line([(90, y), (130, y)], "s0", 'stroke-width="3"')
            d.box(130, y - 18, 170, 36, "t0", "waits in barrier()", "small")
            d.box(314, y - 18, 118, 36, "t5", "PeerLost" if rank == 0 else "GroupFailed", "small")
            d.box(446, y - 18, 174, 36, "t2", f"rank {rank - (rank > 2)} of 3", "small")
    d.text(373, 34, "names rank 2", "small")
    d.text(533, 34, "group.survivors()", "code")
    d.line([(307, 46), (307, 276)], "line", 'stroke-dasharray="5 4"')
    d.text(307, 298, "tens of ms after the death", "small faint")
    d.box(20, 318, 290, 94)
    d.text(165, 344, "one verdict per group", "head")
    d.text(165, 368, "The first cause stands: all ranks", "small")
    d.text(165, 390, "get the same culprit.", "small")
    d.box(330, 318, 290, 94)
    d.text(475, 344, "memory", "head")
    d.text(475, 368, "Poisoned by the failed operation:", "small")
    d.text(475, 390, "salvage() copies the bytes out.", "small")
    return d


def lanes() -> svg.Drawing:
    d = svg.Drawing(640, 412, "Operations of one lane run one after the other, in the same order on every rank; lanes are independent")
    tops = [[60 + 186 * rank + 64 * lane for lane in range(2)] for rank in range(2)]
    for rank in range(2):
        d.box(20, 20 + 186 * rank, 600, 172)
        d.text(36, 46 + 186 * rank, f"rank {rank}'s GPU", "head", "start")
        for lane, top in enumerate(tops[rank]):
            d.text(36, top + 24, f"lane {lane}", "", "start")
            d.text(36, top + 44, f"stream {'AB'[lane]}", "small faint", "start")
            d.line([(120, top + 27), (606, top + 27)], "line", 'stroke-width="1.6" marker-end="url(#tip)"')
    operations = [[("all_reduce", 130, 118), ("your kernel", 270, 108), ("barrier", 400, 88)], [("all_gather", 222, 118), ("your kernel", 462, 118)]]
    for lane, row in enumerate(operations):
        for words, x, width in row:
            if words != "your kernel":
                d.line([(x + width / 2, tops[0][lane] + 46), (x + width / 2, tops[1][lane] + 6)], f"s{lane}", 'stroke-width="2.4" stroke-dasharray="3 4"')
    for rank in range(2):
        for lane, row in enumerate(operations):
            for words, x, width in row:
                d.box(x, tops[rank][lane] + 8, width, 38, "box" if words == "your kernel" else f"t{lane}", words, "small")
    d.text(320, 398, "dotted: kernels of one lane meet; nothing meets across lanes", "small faint")
    return d


def track(d: svg.Drawing, y: int, name: str, spans: list[tuple[int, int, str, str]]) -> None:
    """What one rank does, one span after the other on a line of time."""
    d.text(20, y + 23, name, "head", "start")
    d.line([(96, y + 18), (620, y + 18)], "line", 'stroke-width="1.6" marker-end="url(#tip)"')
    for x, width, kind, words in spans:
        d.box(x, y, width, 36, kind, words, "small")


def event(d: svg.Drawing, x: int, top: int, bottom: int, words: str) -> None:
    d.line([(x, top), (x, bottom)], "line", 'stroke-dasharray="5 4"')
    d.text(x, top - 8, words, "small faint")


def fused_gather() -> svg.Drawing:
    d = svg.Drawing(640, 350, "all_gather_matmul: a rank multiplies its own rows, then those of a peer where they lie, once the peer has come")
    event(d, 178, 48, 166, "rank 1 has come")
    track(d, 58, "rank 0", [(104, 134, "t0", "own rows"), (242, 134, "t1", "rank 1's rows")])
    track(d, 120, "rank 1", [(180, 134, "t1", "own rows"), (318, 134, "t0", "rank 0's rows")])
    d.text(320, 196, "products of rows that are read where they lie: nothing is gathered", "small faint")
    d.text(20, 238, "unfused", "faint", "start")
    track(d, 250, "rank 0", [(104, 72, "box", "waits"), (180, 84, "t6", "gathers"), (268, 272, "t0", "all rows")])
    d.text(320, 324, "the same bits, in more time: the wait and the copies are not hidden", "small faint")
    return d


def fused_scatter() -> svg.Drawing:
    d = svg.Drawing(640, 350, "matmul_reduce_scatter: a rank makes the part that a peer waits for first, its own part last, and then adds up its parts")
    event(d, 288, 48, 166, "parts for the peer are made")
    track(d, 58, "rank 0", [(104, 180, "t1", "rank 1's rows"), (292, 180, "t0", "its own rows"), (476, 128, "t2", "adds up")])
    track(d, 120, "rank 1", [(104, 180, "t0", "rank 0's rows"), (292, 180, "t1", "its own rows"), (476, 128, "t2", "adds up")])
    d.text(320, 196, "colour: whose rows of the sum they become", "small faint")
    d.text(20, 238, "unfused", "faint", "start")
    track(d, 250, "rank 0", [(104, 364, "t0", "the whole product"), (472, 128, "t2", "reduce_scatter")])
    d.text(320, 324, "the same bits; a peer hears of its part only when all are made", "small faint")
    return d


def fused_norm() -> svg.Drawing:
    d = svg.Drawing(640, 316, "all_reduce_rms_norm: a row is reduced, added to the residual and normalised before the next one")
    d.text(20, 44, "fused: one pass, row by row", "", "start")
    for row in range(3):
        x = 20 + 200 * row
        for step, (kind, words) in enumerate([("t0", "sum"), ("t3", "add"), ("t2", "norm")]):
            d.box(x + 64 * step, 58, 60, 36, kind, words, "small")
        d.text(x + 94, 116, f"row {row}: in the cache", "small faint")
    d.text(20, 174, "unfused: three passes over memory", "", "start")
    for step, (kind, words) in enumerate([("t0", "all_reduce, all rows"), ("t3", "add, all rows"), ("t2", "norm, all rows")]):
        d.box(20 + 200 * step, 188, 192, 36, kind, words, "small")
    d.text(320, 262, "Each step is rounded as by itself, so both have the same bits,", "small faint")
    d.text(320, 284, "and so have all ranks with the same residual and weight.", "small faint")
    return d


if __name__ == "__main__":
    drawings = [rendezvous, signals, meeting, failure, lanes, fused_gather, fused_scatter, fused_norm]
    sys.exit(svg.main({f"{drawing.__name__}.svg": drawing().svg() for drawing in drawings}))
