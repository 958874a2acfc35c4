"""Charts as inline SVG, coloured by classes of the page. All text is escaped; numbers only come from numbers."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable

import numpy as np

from .. import amounts
from .histogram import Histogram
from .overview import Overview
from .return_series import ReturnSeries


def escape(text: str) -> str:
    """Text of strangers for HTML: markup escaped, control characters replaced."""
    shown = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
    return html.escape(shown, quote=True)


def draw_histogram(name: str, histogram: Histogram) -> str:
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


def draw_spark(name: str, histogram: Histogram) -> str:
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


def draw_series(series: ReturnSeries, found: Overview, width: int, kind: str) -> str:
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
