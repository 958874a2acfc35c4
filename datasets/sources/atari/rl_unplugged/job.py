"""One run of RL Unplugged's ordered episodes, from its files to a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from .....errors import CorruptSourceError
from .....storage.amounts import plural
from .....storage.checksums import crc32c
from .....storage.codecs import codec_of
from .....storage.codecs.compressed import CompressedCodec, compressed_codec
from .....storage.durable import write_atomically
from .....storage.episodes import TERMINATED
from .....storage.folder import remove_tree
from .....storage.writer import ColumnWriter
from ....fetch import Location, resolve
from ....ingest.protocol import ConvertOptions, Expectation, PartSpec, Plan, RawObject
from ....ingest.request import format_numbers
from ....ingest.row_source import StagedPart, StagedRows
from ....ingest.trajectories import results
from ..run_job import CITATION, RunJob, spaces
from .decode import ROWS, STEPS, DecodeTask, is_of
from .episodes import Sample, take_sample
from .files import FOLDER, UPSTREAM, EpisodeFile
from .order import DecodedFile, Order, Part

DICTIONARY = "dictionary"


class RluJob(RunJob[EpisodeFile]):
    """Files are fetched and decoded first (`decode`), and planned when all of them are."""

    upstream, piece = UPSTREAM, "file"
    citation = f"{CITATION} Distributed in: Caglar Gulcehre et al. RL Unplugged. NeurIPS 2020. arXiv:2006.13888"
    staging = "sampling frames"
    #: Set by `plan`.
    _order: Order

    def __init__(self, name: str | None, location: Location, files: list[EpisodeFile], options: ConvertOptions) -> None:
        super().__init__(name, location, files, options)
        chosen = self.select()
        self._check_complete()
        objects = resolve(location, [file.obj for file in chosen])
        self.chosen = [EpisodeFile(file.number, file.total, obj) for file, obj in zip(chosen, objects)]
        self._folder: Path | None = None

    def _check_complete(self) -> None:
        """Raise CorruptSourceError where all files are wanted and a server lists fewer than their names state: a listing that
        was cut short looks like that. A folder of this machine is taken as it is, with a note."""
        absent = self._absent()
        if absent and self.options.parts is None and "://" in self.location.url:
            message = f"{self.title} has {self.available[0].total} files, and {absent} are not at {self.location.url}"
            there = format_numbers([file.number for file in self.available]).replace(" ", "")
            raise CorruptSourceError(
                message, hint=f"use another mirror, or take those that are there: --shards {there}"
            )

    def _absent(self) -> str:
        """The numbers of the run's files that are not at the source."""
        return format_numbers(sorted(set(range(self.available[0].total)) - {file.number for file in self.available}))

    def identity(self) -> dict[str, Any]:
        # Decoded files are compared with their objects, and the plan's digest is of the contents: an interrupted run may be
        # continued with another mirror.
        return {**super().identity(), "files": [file.number for file in self.chosen]}

    # -- before the plan -------------------------------------------------------------------------------------------

    def expect(self) -> Expectation:
        sample = self._sample
        fetch = sum(file.obj.size or 0 for file in self.chosen)
        rows = int(fetch / max(1.0, sample.packed_bytes))
        episodes = int(rows / max(1.0, sample.rows_per_episode))
        raw = sum(self.schema[name].row_bytes for name in self.bulk)
        fixed = codec_of(self.schema[self.bulk[0]]).fixed_rows
        dictionary = self._dictionary.read_bytes() if self._folder and self._dictionary.is_file() else self._train()
        packed = self._packed_row_bytes(dictionary)
        disk = rows * (packed + (raw if fixed else 0))
        names = [f"file {file.number}" for file in self.chosen]
        small = sum(leaf.row_bytes for leaf in self.schema.steps if leaf.name not in self.bulk and leaf.constant != 0)
        stored = int(rows * (small + (raw if fixed else packed))) + (0 if fixed else len(dictionary))
        return Expectation(fetch, rows, episodes, int(disk), names, (stored, stored))

    def staged_parts(self, folder: Path) -> int:
        return sum(is_of(folder / file.obj.name, file.obj) for file in self.chosen if (folder / file.obj.name).is_dir())

    def staging_tasks(self, folder: Path, threads: int) -> list[DecodeTask]:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        for file in self.chosen:
            if (folder / file.obj.name).is_dir() and not is_of(folder / file.obj.name, file.obj):
                remove_tree(folder / file.obj.name)
        dictionary = self._dictionary
        if not dictionary.is_file():
            write_atomically(dictionary, self._train())
        how = (dictionary, self._codec.name, self.options.unknown_next, self.time_limit, threads)
        return [
            DecodeTask(index, file.obj, self.location, folder / file.obj.name, *how)
            for index, file in enumerate(self.chosen)
            if not (folder / file.obj.name).is_dir()
        ]

    # -- plan and fill ---------------------------------------------------------------------------------------------

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Reads what was decoded: call after the tasks of `staging_tasks` are done."""
        assert self._folder is not None
        decoded = [DecodedFile.open(self._folder / file.obj.name) for file in self.chosen]
        if not any(file.episodes[:, STEPS].any() for file in decoded):
            remove_tree(self._folder)  # nothing in it is worth keeping for another run
        self._order = order = Order(decoded)
        columns.reserve(int(order.table[:, 3].sum()))
        for action, reward, outcome in order.steps():
            terminated = outcome == TERMINATED
            columns.append({"action": action, **results(reward, terminated, (outcome != 0) & ~terminated)})
        on_progress(len(self.chosen), len(self.chosen))
        episodes = order.episode_table()
        parts = [self._plan_part(part) for part in order.parts]
        found = [[file.number, done.about["crc32c"]] for file, done in zip(self.chosen, order.files)]
        return Plan(
            digest=crc32c(json.dumps([found, [part.layout for part in parts]]).encode()),
            episodes=episodes,
            counts=order.counts,
            notes=self._notes(order.counts),
            parts=parts,
            spaces=spaces(),
        )

    def staged_dictionary(self) -> bytes:
        return self._dictionary.read_bytes()

    def row_sources(self) -> list[StagedPart]:
        files = self._order.files
        return [
            StagedPart(
                name=self.chosen[part.file].obj.name,
                leaves={
                    "observation": [
                        StagedRows(files[run.file].path / ROWS, run.first_state, run.states, self._dictionary)
                        for run in part.runs
                    ]
                },
                crc32c=files[part.file].about["crc32c"],
            )
            for part in self._order.parts
        ]

    @property
    def _dictionary(self) -> Path:
        assert self._folder is not None
        return self._folder / DICTIONARY

    @cached_property
    def _sample(self) -> Sample:
        return take_sample(self.location, self.chosen)

    @property
    def _codec(self) -> type[CompressedCodec]:
        """What decoded rows are compressed with until they are put in place."""
        return compressed_codec(self.schema[self.bulk[0]].codec)

    def _train(self) -> bytes:
        return self._codec.train(self._sample.rows)

    def _packed_row_bytes(self, dictionary: bytes) -> float:
        """Bytes of a compressed row with its offset, measured on a few sample rows."""
        rows = self._sample.rows[:: max(1, len(self._sample.rows) // 500)]
        return self._codec.estimate_row_bytes(rows, dictionary)

    # -- what the manifest says ------------------------------------------------------------------------------------

    def raw_objects(self) -> list[RawObject]:
        game = (self.name or "").partition("/")[0]
        return [RawObject(f"{FOLDER}/{game}/{file.obj.name}", file.obj, self.location) for file in self.chosen]

    def _plan_part(self, part: Part) -> PartSpec:
        file = self.chosen[part.file]
        layout = f"rlu-{crc32c(repr([(run.file, run.first_state, run.states) for run in part.runs]).encode())}"
        return self.describe_part(file.number, part.first_state, part.states, layout, file.obj)

    def _notes(self, counts: Mapping[str, Any]) -> list[str]:
        first = (
            "From RL Unplugged's ordered episodes, which hold the experience of DQN Replay without its padding; episodes "
            "are cut where a checkpoint of 1 M rows ends. The reward of a terminated episode's last row is real: "
            f"{counts['silent_ends']} of {counts['terminated_episodes'] + counts['time_limit_episodes']} end with 0."
        )
        dropped = (
            f"Dropped: {plural(counts['given_up_steps'], 'step')} with no next state (the episode is cut there, or the time "
            "limit was reached); the frame of such a step is the final observation of the step before it."
        )
        gaps = []
        if counts["midway_episodes"]:
            gaps.append(
                f"{counts['midway_episodes']} episodes are the first of a checkpoint whose predecessor ends in an open "
                "episode, or is not there: they may have begun before their first row."
            )
        for gap in counts["gaps"]:
            lost = gap["checkpoints_missing"]
            is_missing = "checkpoint is" if lost == 1 else "checkpoints are"
            gaps.append(f"Before checkpoint {gap['before_checkpoint']} {lost} {is_missing} missing.")
        total = self.available[0].total
        absent = self._absent()
        not_there = [f"Of the run's {total} files these are not at the source: {absent}."] if absent else []
        return list(self.sentences(counts, first, dropped, gaps, not_there))
