"""The keyword arguments that the dataset classes pass on, as types; see `storage.replay.buffer_options`.

Those of `rbdata.download` and `rbdata.load` mean what they mean there. None is the default of a source's own options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from typing_extensions import TypedDict

from ...storage.replay.buffer_options import CollateOptions, CommonOptions, EndOptions, PriorityKeyOptions
from ...storage.replay.samplers.slices import Span, UniformOver


class ReplayOptions(EndOptions, PriorityKeyOptions, CommonOptions, total=False):
    """Of every class: where the data come from, and what a sampler does beside slices."""

    mirror: str | None
    shards: str | Sequence[int] | None
    codec: Literal["auto", "raw", "zstd"]
    layout: Literal["auto", "ted"]
    unknown_next: Literal["truncate", "zero"]
    pad_output: bool
    span: Span
    uniform_over: UniformOver
    drop_last: bool
    shuffle: bool
    alpha: float | None
    beta: float | None


class DrawOptions(TypedDict, total=False):
    """Of the classes but Atari's, which has the like by itself."""

    procs: int | None
    num_slices: int | None
    slice_len: int | None
    strict_length: bool
    replacement: bool


class ComponentOptions(CollateOptions, total=False):
    """Of the classes that have none of them by position."""

    sampler: Any
    writer: Any
    transform: Any


class AtariOptions(ComponentOptions, ReplayOptions, total=False):
    split_trajs: bool
    upstream: Literal["auto", "dqn-replay", "rl-unplugged"] | None


class D4RLOptions(DrawOptions, ReplayOptions, total=False):
    episodes_by: Literal["auto", "timeouts", "terminals", "both", "horizon"] | None
    horizon: int | None
    accept_changed: bool | None


class MinariOptions(ComponentOptions, DrawOptions, ReplayOptions, total=False):
    text: Literal["bytes", "omit"] | None


class OpenMLOptions(DrawOptions, ReplayOptions, total=False):
    download: bool | str
    target: str | None
    exclude: str | None
    missing: Literal["keep", "error", "drop", "code"] | None
    one_hot: bool | None
    standardize: Literal["none", "numeric", "all"] | None
    format: Literal["auto", "arff", "parquet"] | None
    split_trajs: bool  # refused: there is nothing to split
    accept_changed: bool | None


class MapOptions(TypedDict, total=False):
    """Of `record_map.map_records`."""

    num_frames: int | None
    chunksize: int | None
    num_chunks: int | None
    generator: torch.Generator | None
    max_tasks_per_child: int | None
    worker_threads: int
    index_with_generator: bool
    pbar: bool
    mp_start_method: str | None
    pool: Any
