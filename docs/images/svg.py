"""SVG in one style, light or dark as the reader's system is: what `draw.py` and `plot.py` share. Only the standard library."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

#: Hues that stay apart for people who do not see red and green apart; first the light theme's, then the dark one's.
HUES = [("#0b63b0", "#6cb6ff"), ("#b4500b", "#f0a35e"), ("#0f7a5a", "#56d3a4"), ("#8a3b9c", "#d2a0e6"), ("#7a6a00", "#d9c65a"), ("#a3173d", "#ff8fa3"), ("#56606b", "#9aa6b2")]


#: Paper, ink, faint ink, lines, boxes.
PLAIN = [("#ffffff", "#161c25"), ("#1c2330", "#e8edf3"), ("#56606b", "#a3afbd"), ("#b8c1cc", "#4a5766"), ("#f3f6f9", "#212a36")]


def style() -> str:
    def theme(n: int) -> str:
        background, ink, faint, line, fill = (pair[n] for pair in PLAIN)
        rules = [
            f".paper{{fill:{background};stroke:{line}}}.under{{fill:{background}}}",
            f"text{{fill:{ink}}}.faint{{fill:{faint}}}",
            f".box{{fill:{fill};stroke:{line}}}.line{{stroke:{line};fill:none}}.ink{{stroke:{ink};fill:none}}.tip{{fill:{ink}}}",
        ]
        for number, pair in enumerate(HUES):
            rules.append(f".h{number}{{fill:{pair[n]}}}.s{number}{{stroke:{pair[n]};fill:none}}.t{number}{{fill:{pair[n]};fill-opacity:.18;stroke:{pair[n]}}}")
        return "".join(rules)

    fonts = "text{font:18px system-ui,-apple-system,'Segoe UI',sans-serif}.small{font-size:16px}.head{font-weight:600}.code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:15px}"
    return f"<style>{fonts}{theme(0)}@media(prefers-color-scheme:dark){{{theme(1)}}}</style>"


class Drawing:
    """Shapes by coordinates of the view box, in the order in which they are painted."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size = (width, height)
        self.title = title
        self.parts: list[str] = []

    def add(self, part: str) -> None:
        self.parts.append(part)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        mark = f' class="{kind}"' if kind else ""
        self.add(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{mark}>{escape(words)}</text>')

    def box(self, x: float, y: float, w: float, h: float, kind: str = "box", words: str = "", text: str = "") -> None:
        place = f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="5"'
        if kind != "box":
            self.add(f'{place} class="under"/>')  # Tints let through what is below them.
        self.add(f'{place} class="{kind}"/>')
        if words:
            self.text(x + w / 2, y + h / 2 + 5.5, words, text)

    def line(self, points: list[tuple[float, float]], kind: str = "ink", more: str = "") -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.add(f'<polyline points="{path}" class="{kind}" {more}/>'.replace(" />", "/>"))

    def arrow(self, x1: float, y1: float, x2: float, y2: float, kind: str = "ink") -> None:
        self.line([(x1, y1), (x2, y2)], kind, 'stroke-width="1.6" marker-end="url(#tip)"')

    def svg(self) -> str:
        w, h = self.size
        marker = '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" class="tip"/></marker></defs>'
        paper = f'<rect x=".5" y=".5" width="{w - 1}" height="{h - 1}" rx="8" class="paper"/>'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" role="img"><title>{escape(self.title)}</title>'
        return "\n".join([head, style(), marker, paper, *self.parts, "</svg>", ""])


def main(files: dict[str, str]) -> int:
    """Writes the files, or with `--check` says which differ from what is there."""
    if "--check" in sys.argv:
        stale = [name for name, text in files.items() if not (FOLDER / name).is_file() or (FOLDER / name).read_text() != text]
        for name in stale:
            print(f"{name} is not what {Path(sys.argv[0]).name} makes: run it without --check")
        return 1 if stale else 0
    for name, text in files.items():
        (FOLDER / name).write_text(text)
        print(name)
    return 0
