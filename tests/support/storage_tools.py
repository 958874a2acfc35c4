"""Dataset folders with known contents, made through DatasetWriter the way sources make them.

    episodes = make_episodes([3, 5, 1])
    folder = write_dataset(root, episodes, "zstd", parts=3, order=[2, 0, 1])
    truth = columns(episodes)            # every TED key, as numpy arrays [steps, ...]

Layouts: ``flat`` (low-dimensional: everything is a step leaf, appended while planning), ``raw`` and ``zstd`` (state
leaves, filled part by part), ``ted`` (large rows as plain TED: step leaves, filled part by part).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch
from rbdata.storage.checksums import crc32c
from rbdata.storage.codecs import codec_of
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeBuilder, EpisodeTable
from rbdata.storage.folder import DatasetPlace
from rbdata.storage.manifest import BLOCK_TABLE, Manifest, read_manifest, write_manifest
from rbdata.storage.schema import Leaf, Schema, ted_flags
from rbdata.storage.writer import DatasetWriter, open_sink

LAYOUTS = ("flat", "raw", "zstd", "ted")


@dataclass
class Episode:
    """``states`` arrays ``[n + 1, ...]``, ``steps`` arrays ``[n, ...]``; ``outcome`` as in the episode table."""

    states: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    outcome: int = TERMINATED

    def __len__(self) -> int:
        return len(self.steps["next/reward"])


def make_episodes(
    lengths: Sequence[int], *, shape: tuple[int, ...] = (4,), dtype: str = "float32", seed: int = 0, **more: Any
) -> list[Episode]:
    """Random episodes with an ``observation``; ``more`` maps further state keys (``__`` for ``/``) to (shape, dtype)."""
    rng = np.random.default_rng(seed)
    kinds = {"observation": (shape, dtype)} if not more else {k.replace("__", "/"): v for k, v in more.items()}
    episodes = []
    for number, length in enumerate(lengths):
        states = {name: random_array(rng, (length + 1, *shape), dtype) for name, (shape, dtype) in kinds.items()}
        steps = {
            "action": rng.integers(0, 6, length),
            "next/reward": rng.standard_normal((length, 1)).astype("float32"),
        }
        episodes.append(Episode(states, steps, (TERMINATED, TRUNCATED, CUT)[number % 3]))
    return episodes


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small numbers, so that rows compress and every dtype holds them exactly."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, 100, shape).astype(dtype)


def columns(episodes: Sequence[Episode]) -> dict[str, np.ndarray]:
    """Every TED key of the dataset that these episodes make, ``[steps, ...]``."""
    result: dict[str, np.ndarray] = {}
    for name in episodes[0].states:
        result[name] = np.concatenate([episode.states[name][:-1] for episode in episodes])
        result["next/" + name] = np.concatenate([episode.states[name][1:] for episode in episodes])
    for name in episodes[0].steps:
        result[name] = np.concatenate([episode.steps[name] for episode in episodes])
    steps = sum(map(len, episodes))
    ends = np.cumsum([len(episode) for episode in episodes]) - 1
    terminated, truncated = np.zeros((steps, 1), bool), np.zeros((steps, 1), bool)
    for end, episode in zip(ends, episodes):
        (terminated if episode.outcome == TERMINATED else truncated)[end] = True
    result.update({name: np.zeros((steps, 1), bool) for name in ("done", "terminated", "truncated")})
    result.update(
        {"next/done": terminated | truncated, "next/terminated": terminated, "next/truncated": truncated},
    )
    return result


def state_rows(episodes: Sequence[Episode], name: str) -> np.ndarray:
    """The rows of a state leaf, ``[steps + episodes, ...]``."""
    return np.concatenate([episode.states[name] for episode in episodes])


def table(episodes: Sequence[Episode]) -> EpisodeTable:
    builder = EpisodeBuilder()
    for episode in episodes:
        builder.add(len(episode), float(episode.steps["next/reward"].astype("float64").sum()), episode.outcome)
    return builder.table()


def schema_of(episodes: Sequence[Episode], layout: str | Mapping[str, str]) -> Schema:
    """The schema; ``layout`` for all state keys, or one for each."""
    leaves = []
    for name, rows in episodes[0].states.items():
        dtype, shape = rows.dtype.newbyteorder("=").name, rows.shape[1:]
        chosen = layout if isinstance(layout, str) else layout[name]
        if chosen in ("flat", "ted"):
            leaves += [Leaf(name, "step", dtype, shape), Leaf("next/" + name, "step", dtype, shape)]
        else:
            leaves.append(Leaf(name, "state", dtype, shape, chosen))
    for name, rows in episodes[0].steps.items():
        if name != "next/reward":
            leaves.append(Leaf(name, "step", rows.dtype.newbyteorder("=").name, rows.shape[1:]))
    return Schema((*leaves, *ted_flags()))


@dataclass
class Recipe:
    """How one dataset is written: everything that may differ between two runs that must give the same bytes, and more.

    ``cuts`` are the state rows at which parts end (default: about equal ones); ``order`` the order in which parts are
    finished; ``scrambled`` writes the last row of a part first, then blocks of ``block`` rows; ``stop_after`` kills the
    run (raises Stopped) once that many parts are finished.
    """

    episodes: Sequence[Episode]
    layout: str | Mapping[str, str] = "flat"
    id: str = "my/test"
    parts: int = 1
    cuts: Sequence[int] | None = None
    order: Sequence[int] | None = None
    scrambled: bool = False
    block: int = 7
    threads: int = 1
    dictionary: bool = True
    fingerprint: str = "print"
    restart: bool = False
    stop_after: int | None = None
    column_block: int = 1000
    filled: list[int] = field(default_factory=list)

    @property
    def schema(self) -> Schema:
        return schema_of(self.episodes, self.layout)

    @property
    def bulk(self) -> tuple[str, ...]:
        names = []
        for name in self.episodes[0].states:
            layout = self.layout if isinstance(self.layout, str) else self.layout[name]
            if layout != "flat":
                names += [name, "next/" + name] if layout == "ted" else [name]
        return tuple(names)

    @property
    def bounds(self) -> list[int]:
        states = sum(len(episode) + 1 for episode in self.episodes)
        if not self.bulk:
            return [0]
        if self.cuts is not None:
            return [0, *self.cuts, states]
        return np.linspace(0, states, self.parts + 1).astype(int).tolist()

    def write(self, root: Path) -> Path:
        """Write, going on with what an earlier run left; returns the dataset's folder."""
        place = DatasetPlace(root, self.id)
        with place.lock():
            place.recover()
            return self.run(place)

    def run(self, place: DatasetPlace) -> Path:
        bounds, schema = self.bounds, self.schema
        count = len(bounds) - 1
        writer = DatasetWriter(place, schema, self.fingerprint, bulk=self.bulk, parts=count, restart=self.restart)
        truth = columns(self.episodes)
        appender = writer.columns()
        wanted = [leaf.name for leaf in schema.steps if leaf.constant is None and leaf.name not in self.bulk]
        for low in range(0, len(truth["done"]), self.column_block):
            appender.append({name: truth[name][low : low + self.column_block] for name in wanted})
        writer.planned(appender.close(), table(self.episodes))
        for leaf in writer.bulk:
            if codec_of(leaf).uses_dictionary:
                rows = state_rows(self.episodes, leaf.name)
                data = np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8).reshape(len(rows), -1)
                writer.dictionary(leaf, self.train(leaf, data))
        self.before_filling(writer)
        writer.merge()
        for number in self.order if self.order is not None else range(count):
            if number in writer.parts_done():
                continue
            if self.stop_after is not None and len(self.filled) == self.stop_after:
                raise Stopped
            self.filled.append(number)
            record = {}
            for name in self.bulk:
                twin_filled = schema[name].kind == "step" and name.startswith("next/")
                if not twin_filled:
                    record[name] = self.fill(writer, name, number, bounds[number], bounds[number + 1])
            writer.part_done(number, {"leaves": record})
            writer.merge()
        if self.stop_after is not None:
            raise Stopped
        return writer.commit(self.manifest())

    def train(self, leaf: Leaf, rows: np.ndarray) -> bytes:
        """The dictionary of a leaf."""
        return codec_of(leaf).train(rows) if self.dictionary else b""

    def before_filling(self, writer: DatasetWriter) -> None:
        """What is done when the plan is made; nothing here."""

    def fill(self, writer: DatasetWriter, name: str, number: int, low: int, high: int) -> dict[str, Any]:
        rows = state_rows(self.episodes, name)[low:high]
        leaf = writer.schema[name]
        data = np.frombuffer(np.ascontiguousarray(rows, leaf.np_dtype).tobytes(), np.uint8)
        sink = open_sink(writer.folder, leaf, number, low, high - low, writer.states, self.threads)
        positions = np.arange(high - low)
        runs = [positions[at : at + self.block] for at in range(0, len(positions), self.block)]
        if self.scrambled and len(positions) > 1:
            runs = [
                positions[-1:],
                *(positions[at : at + self.block] for at in range(0, len(positions) - 1, self.block)),
            ]
            runs[-1] = runs[-1][runs[-1] < len(positions) - 1]
        for run in runs:
            sink.write(int(run[0]), data, run * leaf.row_bytes)
        return sink.finish()

    def manifest(self) -> Manifest:
        returns, lengths = table(self.episodes).summary()
        bounds = self.bounds
        return Manifest(
            id=self.id,
            schema=self.schema,
            steps=sum(map(len, self.episodes)),
            episodes=len(self.episodes),
            source={"name": "test", "options": {}, "objects": []},
            parts=[
                {"name": f"part {number}", "states": high - low} for number, (low, high) in enumerate(pairwise(bounds))
            ],
            returns=returns,
            lengths=lengths,
        )


class Stopped(Exception):
    """The run was killed, as far as the test goes."""


def write_dataset(
    root: Path, episodes: Sequence[Episode], layout: str | Mapping[str, str] = "flat", **more: Any
) -> Path:
    """Write a dataset; ``more`` are fields of `Recipe`."""
    return Recipe(episodes, layout, **more).write(root)


def add_block_table(folder: Path, size: int) -> None:
    """Give a dataset's rows of observations checksums by block of so many bytes, as large datasets have them."""
    before = read_manifest(folder)
    path = codec_of(before.schema["observation"]).path("blob")
    data = (folder / path).read_bytes()
    values = [google_crc32c.value(data[low : low + size]) for low in range(0, len(data), size)]
    table = np.array(values, "<u4").tobytes()
    (folder / BLOCK_TABLE).write_bytes(table)
    listed = {**before.files, BLOCK_TABLE: [[len(table), crc32c(table)]]}
    write_manifest(folder, replace(before, files=listed, blocks={"size": size, "files": [path]}))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def names(folder: Path) -> list[str]:
    """What is in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


# -- for child processes, which can import this module but not the tests ---------------------------------------------


def in_child(queue: Any, check: Callable[..., bool], *arguments: Any) -> None:
    queue.put(check(*arguments))


def check_reads(dataset: Dataset, episodes: Sequence[Episode]) -> bool:
    """Whether random batches, large enough for several threads to decode, hold what they must."""
    if multiprocessing.parent_process():
        torch.set_num_threads(1)  # torch's own threads do not survive a fork; DataLoader does this in its workers, too
    truth = torch.from_numpy(columns(episodes)["observation"])
    generator = torch.Generator().manual_seed(0)
    draws = (torch.randint(len(truth), (300,), generator=generator) for _ in range(20))
    return all(torch.equal(dataset.read(steps)["observation"][:, 0], truth[steps]) for steps in draws)


def check_decoding(dataset: Dataset, episodes: Sequence[Episode]) -> bool:
    """The same with our own decoding threads, and none of torch's."""
    assert torch.get_num_threads() > 1
    truth = state_rows(episodes, "observation")
    rows = np.arange(len(truth)).repeat(10)
    found = dataset.rows["observation"].windows(torch.from_numpy(rows), 1)
    return np.array_equal(found.numpy()[:, 0], truth[rows])
