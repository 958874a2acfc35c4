"""``rbdata bench``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from typer import Option

from ..storage import amounts
from .console import Column, Fact, out
from .options import CacheDir, LocalId, Root
from .progress import phase

EXAMPLES = """
  rbdata bench s3://lab/rbdata/atari/Pong/5
  rbdata bench https://data.example.org/atari/Pong/5 --cache-dir /fast/cache --seconds 60
  rbdata bench Pong/5 --json
"""


def _rate(value: float) -> str:
    return f"{amounts.count(round(value))}" if value >= 10 else f"{value:.1f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def _rounded(value: Any) -> Any:
    """A measurement with four significant digits: another run differs in the third."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


_PATTERN = Column("pattern")
_FIRST = Column("first", _seconds, right=True, optional=True)
_REMOTE = (
    _PATTERN,
    _FIRST,
    Column("steps/s", _rate, right=True),
    Column("cached", _rate, right=True, optional=True),
    Column("link allows", _rate, right=True, optional=True),
    Column("bytes/step", amounts.size, right=True, optional=True),
    Column("bound by", right=True),
)
_LOCAL = (_PATTERN, _FIRST, Column("steps/s", _rate, right=True), Column("bound by", right=True))


def run(
    dataset: LocalId,
    seconds: Annotated[float, Option(metavar="S", min=0.5, help="About how long to measure.")] = 15.0,
    n: Annotated[
        int | None,
        Option("-n", "--batch-size", min=1, metavar="N", help="Steps in a batch (default: 256, fewer of large rows)."),
    ] = None,
    cache_dir: CacheDir = None,
    root: Root = None,
) -> None:
    """Measure how fast batches are drawn from a dataset, on this machine or at a URL, and what limits the rate.

    Patterns: transitions, stacks of 4 and slices of 16, drawn from the whole dataset (global) or from a few groups of
    consecutive steps at a time (blocks). At a URL each pattern starts with an empty cache in a temporary folder. "first" is
    the time to the first batch, "steps/s" the rate while blocks are fetched, "cached" the rate of the same batches from the
    cache, "link allows" the rate of plain reads of the same number of bytes.
    """
    from ..datasets.rates import measure

    with phase("measuring") as on_progress:
        found = measure(dataset, seconds=seconds, batch_size=n, cache_dir=cache_dir, root=root, on_progress=on_progress)
    if out.json:
        out.document(asdict(found, dict_factory=lambda fields: {name: _rounded(value) for name, value in fields}))
        return
    link = found.link
    if out.quiet:
        for rate in found.rates:
            out.line(f"{rate.pattern}\t{rate.steps_per_second:.1f}")
        return
    facts = [Fact("dataset", f"{found.id}, {amounts.count(found.steps)} steps, {amounts.size(found.bytes)}", found.id)]
    if link is not None:
        slow = f"{link.latency * 1e3:.1f} ms, slowest of ten {link.slow_latency * 1e3:.0f} ms"
        by = f"{link.connections} connections, {amounts.size(link.block_bytes)} a request"
        facts += [
            Fact("latency", slow, _rounded(link.latency)),
            Fact("link", f"{amounts.size(link.bytes_per_second)}/s by {by}", _rounded(link.bytes_per_second)),
        ]
    out.facts(facts)
    out.heading("rates by access pattern")
    rows: list[tuple[Any, ...]] = []
    for rate in found.rates:
        bound = f"{rate.bound} (calculated)" if rate.calculated else rate.bound
        row = (rate.pattern, rate.first_batch, rate.steps_per_second, rate.again_per_second, rate.link_per_second)
        rows.append((*row, rate.bytes_per_step, bound) if link else (*row[:3], bound))
    out.table(_REMOTE if link else _LOCAL, [[_rounded(value) for value in row] for row in rows])
    if any(rate.calculated for rate in found.rates):
        out.note("calculated: a batch takes longer than the time given; raise --seconds to measure it")
