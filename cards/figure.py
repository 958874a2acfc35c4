"""One figure of a dataset: returns over time, and the distributions of returns, lengths, rewards and actions."""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import MissingExtraError
from ..storage.amounts import count, exact_percent, plural
from ..storage.episodes import EpisodeTable
from .card_file import MARK
from .overview import Histogram, Overview, ReturnSeries, return_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: What the name of a figure may end in; the first three carry the mark of rbdata.
SUFFIXES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".eps", ".tif", ".tiff")

#: Most episodes that get a dot each.
MOST_DOTS = 5000

_BLUE, _PALE, _ORANGE, _DARK, _GREY = "#2f6db3", "#a9c7ea", "#d4691e", "#222222", "#6b6b6b"
_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GREY,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "xtick.labelcolor": _DARK,
    "ytick.labelcolor": _DARK,
    "svg.fonttype": "none",
}


def draw_figure(title: str, found: Overview, table: EpisodeTable) -> Figure:
    """The figure. Raises MissingExtraError without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib is not installed", hint="pip install 'rbdata[plot]'") from error

    with rc_context(_STYLE):
        figure: Any = Figure(figsize=(11, 7), dpi=130, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)  # pyplot looks for a display, and is slow to import
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1, hspace=0.04, wspace=0.04)
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        over_time, beside = top.subplots(1, 2, sharey=True, width_ratios=(4, 1))
        lengths, rewards, actions = bottom.subplots(1, 3)
        _draw_returns(over_time, return_series(table, MOST_DOTS), found.steps, found.outcomes["cut"])
        _draw_counts(beside, found.returns, sideways=True)
        beside.set_title("return")
        beside.tick_params(labelleft=False)
        if found.reference:
            low, span = found.reference.low, (found.reference.high - found.reference.low) / 100
            scores = beside.secondary_yaxis("right", functions=(found.reference.normalize, lambda s: low + s * span))
            scores.spines["right"].set_visible(True)
            scores.set_ylabel("normalised score")
        _draw_counts(lengths, found.lengths)
        lengths.set_title("length of an episode, in steps")
        sample = f" ({count(found.sampled_steps)} of them)" if found.sampled_steps < found.steps else ""
        _draw_counts(rewards, found.rewards.elements[0])
        rewards.set_title(f"reward of a step{sample}")
        _draw_actions(actions, found, sample)
        figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", parse_math=False)
        ends = ", ".join(f"{count(number)} {name}" for name, number in found.outcomes.items() if number)
        parts = [plural(found.steps, "step"), plural(found.episodes, "episode") + (f": {ends}" if ends else "")]
        parts += [found.environment] if found.environment else []
        over_time.set_title("  ·  ".join(parts), color=_GREY, parse_math=False)
    return figure


def render_figure(figure: Figure, suffix: str) -> bytes:
    """The figure in the format of a file's suffix."""
    kind = suffix.lower().removeprefix(".")
    entry = {"png": "Software", "pdf": "Creator", "svg": "Creator"}.get(kind)
    with warnings.catch_warnings(), BytesIO() as file:
        warnings.simplefilter("ignore")  # characters that the font lacks
        figure.savefig(file, format=kind, metadata={entry: MARK} if entry else None)
        return file.getvalue()


def _draw_returns(axes: Axes, series: ReturnSeries, steps_in_all: int, cuts: int) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if not np.isfinite(series.mean).any():
        _leave_empty(axes, "no finite return")
        return
    if series.single:
        size = 22 if len(series.steps) < 300 else 7
        axes.scatter(series.steps, series.mean, s=size, color=_BLUE, alpha=0.65, linewidths=0, label="episode")
        steps, mean = series.running_mean()
        if len(steps):
            axes.plot(steps, mean, color=_DARK, linewidth=1.6, label="running mean")
    else:
        axes.fill_between(series.steps, series.low, series.high, color=_PALE, linewidth=0, label="least to most")
        axes.plot(series.steps, series.mean, color=_BLUE, linewidth=1.6, label="mean")
    if len(series.cut_steps):
        shown = "" if len(series.cut_steps) == cuts else f" ({len(series.cut_steps)} of {count(cuts)})"
        size = 30 if series.single else 14
        axes.scatter(series.cut_steps, series.cut_returns, s=size, marker="x", color=_ORANGE, label=f"cut short{shown}")
    axes.set_ylabel("return")
    axes.set_xlabel("steps")
    axes.grid(alpha=0.25)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlim(0, steps_in_all * 1.01)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        legend = axes.figure.axes[0].legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none", fontsize=8)
        legend.set_zorder(5)


def _draw_counts(axes: Axes, histogram: Histogram, *, sideways: bool = False) -> None:
    """A bar for each value, or bins; shares of all finite values."""
    from matplotlib.ticker import MaxNLocator

    shares = histogram.shares
    if not shares:
        _leave_empty(axes, "no finite value")
        return
    if histogram.values:
        gaps = np.diff(histogram.values)
        whole = (
            np.array_equal(histogram.values, np.rint(histogram.values))
            and histogram.values[-1] - histogram.values[0] < 50
        )
        width = 0.75 * float(1 if whole else gaps.min()) if len(gaps) else max(abs(histogram.values[0]) * 0.1, 0.5)
        (axes.barh if sideways else axes.bar)(histogram.values, shares, width, color=_BLUE)
        if not len(gaps):
            (axes.set_ylim if sideways else axes.set_xlim)(
                histogram.values[0] - 3 * width, histogram.values[0] + 3 * width
            )
        if not sideways and len(shares) <= 7:
            for value, share in zip(histogram.values, shares):
                axes.annotate(
                    exact_percent(share), (value, share), (0, 2), textcoords="offset points", ha="center", fontsize=8
                )
            axes.margins(y=0.12)
        if not sideways and whole:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    else:
        where: Any = "horizontal" if sideways else "vertical"
        axes.stairs(shares, histogram.edges, fill=True, color=_BLUE, orientation=where)
    along = axes.xaxis if sideways else axes.yaxis
    along.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    along.set_major_locator(MaxNLocator(3 if sideways else 5))
    axes.grid(axis="x" if sideways else "y", alpha=0.25)
    if histogram.not_finite:
        note = f"{count(histogram.not_finite)} not finite"
        axes.text(0.98, 0.97, note, ha="right", va="top", color=_ORANGE, fontsize=8, transform=axes.transAxes)


def _draw_actions(axes: Axes, found: Overview, sample: str) -> None:
    """The histogram of one element, or a row of shades for each of several."""
    axes.set_title(f"action of a step{sample}")
    rows = [row for action in found.actions for row in zip(action.names, action.elements)]
    if not rows:
        _leave_empty(axes, "no small action tensor")
    elif len(rows) == 1:
        _draw_counts(axes, rows[0][1])
    else:
        for row, (_, histogram) in enumerate(rows):
            if histogram.counts:
                shares = np.array(histogram.shares)
                axes.pcolormesh(
                    _edges(histogram), [row - 0.42, row + 0.42], shares[None] / shares.max(), cmap="Blues", vmin=0
                )
        axes.set_ylim(len(rows) - 0.5, -0.5)
        step = max(1, len(rows) // 18)
        labels = [name.removeprefix("action/").removeprefix("action") for name, _ in rows]
        axes.set_yticks(
            range(0, len(rows), step), labels[::step], fontsize=8 if len(rows) < 12 else 7, parse_math=False
        )
        axes.tick_params(axis="y", length=0)
        left_out = sum(action.size - len(action.elements) for action in found.actions)
        axes.set_xlabel(
            "value (darker: more often)" + (f"; {plural(left_out, 'more element')} not shown" if left_out else "")
        )


def _leave_empty(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", color=_GREY, transform=axes.transAxes)
    axes.set_axis_off()


def _edges(histogram: Histogram) -> np.ndarray:
    """The edges of the bins, or of bars around the values."""
    if histogram.edges:
        return np.array(histogram.edges)
    values = np.array(histogram.values)
    middle = (values[1:] + values[:-1]) / 2
    first, last = (middle[0] - values[0], values[-1] - middle[-1]) if len(middle) else (0.5, 0.5)
    return np.r_[values[0] - first, middle, values[-1] + last]
