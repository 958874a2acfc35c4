"""Charts of a dataset, drawn by matplotlib (extra ``plot``): returns over time, and the distributions of returns, lengths,
rewards and actions, in one figure.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import MissingExtraError, printable
from ...storage.amounts import count, exact_percent, plural
from ...storage.episodes import CUT, EpisodeTable
from .overview import Distribution, Histogram, Overview

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The suffixes of figures.
SUFFIXES = (".png", ".pdf", ".svg")

#: Maximum number of episodes that are drawn.
MAX_DOTS = 5000

_BLUE, _ORANGE, _DARK, _GREY, _LINE = "#2f6db3", "#d4691e", "#222222", "#6b6b6b", "#b0b0b0"
_STYLE = {
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"],
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
    "text.color": _DARK,
    "axes.labelcolor": _DARK,
    "grid.color": _LINE,
}


def draw_figure(title: str, found: Overview, table: EpisodeTable) -> Figure:
    """Return all charts in one figure. Raises MissingExtraError without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib is not installed", hint="pip install 'rbdata[plot]'") from error
    with rc_context(_STYLE):
        figure: Any = Figure(figsize=(11, 7), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)  # pyplot looks for a display, and is slow to import
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1, hspace=0.04, wspace=0.04)
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        over_time, beside = top.subplots(1, 2, sharey=True, width_ratios=(4, 1))
        lengths, rewards, actions = bottom.subplots(1, 3)
        draw_returns(over_time, found, table)
        draw_histogram(beside, found.returns, sideways=True)
        beside.set_title("return")
        beside.tick_params(labelleft=False)
        add_scores(beside, found)
        draw_histogram(lengths, found.lengths)
        lengths.set_title("length of an episode, in steps")
        sample = f" ({count(found.sampled_steps)} of them)" if found.sampled_steps < found.steps else ""
        draw_histogram(rewards, found.rewards.elements[0])
        rewards.set_title(f"reward of a step{sample}")
        _draw_actions(actions, found)
        actions.set_title(f"action of a step{sample}")
        figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", parse_math=False)
        ends = ", ".join(f"{count(number)} {name}" for name, number in found.outcomes.items() if number)
        parts = [plural(found.steps, "step"), plural(found.episodes, "episode") + (f": {ends}" if ends else "")]
        parts += [found.environment] if found.environment else []
        over_time.set_title("  ·  ".join(parts), color=_GREY, parse_math=False)
    return figure


def render_figure(figure: Figure, suffix: str) -> bytes:
    """Return the figure in the format of a file's suffix; SVG has its words as text, so that a page can choose their font."""
    from matplotlib import rc_context

    kind = suffix.lower().removeprefix(".")
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none"}), BytesIO() as file:
        warnings.simplefilter("ignore")  # characters that the font lacks
        figure.savefig(file, format=kind)
        return file.getvalue()


# -- the charts ----------------------------------------------------------------------------------------------------------


def drawn_episodes(table: EpisodeTable) -> np.ndarray:
    """Return the numbers of at most `MAX_DOTS` evenly spaced episodes whose returns are finite."""
    finite = np.flatnonzero(np.isfinite(table.returns))
    return finite[np.linspace(0, len(finite) - 1, min(len(finite), MAX_DOTS)).astype(np.int64)]


def draw_returns(axes: Axes, found: Overview, table: EpisodeTable) -> None:
    """Returns of episodes over the steps of the dataset; cut episodes are marked."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    some = drawn_episodes(table)
    steps, returns, is_cut = (table.starts + table.lengths)[some], table.returns[some], table.outcomes[some] == CUT
    if not len(some):
        _leave_empty(axes, "no finite return")
        return
    size = 22 if len(some) < 300 else 7
    axes.scatter(steps, returns, s=size, color=_BLUE, alpha=0.65, linewidths=0, label="episode")
    window = len(returns) // 10
    if window >= 3:
        mean = np.convolve(returns, np.full(window, 1 / window), "valid")
        axes.plot(steps[window - 1 :], mean, color=_DARK, linewidth=1.6, label="running mean")
    if found.outcomes["cut"]:
        label = f"cut short ({count(found.outcomes['cut'])})"
        axes.scatter(steps[is_cut], returns[is_cut], s=30, marker="x", color=_ORANGE, label=label)
    axes.set_ylabel("return")
    axes.set_xlabel("steps")
    axes.grid(alpha=0.25)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlim(0, found.steps * 1.01)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        legend = axes.figure.axes[0].legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none", fontsize=8)
        legend.set_zorder(5)


def add_scores(axes: Axes, found: Overview) -> None:
    """An axis on the right with the normalised scores of the returns, where the reference returns are known."""
    if found.reference:
        low, span = found.reference.low, (found.reference.high - found.reference.low) / 100

        def to_return(score: Any) -> Any:
            return low + score * span

        scores = axes.secondary_yaxis("right", functions=(found.reference.normalize, to_return))
        scores.spines["right"].set_visible(True)
        scores.set_ylabel("normalised score")


def draw_histogram(axes: Axes, histogram: Histogram, *, sideways: bool = False) -> None:
    """A bar per value, or a bar per bin; heights are shares of all finite values."""
    from matplotlib.ticker import MaxNLocator

    shares = histogram.shares
    if not shares:
        _leave_empty(axes, "no finite value")
        return
    edges = np.array(histogram.edges)
    places = np.array(histogram.values) if histogram.values else (edges[1:] + edges[:-1]) / 2
    gap = float(np.diff(places).min()) if len(places) > 1 else 1.0
    # Room between bars, so that equal neighbours are two.
    bars = (axes.barh if sideways else axes.bar)(places, shares, gap * (0.75 if histogram.values else 0.9), color=_BLUE)
    if len(places) == 1:
        (axes.set_ylim if sideways else axes.set_xlim)(places[0] - 4, places[0] + 4)
    if histogram.values and not sideways:
        if len(bars) <= 7:
            axes.bar_label(bars, [exact_percent(share) for share in shares], padding=2, fontsize=8)
            axes.margins(y=0.12)
        if (places == np.rint(places)).all() and places[-1] - places[0] < 50:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    along = axes.xaxis if sideways else axes.yaxis
    along.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")
    along.set_major_locator(MaxNLocator(3 if sideways else 5))
    axes.grid(axis="x" if sideways else "y", alpha=0.25)
    if histogram.not_finite:
        note = f"{count(histogram.not_finite)} not finite"
        axes.text(0.98, 0.97, note, ha="right", va="top", color=_ORANGE, fontsize=8, transform=axes.transAxes)


def _draw_actions(axes: Axes, found: Overview) -> None:
    elements = [one for action in found.actions for one in action.elements]
    if len(elements) > 1:
        draw_elements(axes, found.actions)
    elif elements:
        draw_histogram(axes, elements[0])
    else:
        _leave_empty(axes, "no small action tensor")


def draw_elements(axes: Axes, actions: Sequence[Distribution]) -> None:
    """The histograms of several action elements, each as a row of shades."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    shades = LinearSegmentedColormap.from_list("shades", [to_rgba(_BLUE, 0), to_rgba(_BLUE, 1)])
    rows = [row for action in actions for row in zip(action.names, action.elements)]
    for row, (_, histogram) in enumerate(rows):
        if histogram.counts:
            shares = np.array([histogram.shares])
            axes.pcolormesh(_edges(histogram), [row - 0.42, row + 0.42], shares / shares.max(), cmap=shades, vmin=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    step = max(1, len(rows) // 18)
    labels = [printable(name).removeprefix("action/").removeprefix("action") for name, _ in rows]
    axes.set_yticks(range(0, len(rows), step), labels[::step], fontsize=8 if len(rows) < 12 else 7, parse_math=False)
    axes.tick_params(axis="y", length=0)
    left_out = sum(action.size - len(action.elements) for action in actions)
    more = f"; {plural(left_out, 'more element')} not shown" if left_out else ""
    axes.set_xlabel(f"value (darker: more often){more}")


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
