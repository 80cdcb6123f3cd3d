"""Plots the numbers of README.md: `python3 docs/images/plot.py` writes the plots.

The numbers are in `numbers.json`; docs/benchmarks.md says how each was measured. `--tables` prints the tables of README.md.
`--check` writes nothing: it says whether the plots, README.md's tables and those of docs/benchmarks.md have these numbers.
"""

from __future__ import annotations

import json
import math
import re
import sys

sys.dont_write_bytecode = True  # Only this folder's pictures belong here.

import svg

#: Numbers as they were written, so that 2.0 stays 2.0.
NUMBERS = json.loads((svg.FOLDER / "numbers.json").read_text(), parse_float=str, parse_int=str)
README = svg.FOLDER.parent.parent / "README.md"
BENCHMARKS = svg.FOLDER.parent / "benchmarks.md"
#: Ratios of one cell stay on one line.
BESIDE = ",\N{NO-BREAK SPACE}"


def marked(ratio: str) -> str:
    """A ratio, bold where the other system is faster."""
    return f"**{ratio}**" if float(ratio) > 1 else ratio


def row(name: str, measured: dict[str, list[str]], *others: list[str]) -> str:
    """A time, and its ratio on this machine and on others."""
    ratios = zip(measured["ratio"], *others, strict=True)
    cells = [f"{us} ({BESIDE.join(map(marked, all_ratios))})" for us, all_ratios in zip(measured["us"], ratios, strict=True)]
    return f"| {name} | {' | '.join(cells)} |"


def head(title: str, sizes: list[str]) -> list[str]:
    return [f"| {title} | {' | '.join(sizes)} |", "|---" * (len(sizes) + 1) + "|"]


def tables() -> list[str]:
    """The tables of README.md."""
    cpu, gpu = NUMBERS["cpu"], NUMBERS["gpu"]
    lines = head("2 ranks", cpu["sizes"])
    lines += [row(f"{name}, symmetric", measured) for name, measured in cpu["symmetric"].items()]
    lines += [row(f"{name}, private", measured, cpu["sapphire_rapids"][name]) for name, measured in cpu["private"].items()]
    graph = head("bf16", gpu["sizes"])
    # docs/benchmarks.md and the plot have the rows of private memory too.
    graph += [row(name, measured) for name, measured in gpu["all_reduce"].items() if "private" not in name]
    return ["\n".join(lines), "\n".join(graph)]


def cells(title: str) -> dict[str, dict[str, str]]:
    """The table of docs/benchmarks.md whose head begins with `title`: its cells by row and column."""
    for block in BENCHMARKS.read_text().split("\n\n"):
        if block.startswith(f"| {title}"):
            head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.strip().split("\n")]
            return {row[0].replace("*", "").replace("`", ""): dict(zip(head[1:], row[1:], strict=True)) for row in rows}
    return {}


def wrong_cells() -> list[str]:
    """Cells of docs/benchmarks.md that are not what `numbers.json` has."""
    cpu, gpu = NUMBERS["cpu"], NUMBERS["gpu"]
    both = {name: [f"{us} ({marked(ratio)})" for us, ratio in zip(measured["us"], measured["ratio"], strict=True)] for name, measured in (cpu["private"] | gpu["all_reduce"]).items()}
    tables = [
        ("all_reduce f32", cpu["sizes"], cpu["time"] | {"symmem / best of them": cpu["symmetric"]["all_reduce"]["ratio"]}),
        ("private memory, Zen 4", cpu["sizes"], {name: both[name] for name in cpu["private"]}),
        ("private memory, Sapphire Rapids", cpu["sizes"], {name: list(map(marked, ratios)) for name, ratios in cpu["sapphire_rapids"].items()}),
        ("all_reduce, warm", gpu["sizes"], {name: both[name] for name in gpu["all_reduce"]}),
    ]
    wrong = []
    for title, sizes, rows in tables:
        found = cells(title)
        for name, wanted in rows.items():
            for size, value in zip(sizes, wanted, strict=True):
                is_there = found.get(name, {}).get(size)
                if is_there != value:
                    wrong.append(f"docs/benchmarks.md, {title}, {name}, {size}: {is_there}, and numbers.json has {value}")
    return wrong


def unknown_numbers() -> list[str]:
    """Numbers with a point that README.md has beside its tables, and docs/benchmarks.md nowhere."""
    section = README.read_text().split("\n## Numbers\n")[1].split("\n## ")[0]
    prose = "\n".join(line for line in section.split("\n") if not line.startswith("|"))
    known = set(re.findall(r"\d+\.\d+", BENCHMARKS.read_text()))
    return [f"README.md has the number {number}, and docs/benchmarks.md has not" for number in re.findall(r"\d+\.\d+", prose) if number not in known]


def tick_name(tick: float) -> str:
    return f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}"


class Panel:
    """A plot in a part of a drawing: sizes along x, a logarithmic or plain y."""

    def __init__(self, drawing: svg.Drawing, place: tuple[float, float, float, float], sizes: list[str], ticks: list[float], log: bool) -> None:
        self.d, (self.x, self.y, self.w, self.h), self.log = drawing, place, log
        self.count, self.low, self.high = len(sizes), ticks[0], ticks[-1]
        for tick in ticks:
            y = self.at(tick)
            self.d.line([(self.x, y), (self.x + self.w, y)], "line", 'stroke-width=".8"')
            self.d.text(self.x - 6, y + 5, tick_name(tick) if log else f"{tick:.1f}", "small faint", "end")
        for n, size in enumerate(sizes):
            self.d.text(self.across(n), self.y + self.h + 20, size.replace(" ", "\N{NO-BREAK SPACE}"), "small faint")

    def across(self, n: int) -> float:
        return self.x + 22 + (self.w - 44) * n / (self.count - 1)

    def at(self, value: float) -> float:
        scale = math.log if self.log else float
        return self.y + self.h * (1 - (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low)))

    def series(self, values: list[str], hue: int, wide: bool = False, dashed: bool = False) -> None:
        points = [(self.across(n), self.at(float(value))) for n, value in enumerate(values)]
        self.d.line([(round(x, 1), round(y, 1)) for x, y in points], f"s{hue}", f'stroke-width="{3.2 if wide else 1.8}"' + (' stroke-dasharray="6 4"' if dashed else ""))
        for x, y in points:
            self.d.add(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4 if wide else 3}" class="h{hue}"/>')

    def limit(self) -> None:
        """A line where both systems are equally fast."""
        self.d.line([(self.x, self.at(1)), (self.x + self.w, self.at(1))], "ink", 'stroke-width="1.6"')


def legend(d: svg.Drawing, x: float, y: float, entries: list[tuple[str, int, bool, bool]], across: float, columns: int) -> None:
    for n, (name, hue, wide, dashed) in enumerate(entries):
        left, top = x + across * (n % columns), y + 22 * (n // columns)
        d.line([(left, top), (left + 26, top)], f"s{hue}", f'stroke-width="{3.2 if wide else 1.8}"' + (' stroke-dasharray="6 4"' if dashed else ""))
        d.text(left + 34, top + 5, name, "small", "start")


def cpu() -> svg.Drawing:
    numbers = NUMBERS["cpu"]
    d = svg.Drawing(640, 744, "CPU: time of an all_reduce by size, and the time of collectives on private memory in relation to the best other system")
    d.text(20, 32, "all_reduce, 2 ranks, f32: microseconds, lower is better", "head", "start")
    d.text(20, 54, "AMD Zen 4, 2 virtual cores; symmem in symmetric memory", "small faint", "start")
    time = Panel(d, (66, 76, 554, 220), numbers["sizes"], [0.1, 1, 10, 100, 1000, 10000, 100000], log=True)
    entries = []
    for hue, (name, values) in zip([0, 6, 1, 2, 3, 4, 5], numbers["time"].items(), strict=True):
        time.series(values, hue, wide=hue == 0, dashed=hue == 6)
        entries.append((name, hue, hue == 0, hue == 6))
    legend(d, 30, 338, entries, 200, 3)
    d.text(20, 430, "private memory: time relative to the best other system", "head", "start")
    d.text(20, 452, "above 1 another is faster; solid Zen 4, dashed Intel Sapphire Rapids", "small faint", "start")
    ratio = Panel(d, (66, 474, 554, 180), numbers["sizes"], [0, 0.5, 1, 1.5, 2], log=False)
    ratio.limit()
    entries = []
    for hue, name in enumerate(numbers["private"]):
        ratio.series(numbers["private"][name]["ratio"], hue)
        ratio.series(numbers["sapphire_rapids"][name], hue, dashed=True)
        entries.append((name, hue, False, False))
    legend(d, 30, 698, entries, 200, 3)
    return d


def gpu() -> svg.Drawing:
    numbers = NUMBERS["gpu"]
    d = svg.Drawing(640, 380, "GPU: time of an all_reduce in relation to PyTorch's symmetric memory")
    d.text(20, 32, "all_reduce, bf16: time relative to PyTorch's", "head", "start")
    d.text(20, 54, "one H200 that ranks share, CUDA graphs; above 1 PyTorch's is faster", "small faint", "start")
    panel = Panel(d, (66, 76, 554, 200), numbers["sizes"], [0, 0.2, 0.4, 0.6, 0.8, 1], log=False)
    panel.limit()
    entries = []
    for n, (name, measured) in enumerate(numbers["all_reduce"].items()):
        panel.series(measured["ratio"], n % 3, dashed=n > 2)
        entries.append((name, n % 3, False, n > 2))
    legend(d, 30, 326, entries, 200, 3)
    return d


if __name__ == "__main__":
    if "--tables" in sys.argv:
        print("\n\n".join(tables()))
        sys.exit()
    stale = "--check" in sys.argv and any(table not in README.read_text() for table in tables())
    if stale:
        print("README.md does not have the tables that --tables prints")
    for problem in wrong_cells() + unknown_numbers() if "--check" in sys.argv else []:
        print(problem)
        stale = True
    sys.exit(svg.main({"plot-cpu.svg": cpu().svg(), "plot-gpu.svg": gpu().svg()}) or stale)
