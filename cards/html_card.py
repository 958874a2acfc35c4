"""A dataset card: one HTML file that needs no other, dark and light, for phones and desks.

Manifests come from strangers: every text is escaped, and the page forbids scripts and requests of any kind. Charts are inline
SVG, coloured by classes of the page.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from .._version import __version__
from ..errors import UsageError
from ..storage import amounts
from ..storage.episodes import EpisodeTable
from ..storage.manifest import Manifest
from .card_file import MARK
from .facts import Facts, how_to_load, state_facts, state_origin, state_tensors
from .overview import Histogram, Overview, ReturnSeries, return_series


def escape(text: str) -> str:
    """Text of strangers for HTML: markup escaped, control characters replaced."""
    shown = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
    return html.escape(shown, quote=True)


# -- charts --------------------------------------------------------------------------------------------------------------


def _draw_histogram(name: str, histogram: Histogram) -> str:
    """A histogram with its largest share, its smallest and its largest value."""
    width, height, left, base = 320, 132, 6, 108
    if not histogram.counts:
        return _svg(name, width, height, _text(width / 2, 70, "no finite value", "middle"))
    shares = histogram.shares
    most = max(max(shares), 1e-12)
    slot = (width - 2 * left) / len(shares)
    gap = min(slot * 0.2, 8) if histogram.values else 0.6
    wide = min(slot - gap, 90)
    parts, ranges = [], _labels(histogram)
    for number, (share, label) in enumerate(zip(shares, ranges)):
        x, tall = left + number * slot + (slot - wide) / 2, share / most * (base - 20)
        tall = max(tall, 1.2) if share else 0
        title = f"<title>{escape(label)}: {escape(amounts.exact_percent(share))}</title>"
        rect = (
            f'<rect class="bar" x="{x:.1f}" y="{base - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}">{title}</rect>'
        )
        parts.append(rect)
        if histogram.values and len(shares) <= 7:
            parts.append(_text(x + wide / 2, base - tall - 4, amounts.exact_percent(share), "middle"))
    parts.append(f'<path class="axis" d="M{left} {base + 0.5}H{width - left}"/>')
    if histogram.values and len(shares) <= 12:
        for number, value in enumerate(histogram.values):
            parts.append(_text(left + (number + 0.5) * slot, base + 15, _brief(value), "middle"))
    else:
        parts.append(_text(left, base + 15, _brief(histogram.low or 0)))
        parts.append(_text(width - left, base + 15, _brief(histogram.high or 0), "end"))
        parts.append(_text(width - left, 12, f"highest {amounts.exact_percent(most)}", "end"))
    if histogram.not_finite:
        parts.append(_text(left, 12, f"{amounts.count(histogram.not_finite)} not finite", "start", "warn"))
    return _svg(name, width, height, "".join(parts))


def _draw_spark(name: str, histogram: Histogram) -> str:
    """A histogram without labels, for one line of a table."""
    width, height = 140, 22
    most = max(histogram.shares, default=1) or 1
    slot = width / max(1, len(histogram.counts))
    bars = (
        f'<rect class="bar" x="{number * slot:.1f}" y="{height - share / most * height:.1f}" '
        f'width="{max(slot - 0.6, 0.6):.1f}" height="{share / most * height:.1f}"/>'
        for number, share in enumerate(histogram.shares)
    )
    return _svg(name, width, height, "".join(bars), "spark")


def _draw_series(series: ReturnSeries, found: Overview, width: int, kind: str) -> str:
    """Returns over the steps; cut episodes marked; with a reference, normalised scores on the right."""
    height, left, right, top, base = 270, 52, 48 if found.reference else 16, 14, 236
    finite = np.concatenate([one[np.isfinite(one)] for one in (series.low, series.high)])
    if not len(finite):
        return _svg(
            "returns over steps", width, height, _text(width / 2, height / 2, "no finite return", "middle"), kind
        )
    low, high = float(finite.min()), float(finite.max())
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin
    steps = max(1, found.steps)

    def at(step: float, value: float) -> str:
        x = left + step / steps * (width - left - right)
        return f"{x:.1f} {base - (value - low) / (high - low) * (base - top):.1f}"

    parts = []
    for tick in _ticks(low, high):
        y = at(0, tick).split()[1]
        parts.append(
            f'<path class="grid" d="M{left} {y}H{width - right}"/>' + _text(left - 8, float(y) + 4, _brief(tick), "end")
        )
        if found.reference:
            parts.append(_text(width - right + 8, float(y) + 4, f"{found.score(tick):.3g}", "start", "score"))
    for tick in _ticks(0, steps):
        if tick <= steps and tick == int(tick):
            parts.append(_text(float(at(tick, low).split()[0]), base + 18, _metric(tick), "middle"))
    parts.append(f'<path class="axis" d="M{left} {base}H{width - right}"/>')
    known = np.isfinite(series.mean)
    x, mean = series.steps[known], series.mean[known]
    if series.single:
        parts.append(f'<path class="dots" d="{"".join(f"M{at(*point)}h0" for point in zip(x, mean))}"/>')
        x, mean = series.running_mean()
    else:
        edge = [*zip(x, series.high[known]), *reversed(list(zip(x, series.low[known])))]
        parts.append(f'<path class="band" d="M{"L".join(at(*point) for point in edge)}Z"/>')
    if len(x):
        parts.append(f'<path class="line" d="M{"L".join(at(*point) for point in zip(x, mean))}"/>')
    cuts = "".join(
        f"M{at(step, value)}m-3.5 -3.5l7 7m-7 0l7 -7"
        for step, value in zip(series.cut_steps, series.cut_returns)
        if math.isfinite(value)
    )
    parts.append(f'<path class="cut" d="{cuts}"/>' if cuts else "")
    return _svg("returns over steps", width, height, "".join(parts), kind)


def _svg(name: str, width: int, height: int, content: str, kind: str = "chart") -> str:
    return f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name)}">{content}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _labels(histogram: Histogram) -> Iterable[str]:
    if histogram.values:
        return map(amounts.real, histogram.values)
    return (f"{amounts.real(low)} to {amounts.real(high)}" for low, high in zip(histogram.edges, histogram.edges[1:]))


def _brief(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() and abs(number) < 1e7 else f"{number:.4g}"


def _metric(number: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:.4g}"


def _ticks(low: float, high: float) -> list[float]:
    """About four round numbers in between."""
    rough = (high / 5 - low / 5) or 1.0
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= rough * 0.75)
    first = math.ceil(low / step)
    return [round(number * step, 12) for number in range(first, first + 9) if number * step <= high]


# -- the page ------------------------------------------------------------------------------------------------------------

SUFFIXES = (".html", ".htm")

#: Most episodes that get a dot each, and frames of so many episodes.
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
svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; } svg text { fill: var(--soft); }
svg.spark { width: 140px; height: 22px; } svg .warn, svg .cut { fill: var(--cut); } svg .score { fill: var(--bar); }
.bar { fill: var(--bar); } .band { fill: var(--band); } .axis { stroke: var(--soft); fill: none; }
svg path.grid { stroke: var(--line); } svg path.cut { stroke: var(--cut); stroke-width: 1.6; fill: none; }
.line { fill: none; stroke: var(--ink); stroke-width: 1.8; stroke-linejoin: round; }
.dots { fill: none; stroke: var(--bar); stroke-width: 5; stroke-linecap: round; opacity: .7; }
.key { color: var(--soft); font-size: .85rem; margin: 6px 0 0; } .key b { font-weight: 400; } .x { color: var(--cut); }
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
    from ..preprocess.lineage import describe_lineage

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
        parts.append(_section("Lineage", _definitions(describe_lineage(manifest.lineage), "list")))
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
    key = ["dots: episodes" if series.single else "band: least to most; line: mean"]
    key += ["line: running mean"] if series.single and len(series.running_mean()[0]) else []
    key += [f'<b class="x">&#10005; cut short ({_shown(series, found)})</b>'] if found.outcomes["cut"] else []
    key += ["right: normalised score"] if found.reference else []
    charts = _draw_series(series, found, 900, "wide") + _draw_series(series, found, 380, "narrow")
    return f'{charts}<p class="key">{"; ".join(key)}</p>'


def _shown(series: ReturnSeries, found: Overview) -> str:
    cuts = found.outcomes["cut"]
    return f"{cuts:,}" if len(series.cut_steps) == cuts else f"{len(series.cut_steps)} of {cuts:,}"


def _distributions(found: Overview) -> str:
    single = [one for one in found.actions if one.size == 1]
    charts = [("return of an episode", found.returns), ("length of an episode", found.lengths)]
    charts += [("reward of a step", found.rewards.elements[0])] + [(one.key, one.elements[0]) for one in single]
    cells = "".join(f"<div><h3>{escape(name)}</h3>{_draw_histogram(name, one)}</div>" for name, one in charts)
    rows = [row for one in found.actions if one.size > 1 for row in zip(one.names, one.elements)]
    lines = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_draw_spark(name, one)}</td>"
        + "".join(f"<td>{'-' if value is None else f'{value:.4g}'}</td>" for value in (one.mean, one.low, one.high))
        + "</tr>"
        for name, one in rows
    )
    head = "<tr><th>element</th><th>distribution</th><th>mean</th><th>min</th><th>max</th></tr>"
    left_out = sum(one.size - len(one.elements) for one in found.actions)
    more = f'<p class="soft">{left_out:,} more elements are not shown.</p>' if left_out else ""
    return f'<div class="grid">{cells}</div>' + (
        f'<div class="scroll"><table>{head}{lines}</table></div>{more}' if rows else ""
    )


def _frames(folder: Path) -> str:
    """Frames of a few episodes, or nothing for a dataset without frames."""
    from ..storage.dataset import Dataset
    from .frames import choose_strips, describe_strip, encode, enlarged, frame_leaf, read_pictures

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
            data = base64.b64encode(encode(small, ".png")).decode()
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
