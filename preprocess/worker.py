"""What workers do, each of it for one chunk, from files to files: fill, and before that look, sample and collect.

See `tasks` for what each of them is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .apply import Applier, Batch, at_work
from .chunks import Chunk
from .layout import Shapes
from .part import PartWriter
from .passthrough import untouched
from .records import collected_path, packed, sample_path, save_arrays
from .result import Columns, Found, check_same, leaves_of, shapes_of
from .run_config import Setting
from .successors import as_bytes, differing, unchained
from .tasks import Collect, Fill, Look, Sample

OnRows = Callable[[int, int, int], None]

#: Rows that each chunk looked into gives to the dictionary, and episodes that are tried for them.
SAMPLED_ROWS, SAMPLED_EPISODES = 128, 4

_opened: dict[str, Applier] = {}


def open_applier(setting: Setting) -> Applier:
    """The applier of a run, opened once in each process."""
    found = _opened.get(setting.key)
    if found is None:
        _opened.clear()
        found = _opened[setting.key] = Applier(setting)
    found.seconds = 0.0
    return found


def forget() -> None:
    """Let go of what is open in this process."""
    _opened.clear()


def fill(task: Fill, chunk: Chunk, on_rows: OnRows) -> dict[str, Any]:
    """Write a part; returns its record for the journal (see `finish`)."""
    setting = task.setting
    applier = open_applier(setting)
    name = setting.functions[-1].name
    part = PartWriter(name, setting.folder, task.schema, task.shapes, chunk.index, applier.view.dataset)
    dones = np.zeros(chunk.last - chunk.first, np.int64)
    found, done = Found(), 0
    try:
        with at_work(applier, chunk.index):
            shapes = task.shapes.items()
            expected = {path: shape for path, shape in shapes if path.removeprefix("next/") not in task.unread}
            for batch in applier.batches(chunk, found, unread=task.unread):
                if batch.columns:
                    check_same(batch.columns, expected, name, batch.where)
                    part.add(batch.columns, batch.where, batch.origin)
                low = batch.first - chunk.first
                dones[low : low + len(batch.dones)] += batch.dones
                done += batch.rows_in
                on_rows(done, 0, 0)
        return {**part.finish(), "dones": packed(dones), "ended": found.ended, "nans": found.nans}
    except BaseException:
        part.abandon()
        raise


def look(task: Look, chunk: Chunk, on_rows: OnRows) -> dict[str, Any]:
    """Say what comes out of a chunk: shapes before and after, what is unchained and changed, how long it took."""
    setting = task.setting
    applier = open_applier(setting)
    began, found = time.perf_counter(), Found()
    shapes: Shapes | None = None
    broken: dict[str, int] = {}
    changed: list[str] | None = None
    same: list[str] = []
    rows_in = rows_out = episodes = dropped = 0
    with at_work(applier, chunk.index):
        for number, batch in enumerate(applier.batches(chunk, found, plain=True)):
            rows_in += batch.rows_in
            if setting.whole_episodes:
                episodes += len(batch.dones)
                dropped += int((batch.dones == 0).sum())
            if batch.columns:
                if shapes is None:
                    shapes = shapes_of(batch.columns)
                    same = _untouched(applier, batch)
                    if not setting.whole_episodes:
                        changed = _changed(applier, chunk, batch.columns)
                check_same(batch.columns, shapes, setting.functions[-1].name, batch.where)
                done = batch.columns["next/done"].view(-1)
                broken = {**unchained(batch.columns, done), **broken}
                rows_out += len(done)
            on_rows(rows_in, 0, 0)
            if shapes is not None and task.batches is not None and number + 1 >= task.batches:
                break
        seconds = time.perf_counter() - began
        before = shapes_of(leaves_of(applier.view.read(chunk.start, chunk.start + 1)))
    return {
        "input": before,
        "shapes": shapes,
        "broken": broken,
        "changed": changed,
        "untouched": same,
        "steps_in": rows_in,
        "steps": rows_out,
        "episodes": episodes,
        "dropped": dropped,
        "ended": found.ended,
        "nans": found.nans,
        "seconds": seconds,
        "function_seconds": applier.seconds,
    }


def _untouched(applier: Applier, batch: Batch) -> list[str]:
    """Compressed leaves of a batch whose rows are those that were read."""
    if batch.origin is None:
        return []
    compressed = [leaf.name for leaf in applier.view.dataset.schema.states if leaf.codec == "zstd"]
    return untouched(batch.origin, batch.columns, compressed)[0]


def _changed(applier: Applier, chunk: Chunk, columns: Columns) -> list[str]:
    """Leaves that are there before and after, and differ in the first batch."""
    before = leaves_of(applier.view.read(chunk.start, chunk.start + len(columns["next/done"])))
    same, now = shapes_of(before), shapes_of(columns)
    return sorted(
        path
        for path in now
        if path in before and (now[path] != same[path] or bool(differing(before[path], columns[path]).any()))
    )


def sample(task: Sample, chunk: Chunk, on_rows: OnRows) -> dict[str, Any]:
    """Store a few rows of results."""
    applier = open_applier(task.setting)
    with at_work(applier, chunk.index):
        if task.setting.whole_episodes:
            columns = _sampled_episodes(applier, chunk)
        else:
            count = min(SAMPLED_ROWS, chunk.rows)
            columns = applier.scattered(torch.linspace(chunk.start, chunk.stop - 1, count, dtype=torch.float64).long())
    for name in task.names:
        rows = columns.get(name)
        data = as_bytes(rows) if rows is not None else np.zeros((0, 1), np.uint8)
        save_arrays(sample_path(task.setting.folder, name, chunk.index), {"rows": data})
    on_rows(chunk.rows, 0, 0)
    return {}


def _sampled_episodes(applier: Applier, chunk: Chunk) -> Columns:
    """Rows of the first few episodes of a chunk that are not dropped; none where there is none."""
    last = min(chunk.first + SAMPLED_EPISODES, chunk.last)
    few = Chunk(chunk.index, chunk.start, int(applier.view.episodes.starts[last]), chunk.first, last)
    for batch in applier.batches(few, Found()):
        if batch.columns:
            rows = len(batch.columns["next/done"])
            chosen = torch.linspace(0, rows - 1, min(SAMPLED_ROWS, rows), dtype=torch.float64).long()
            return {name: tensor[chosen] for name, tensor in batch.columns.items()}
    return {}


def collect(task: Collect, chunk: Chunk, on_rows: OnRows) -> dict[str, Any]:
    """Store what a first pass collects of a chunk, batch by batch or episode by episode, merged in their order."""
    applier = open_applier(task.setting)
    fn = task.setting.functions[task.number]
    fit = fn.fit
    assert fit is not None
    merged: dict[str, torch.Tensor] | None = None
    with at_work(applier, chunk.index):
        for td, where in applier.through(chunk, task.number):
            with applier.guard(fn.name, where):
                partial = fit.collect(td, **fn.args)
                merged = partial if merged is None else fit.merge(merged, partial)
    arrays = {} if merged is None else {name: tensor.numpy() for name, tensor in merged.items()}
    save_arrays(collected_path(task.setting.folder, task.number, chunk.index), arrays)
    on_rows(chunk.rows, 0, 0)
    return {}
