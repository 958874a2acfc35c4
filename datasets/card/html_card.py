"""A dataset card: one HTML file that needs no other, dark and light, for phones and desks.

Manifests come from strangers: every text is escaped, and the page forbids scripts and requests of any kind.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..._version import __version__
from ...errors import UsageError
from ...storage.episodes import EpisodeTable
from ...storage.manifest import Manifest
from .facts import Facts, how_to_load, state_facts, state_lineage, state_origin, state_tensors
from .figure import add_scores, draw_elements, draw_histogram, draw_returns, svg_chart
from .overview import Distribution, Overview, return_series
from .target import MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def escape(text: str) -> str:
    """Text of strangers for HTML: markup escaped, control characters replaced."""
    shown = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
    return html.escape(shown, quote=True)


SUFFIXES = (".html", ".htm")

#: Most episodes that get a dot each, and episodes whose frames are shown.
MOST_DOTS, FRAME_EPISODES = 800, 3
#: The longer side of a frame in pixels, before the browser enlarges it.
_SIDE = 160

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5d6878; --line: #dfe3e9;
  --bar: #2f6db3; --band: #bcd3ee; --cut: #c2540a; --code: #eef1f5; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b212a; --ink: #e6eaf0; --soft: #9aa6b6;
  --line: #2e3743; --bar: #6ea8e8; --band: #2b4a6d; --cut: #ff9a57; --code: #12171e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 40px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 8px 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 10px; }
h3 { font-size: .9rem; margin: 0 0 4px; font-weight: 600; overflow-wrap: anywhere; }
p { margin: 0 0 8px; } .soft, figcaption, footer { color: var(--soft); font-size: .87rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px; margin-top: 14px;
  min-width: 0; }
.grid { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(min(290px, 100%), 1fr)); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(220px, 100%), 1fr)); gap: 12px 22px; margin: 0; }
.facts dt, .list dt { color: var(--soft); font-size: .82rem; } .facts dd { margin: 0; overflow-wrap: anywhere; }
.list { margin: 0; display: grid; grid-template-columns: minmax(80px, max-content) 1fr; gap: 4px 16px; }
.list dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
pre + pre { margin-top: 10px; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; margin: 0;
  overflow-x: auto; font: 13px/1.5 ui-monospace, monospace; }
.wrap { white-space: pre-wrap; overflow-wrap: anywhere; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } tr:last-child td { border-bottom: 0; }
code { font: .92em ui-monospace, monospace; } .grid + .scroll { margin-top: 18px; } footer { margin-top: 14px; }
svg { display: block; width: 100%; height: auto; }
.strip { display: flex; flex-wrap: wrap; gap: 6px; margin: 4px 0 12px; }
.strip img { width: calc((100% - 42px) / 8); height: auto; image-rendering: pixelated; border-radius: 3px; }
svg.narrow { display: none; }
@media (max-width: 640px) { svg.wide { display: none; } svg.narrow { display: block; }
  .strip img { width: calc((100% - 18px) / 4); }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; } th, td { padding-right: 8px; }
  .list { grid-template-columns: 1fr; gap: 0; } .list dd { margin-bottom: 6px; } }
"""


def make_html(folder: Path, manifest: Manifest, found: Overview, table: EpisodeTable) -> str:
    """The page."""
    command, python = how_to_load(manifest)
    shell = f"<pre>{escape(command)}</pre>" if command else ""
    parts = [
        _section("At a glance", _definitions(state_facts(manifest, found), "facts")),
        _section("Load it", f"{shell}<pre>{escape(python)}</pre>"),
        *_charts(folder, found, table),
        _section("Tensors", _tensors(manifest)),
        _section("Origin", _definitions(state_origin(manifest), "list")),
    ]
    if manifest.lineage:
        parts.append(_section("Lineage", _definitions(state_lineage(manifest.lineage), "list")))
    if manifest.notes:
        parts.append(_section("Notes", "".join(f"<p>{escape(note)}</p>" for note in manifest.notes)))
    if manifest.citation:
        parts.append(_section("Citation", f'<pre class="wrap">{escape(manifest.citation)}</pre>'))
    title = escape(manifest.id)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{MARK}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body><main>
<p class="soft">Dataset for offline reinforcement learning</p>
<h1>{title}</h1>
{"".join(parts)}
<footer><p>{MARK.capitalize()} {__version__}.</p></footer>
</main></body>
</html>
"""


def _charts(folder: Path, found: Overview, table: EpisodeTable) -> list[str]:
    if not found.steps:
        return []
    sampled = found.sampled_steps < found.steps
    sample = f" (of a sample of {found.sampled_steps:,} steps)" if sampled else ""
    return [
        _section("Returns over time", _returns(found, table)),
        _section(f"Distributions{sample}", _distributions(found)),
        _frames(folder),
    ]


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>\n"


def _definitions(facts: Facts, kind: str) -> str:
    entries = [f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts]
    if kind == "facts":
        entries = [f"<div>{entry}</div>" for entry in entries]
    return f'<dl class="{kind}">{"".join(entries)}</dl>'


def _returns(found: Overview, table: EpisodeTable) -> str:
    series = return_series(table, MOST_DOTS)

    def draw(axes: Axes) -> None:
        draw_returns(axes, found, series)
        add_scores(axes, found)

    sizes = (("wide", (10, 3)), ("narrow", (4.2, 3)))
    return "".join(svg_chart("returns over steps", size, draw, kind) for kind, size in sizes)


def _distributions(found: Overview) -> str:
    charts = [("return of an episode", found.returns), ("length of an episode", found.lengths)]
    charts += [("reward of a step", found.rewards.elements[0])]
    charts += [(one.key, one.elements[0]) for one in found.actions if one.size == 1]
    several = [one for one in found.actions if one.size > 1]
    drawn = "".join(
        f"<div><h3>{escape(name)}</h3>{svg_chart(name, (3.6, 1.9), partial(draw_histogram, histogram=one))}</div>"
        for name, one in charts
    )
    return f'<div class="grid">{drawn}</div>' + (_elements(several) if several else "")


def _elements(actions: Sequence[Distribution]) -> str:
    """Actions of several elements: their distributions, and a table of their statistics."""
    rows = [row for one in actions for row in zip(one.names, one.elements)]
    lines = "".join(
        f"<tr><td><code>{escape(name)}</code></td>"
        + "".join(f"<td>{'-' if value is None else f'{value:.4g}'}</td>" for value in (one.mean, one.low, one.high))
        + "</tr>"
        for name, one in rows
    )
    chart = svg_chart("elements of actions", (7, 0.7 + 0.16 * len(rows)), partial(draw_elements, actions=actions))
    head = "<tr><th>element</th><th>mean</th><th>min</th><th>max</th></tr>"
    return f'{chart}<div class="scroll"><table>{head}{lines}</table></div>'


def _frames(folder: Path) -> str:
    """Frames of a few episodes, or nothing for a dataset without frames."""
    from ...storage.dataset import Dataset
    from .frames import choose_strips, describe_strip, encode_image, enlarged, frame_leaf, read_pictures

    dataset = Dataset(folder)
    try:
        leaf = frame_leaf(dataset)
    except UsageError:
        return ""
    strips = []
    for strip in choose_strips(dataset)[:FRAME_EPISODES]:
        images = []
        for step, one in zip(strip.steps, read_pictures(dataset, leaf, strip.steps)):
            small = enlarged(one, _SIDE) if max(one.size) > _SIDE else one
            data = base64.b64encode(encode_image(small, ".png")).decode()
            images.append(f'<img alt="step {step - strip.first}" src="data:image/png;base64,{data}">')
        caption = escape(describe_strip(dataset, strip))
        strips.append(f'<figcaption>{caption}</figcaption><div class="strip">{"".join(images)}</div>')
    return _section("Frames", "".join(strips))


def _tensors(manifest: Manifest) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(key)}</code></td><td>{escape(dtype)}</td><td>{escape(shape)}</td></tr>"
        for key, dtype, shape in state_tensors(manifest)
    )
    return f'<div class="scroll"><table><tr><th>key</th><th>dtype</th><th>shape</th></tr>{rows}</table></div>'
