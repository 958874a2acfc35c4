"""Dataset folders with known contents, made of blocks, parts and a join the way sources make them.

    episodes = make_episodes([3, 5, 1])
    folder = write_dataset(root, episodes, "zstd", parts=3, order=[2, 0, 1])
    truth = columns(episodes)            # every TED key, as numpy arrays [steps, ...]

Layouts: ``flat`` (low-dimensional: everything is a step leaf, in the lead), ``raw`` and ``zstd`` (state leaves, in parts),
``ted`` (large rows as plain TED: step leaves, in parts).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch
from rbdata.datasets.ingest.block import END_CUT, END_TERMINATED, END_TRUNCATED, Block
from rbdata.datasets.ingest.dictionary import has_dictionaries, store_dictionaries
from rbdata.datasets.ingest.part import PartTask, part_folder, parts_of
from rbdata.datasets.ingest.unit import LEAD, Part, Unit
from rbdata.storage.checksums import crc32c
from rbdata.storage.codecs import codec_of
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable
from rbdata.storage.folder import DatasetPlace, remove_tree
from rbdata.storage.join import Piece, begin_join, is_joining, join
from rbdata.storage.manifest import BLOCK_TABLE, Manifest, read_manifest, write_manifest
from rbdata.storage.schema import Leaf, Schema, ted_flags
from rbdata.storage.work import Work

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
    lengths = np.array([len(episode) for episode in episodes], np.int64)
    returns = [float(episode.steps["next/reward"].astype("float64").sum()) for episode in episodes]
    outcomes = np.array([episode.outcome for episode in episodes], np.uint8)
    midway = np.zeros(len(lengths), bool)
    return EpisodeTable(np.cumsum(lengths) - lengths, lengths, np.array(returns, np.float64), outcomes, midway)


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


@dataclass(frozen=True)
class GivenBlocks(Unit):
    """A unit of blocks in memory."""

    given: Sequence[Block] = ()

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        yield from self.given


def write_lead(work: Work, schema: Schema, blocks: Sequence[Block]) -> Part:
    """Make the lead of a dataset of these blocks."""
    lead = GivenBlocks(LEAD, "lead", 0, "", given=blocks)
    remove_tree(part_folder(work.folder, LEAD, 0))
    PartTask(lead, work.folder, schema, 1)(lambda *_: None)
    return parts_of(work.folder, lead)[0]


def commit(
    place: DatasetPlace, manifest: Manifest, episodes: EpisodeTable, parts: Sequence[Part], bulk: Sequence[str] = ()
) -> Path:
    """Join parts, in order, and make the folder the dataset."""
    pieces: dict[str, list[Piece]] = {leaf.name: [] for leaf in manifest.schema if leaf.constant is None}
    for part in parts:
        for section in part.sections:
            for name, some in pieces.items():
                some += part.pieces(section, manifest.schema[name], part.unit)
    begin_join(place, manifest, episodes, pieces, bulk)
    join(place)
    return place.path


#: How a step ends (`block`), by the outcome of its episode.
ENDS = {TERMINATED: END_TERMINATED, TRUNCATED: END_TRUNCATED, CUT: END_CUT}


@dataclass
class Recipe:
    """How one dataset is written: everything that may differ between two runs that must give the same bytes, and more.

    ``cuts`` are the state rows at which parts end (default: about equal ones); ``order`` the order in which parts are
    finished, ``block`` the states of a block, ``threads`` those that encode. ``stop_after`` kills the run (raises Stopped) once
    that many parts are finished.
    """

    episodes: Sequence[Episode]
    layout: str | Mapping[str, str] = "flat"
    id: str = "my/test"
    parts: int = 1
    cuts: Sequence[int] | None = None
    order: Sequence[int] | None = None
    block: int = 7
    threads: int = 1
    dictionary: bool = True
    stop_after: int | None = None
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
        work, schema = Work(place, "print"), self.schema
        if is_joining(place):
            join(place)
            return place.path
        lead = write_lead(work, schema, [self.steps()])
        self.train(work)
        units = [GivenBlocks(number, f"part {number}", 1, "", given=some) for number, some in enumerate(self.states())]
        for number in self.order if self.order is not None and units else range(len(units)):
            if parts_of(work.folder, units[number]):
                continue
            if self.stop_after is not None and len(self.filled) == self.stop_after:
                raise Stopped
            self.filled.append(number)
            PartTask(units[number], work.folder, schema, self.threads)(lambda *_: None)
        if self.stop_after is not None:
            raise Stopped
        parts = [part for unit in units for part in parts_of(work.folder, unit)]
        return commit(place, self.manifest(), table(self.episodes), [lead, *parts], self.bulk)

    def steps(self) -> Block:
        """The rows of all small leaves."""
        bits = [np.zeros(len(episode), np.uint8) for episode in self.episodes]
        for episode, some in zip(self.episodes, bits):
            some[-1] = ENDS[episode.outcome]
        derived = (*self.bulk, "next/done", "next/terminated", "next/truncated")
        wanted = [leaf.name for leaf in self.schema.steps if leaf.constant is None and leaf.name not in derived]
        truth = columns(self.episodes)
        return Block({name: truth[name] for name in wanted}, np.concatenate(bits))

    def states(self) -> list[list[Block]]:
        """For each part, the rows of the large leaves."""
        rows = {name: state_rows(self.episodes, name) for name in self.episodes[0].states if name in self.bulk}
        final = np.zeros(self.bounds[-1], bool)
        if rows:
            final[np.cumsum([len(episode) + 1 for episode in self.episodes]) - 1] = True
        parts = []
        for low, high in pairwise(self.bounds):
            edges = [*range(low, high, self.block), high] if low < high else [low, high]
            goes_on = low > 0 and not final[low - 1]
            parts.append(
                [
                    Block({name: some[a:b] for name, some in rows.items()}, final=final[a:b], goes_on=goes_on)
                    for a, b in pairwise(edges)
                ]
            )
        return parts

    def train(self, work: Work) -> None:
        """Make the dictionaries, where no earlier run did."""
        leaves = {leaf.name: leaf for leaf in self.schema.states if codec_of(leaf).uses_dictionary}
        if has_dictionaries(work.folder, list(leaves.values()), str(self.dictionary)):
            return
        made = {}
        for name, leaf in leaves.items():
            rows = state_rows(self.episodes, name)
            data = np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8).reshape(len(rows), -1)
            made[name] = codec_of(leaf).train(data) if self.dictionary else b""
        store_dictionaries(work.folder, leaves, made, str(self.dictionary))

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
    listed = {**before.files, BLOCK_TABLE: [(len(table), crc32c(table))]}
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
