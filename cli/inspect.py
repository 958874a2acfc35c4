"""``rbdata inspect``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from ..errors import UsageError
from ..storage import amounts
from ..storage.amounts import exact_percent
from .console import TableColumn, out
from .options import CacheDir, CacheLimit, LocalId, Root

if TYPE_CHECKING:
    from ..datasets.card.overview import Histogram, Overview
    from ..storage.dataset import Dataset
    from ..storage.episodes import EpisodeTable
    from ..storage.manifest import Manifest
    from ..storage.schema import Leaf


EXAMPLES = """
  rbdata inspect Pong/5
  rbdata inspect Pong/5 --plot pong.png --frames frames.png --episode 3
  rbdata inspect Pong/5 --html card.html --croissant croissant.json --card README.md
  rbdata inspect Pong/5 --episodes --json
"""

_LEAVES = (
    TableColumn("leaf"),
    TableColumn("kind", optional=True),
    TableColumn("dtype"),
    TableColumn("shape"),
    TableColumn("codec", optional=True),
    TableColumn("size", right=True, optional=True),
)
_ELEMENTS = (
    TableColumn("element"),
    TableColumn("distribution"),
    TableColumn("mean", amounts.real, right=True, optional=True),
    TableColumn("std", amounts.real, right=True, optional=True),
    TableColumn("min", amounts.real, right=True, optional=True),
    TableColumn("max", amounts.real, right=True, optional=True),
)
_EPISODES = (
    TableColumn("episode", amounts.count, right=True),
    TableColumn("start", amounts.count, right=True),
    TableColumn("length", amounts.count, right=True),
    TableColumn("return", amounts.real, right=True),
    TableColumn("outcome"),
)


def run(
    dataset: LocalId,
    episodes: Annotated[bool, Option("--episodes", help="List the episodes: start, length, return, outcome.")] = False,
    plot: Annotated[Path | None, Option(metavar="FILE", help="Draw returns and distributions: out.png, .pdf.")] = None,
    frames: Annotated[Path | None, Option(metavar="FILE", help="Draw frames: out.png; or a video: out.mp4.")] = None,
    episode: Annotated[
        list[int] | None,
        Option(min=0, metavar="K", help="With --frames: steps of episode K (repeatable); a video has all."),
    ] = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="Write a card as one page: card.html.")] = None,
    croissant: Annotated[Path | None, Option(metavar="FILE", help="Write Croissant metadata: croissant.json.")] = None,
    card: Annotated[
        Path | None, Option(metavar="FILE", help="Write a README for a Hugging Face repository: README.md.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace files that are there.")] = False,
    cache_dir: CacheDir = None,
    cache_limit: CacheLimit = None,
    root: Root = None,
) -> None:
    """Show what a dataset holds: tensors, episodes, returns, origin.

    Kind is how a tensor is stored. step: one row per transition; state: one row per state, read as both KEY and next/KEY.
    Distributions of more than 65,536 steps are computed from a sample, so that the command is quick for datasets of any size.
    """
    from ..datasets import opening
    from ..datasets.fetch.location import is_remote
    from .progress import phase

    files = {"plot": plot, "frames": frames, "html": html, "croissant": croissant, "card": card}
    targets = {name: target for name, target in files.items() if target is not None}
    if episode and frames is None:
        raise UsageError("--episode chooses what --frames draws", hint="add --frames FILE")
    if len(set(targets.values())) < len(targets):
        raise UsageError("two options name the same file", hint="give each a file of its own")
    if targets and is_remote(dataset):
        hint = "fetch it first with `rbdata download --mirror`"
        raise UsageError("pictures and cards need a dataset on this machine", hint=hint)
    with phase("reading") if is_remote(dataset) else nullcontext():
        found = opening.inspect(dataset, root=root, cache_dir=cache_dir, cache_limit=cache_limit)
    path, manifest, table, overview, remote = found
    if targets:
        from ..datasets.card.files import write_cards

        write_cards(targets, episode or [], path, manifest, table, overview, force=force)
    cached = {} if remote is None else _cache_record(dataset, remote)

    def document() -> dict[str, Any]:
        record = _record(path, manifest) | overview.to_json() | cached
        names = [column.title for column in _EPISODES]
        return record | ({"episode_table": [dict(zip(names, row)) for row in _episode_rows(table)]} if episodes else {})

    if out.programs(document, [str(path) if remote is None else dataset]):
        pass
    elif episodes:
        out.table(_EPISODES, _episode_rows(table))
    else:
        _show(path, manifest, overview, cached)
    for target in targets.values():
        out.note(f"wrote {target}")


def _show(path: Path, manifest: Manifest, found: Overview, cached: dict[str, Any]) -> None:
    from ..datasets.card.overview import state_facts, state_lineage, state_origin

    facts = [("id", manifest.id), ("path", str(path)), *state_facts(manifest, found)]
    facts += [("note", note) for note in manifest.notes]
    if cached:
        facts += [("url", cached["url"]), ("cached", amounts.size(cached["cached_bytes"]))]
    out.facts(facts)
    out.heading("tensors")
    out.table(_LEAVES, _leaf_rows(manifest))
    if manifest.steps:
        _show_distributions(found)
    out.heading("origin")
    out.facts(state_origin(manifest, at_home=True))
    if manifest.lineage:
        out.heading("lineage")
        out.facts(state_lineage(manifest.lineage))


def _cache_record(url: str, dataset: Dataset) -> dict[str, Any]:
    """The URL of a remote dataset, and the bytes of it in the cache."""
    from ..datasets.fetch.location import without_login
    from ..storage.remote.remote_dataset import RemoteDataset

    cached = dataset.cache.resident_bytes if isinstance(dataset, RemoteDataset) else dataset.manifest.bytes
    return {"url": without_login(url), "cached_bytes": cached}


def _show_distributions(found: Overview) -> None:
    """Show histograms of returns, lengths, rewards, actions and observations; those of several elements as a table."""
    sample = amounts.plural(found.sampled_steps, "step")
    out.heading("distributions" + (f" (of a sample of {sample})" if found.sampled_steps < found.steps else ""))
    charts = [("return", found.returns), ("length", found.lengths), ("reward", found.rewards.elements[0])]
    leaves = [*found.actions, *found.observations]
    charts += [(one.key, one.elements[0]) for one in leaves if one.size == 1]
    for line in side_by_side([chart(name, histogram) for name, histogram in charts], out.width):
        out.line(line)
    for leaf in leaves:
        if leaf.size > 1:
            out.line()
            rows = zip(leaf.names, leaf.elements)
            out.table(_ELEMENTS, [(name, sparkline(h), h.mean, h.std, h.low, h.high) for name, h in rows])
            if leaf.size > len(leaf.elements):
                out.line(f"and {amounts.plural(leaf.size - len(leaf.elements), 'more element')}")


def _leaf_rows(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    """The keys of a batch, as a tree, and the leaves they are read from."""
    seen: set[str] = set()
    keys = [(leaf.name, leaf) for leaf in manifest.schema]
    keys += [("next/" + leaf.name, leaf) for leaf in manifest.schema.states]
    for name, leaf in sorted(keys, key=lambda entry: (entry[0].startswith("next/"), "/" in entry[0], entry[0])):
        *folders, last = name.split("/")
        for depth, folder in enumerate(folders):
            parent = "/".join(folders[: depth + 1])
            if parent not in seen:
                seen.add(parent)
                yield ("  " * depth + folder, *[""] * 5)
        stored = leaf.name == name
        codec = leaf.codec if stored else f"rows of {leaf.name}"
        if leaf.constant is not None:
            codec = f"always {leaf.constant}".lower()
        size = amounts.size(_bytes_of(manifest, leaf)) if stored else ""
        yield "  " * len(folders) + last, leaf.kind, leaf.dtype, str(list(leaf.shape)), codec, size


def _bytes_of(manifest: Manifest, leaf: Leaf) -> int:
    files = (leaf.name + ".memmap", leaf.name + "/")
    return sum(manifest.size_of(path) for path in manifest.files if path.startswith(files))


def _episode_rows(table: EpisodeTable) -> list[tuple[int, int, int, float, str]]:
    from ..storage.episodes import OUTCOMES

    columns = zip(table.starts.tolist(), table.lengths.tolist(), table.returns.tolist(), table.outcomes.tolist())
    return [(i, start, length, total, OUTCOMES[code]) for i, (start, length, total, code) in enumerate(columns)]


def _record(path: Path, manifest: Manifest) -> dict[str, Any]:
    left_out = ("files", "checksum", "format", "leaves", "parts")
    record = {name: value for name, value in manifest.to_json().items() if name not in left_out}
    objects = manifest.source.get("objects", [])
    raw = sum(entry.get("size") or 0 for entry in objects)
    return {
        **record,
        "path": str(path),
        "bytes": manifest.bytes,
        "returns": {name: value if isfinite(value) else None for name, value in manifest.returns.items()},
        "source": {**manifest.source, "objects": len(objects), "bytes": raw},
        "leaves": [
            {**leaf.to_json(), "rows": manifest.rows(leaf), "bytes": _bytes_of(manifest, leaf)}
            for leaf in manifest.schema
        ],
    }


# -- histograms of block characters ---------------------------------------------------------------------------------------

#: Width of a chart with its axis, and the gap between two charts: 80 columns hold two charts, 120 hold three.
WIDTH, GAP = 38, 3
#: Height of a chart with bins, in lines.
HEIGHT = 4

_RISING = " ▁▂▃▄▅▆▇█"


def chart(title: str, histogram: Histogram) -> list[str]:
    """Return a title and the histogram below it, WIDTH columns wide at most: a bar for each value, or columns for bins."""
    lines = [title]
    if histogram.not_finite:
        lines.append(f"  not finite: {amounts.count(histogram.not_finite)}")
    if not histogram.counts:
        return lines
    if len(histogram.values) == 1:
        return [*lines, f"  always {amounts.real(histogram.values[0])}"]
    return lines + (_bars(histogram) if histogram.values else _bins(histogram))


def _bars(histogram: Histogram) -> list[str]:
    """Each value with its share and a bar to the right: a line, so that equal bars stay apart."""
    names, shares = [_brief(value) for value in histogram.values], [exact_percent(one) for one in histogram.shares]
    left, right = max(map(len, names)), max(map(len, shares))
    bar_width, peak = max(4, WIDTH - left - right - 5), max(histogram.counts)
    bars = []
    for count in histogram.counts:
        full, half = divmod(max(round(count / peak * bar_width * 2), int(count > 0)), 2)
        bars.append("━" * full + "╸" * half)
    return [f"  {a.rjust(left)}  {b.rjust(right)} {bar}".rstrip() for a, b, bar in zip(names, shares, bars)]


def _bins(histogram: Histogram) -> list[str]:
    """Columns that rise from an axis with the smallest and the largest value, a space between two."""
    counts = _in_pairs(histogram.counts) if len(histogram.counts) > 14 else histogram.counts
    peak = max(counts)
    top = f"{peak / 1000:.3g}k" if peak > 999 else str(peak)
    margin = max(2, len(top))
    bar_width = 1 if len(counts) > 9 else 2
    span = (bar_width + 1) * len(counts) - 1
    lines = []
    for row in reversed(range(HEIGHT)):
        cells = [_cell(count / peak * HEIGHT - row, count > 0 and row == 0) * bar_width for count in counts]
        lines.append(f"  {(top if row == HEIGHT - 1 else '').rjust(margin)} │{' '.join(cells).rstrip()}")
    low, high = _brief(histogram.low or 0), _brief(histogram.high or 0)
    lines.append(f"  {'0'.rjust(margin)} └{'─' * span}")
    lines.append(f"  {' ' * margin}  {low}{high.rjust(max(span - len(low), len(high) + 1))}")
    return lines


def sparkline(histogram: Histogram) -> str:
    """Return the histogram on one line: a character per value, or per two bins."""
    counts = _in_pairs(histogram.counts) if histogram.edges else histogram.counts
    peak = max(counts, default=1) or 1
    return "".join(_cell(count / peak, count > 0) for count in counts)


def _in_pairs(counts: Sequence[int]) -> Sequence[int]:
    return [sum(counts[first : first + 2]) for first in range(0, len(counts), 2)]


def side_by_side(charts: Sequence[Sequence[str]], width: int) -> list[str]:
    """Charts in rows that fill ``width`` columns, with an empty line between rows."""
    across = max(1, (width + GAP) // (WIDTH + GAP))
    lines: list[str] = []
    for first in range(0, len(charts), across):
        lines += [""] * bool(first)
        for parts in zip_longest(*charts[first : first + across], fillvalue=""):
            lines.append((" " * GAP).join(part.ljust(WIDTH) for part in parts).rstrip())
    return lines


def _brief(number: float) -> str:
    return amounts.real(number) if abs(number) < 1e7 else f"{number:.4g}"


def _cell(height: float, visible: bool) -> str:
    """The character for a cell filled up to ``height`` (1 is full); a ``visible`` one is never empty."""
    return _RISING[max(round(min(max(height, 0.0), 1.0) * 8), int(visible))]
