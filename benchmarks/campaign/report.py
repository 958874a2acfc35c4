"""What a campaign did and found. A campaign is a module of this folder with ``run(rounds: int, seed: int) -> Report``."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

#: Faults of one campaign that are shown; all are counted.
SHOWN = 50


@dataclass
class Report:
    """Rounds, outcomes counted by name, and every fault as text that names the seed which reproduces it.

    ``peak_memory`` is in bytes: the most that one process of the campaign (this one, or one that it waited for) ever took.
    """

    name: str
    seed: int
    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    peak_memory: int = 0
    seconds: float = 0.0

    @contextmanager
    def measured(self) -> Iterator[Report]:
        """Measure time and memory of what happens inside."""
        began = time.monotonic()
        reset_peak()
        try:
            yield self
        finally:
            self.seconds += time.monotonic() - began
            self.peak_memory = max(self.peak_memory, peak_memory())


#: Bytes of what `resource` counts in.
_UNIT = 1 if sys.platform == "darwin" else 1024
#: The most that a child took that ended before `reset_peak`, which the system cannot forget.
_children_before = 0


def reset_peak() -> int:
    """Reset the peak: imports, and children that have ended, do not count. Returns the bytes that this process holds."""
    global _children_before
    _children_before = _of_children()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def peak_memory() -> int:
    """The most memory in bytes that this process, or one of its children that ended, took since `reset_peak`."""
    children = _of_children()
    if children == _children_before:
        children = 0
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return max(children, int(line.split()[1]) * 1024)
    return max(children, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT)


def _of_children() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _UNIT


_HEADINGS = ("campaign", "rounds", "faults", "peak memory", "time", "outcomes")


def table(reports: Iterable[Report]) -> str:
    """The reports as a Markdown table, which is as readable on a terminal, and the faults below it."""
    reports = list(reports)
    rows = [_HEADINGS, *map(_row, reports)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    lines = ["| " + " | ".join([*map(str.ljust, row[:-1], widths), row[-1]]) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join(["---"] * len(_HEADINGS)) + " |")
    for report in reports:
        lines += [""] * bool(report.faults) + [f"- {report.name}: {fault}" for fault in report.faults[:SHOWN]]
        if len(report.faults) > SHOWN:
            lines.append(f"- {report.name}: and {len(report.faults) - SHOWN:,} more")
    return "\n".join(lines) + "\n"


def page(reports: Iterable[Report], scale: float) -> str:
    """The table as a page of the documents."""
    reports = list(reports)
    day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    seeds = ", ".join(sorted({str(report.seed) for report in reports}))
    share = "" if scale == 1 else f", {scale:g} of the rounds of `make campaign`"
    head = f"Last run on {day} with seed {seeds}{share}. A fault would be listed below the table.\n"
    return f"# Campaigns: the last report\n\n{head}\n{table(reports)}"


def _row(report: Report) -> tuple[str, ...]:
    outcomes = ", ".join(f"{name} {times:,}" for name, times in sorted(report.outcomes.items()))
    memory, minutes = f"{report.peak_memory / 1e6:.0f} MB", f"{report.seconds / 60:.1f} min"
    return report.name, f"{report.rounds:,}", f"{len(report.faults):,}", memory, minutes, outcomes
