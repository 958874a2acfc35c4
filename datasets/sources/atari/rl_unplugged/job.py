"""One run of RL Unplugged's ordered episodes, from its files to a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .....errors import ObjectNotFoundError
from .....storage.checksums import crc32c
from .....storage.codecs.zstd import RowEncoder
from .....storage.column_writer import ColumnWriter
from .....storage.episodes import TERMINATED
from .....storage.folder import remove_tree
from ....fetch import Location, RemoteObject, resolve
from ....ingest.number_ranges import format_numbers
from ....ingest.protocol import ConvertOptions, Expectation, Plan, RawObject, SpoolingJob
from ..common import CITATION, CLIPPED, about, schema, spaces, time_limit
from .files import FOLDER, UPSTREAM, EpisodeFile
from .fill import FillTask
from .frame_sample import Sample, take_sample
from .order import Order, Part, Spool
from .spool import STEPS, SpoolTask, is_of

DICTIONARY = "dictionary"
_CITATION = f"{CITATION} Distributed in: Caglar Gulcehre et al. RL Unplugged. NeurIPS 2020. arXiv:2006.13888"


class RluJob(SpoolingJob):
    """What is fetched is decoded at once, into spools (`spool`); the plan is made when all are there."""

    decided: Mapping[str, Any] = {"upstream": UPSTREAM}

    def __init__(self, name: str | None, location: Location, files: list[EpisodeFile], options: ConvertOptions) -> None:
        self.name, self.location, self.options = name, location, options
        self.available = files
        chosen = _select(files, options.parts, name or location.url)
        objects = resolve(location, [file.obj for file in chosen])
        self.chosen = [EpisodeFile(file.number, file.total, obj) for file, obj in zip(chosen, objects)]
        self.time_limit = time_limit(options)
        self.schema = schema(options)
        self.bulk = tuple(name for name in ("observation", "next/observation") if name in self.schema)
        self._sample: Sample | None = None
        self._order: Order | None = None
        self._spools: Path | None = None

    def identity(self) -> dict[str, Any]:
        return {
            "converter": "atari-rl-unplugged 1",
            "leaves": [leaf.to_json() for leaf in self.schema],
            "unknown_next": self.options.unknown_next,
            "time_limit": self.time_limit,
            # Spools are compared with their objects, and the plan's digest is of the contents: an interrupted run may go on
            # with another mirror.
            "files": [file.number for file in self.chosen],
        }

    def parts(self) -> int:
        return len(self.chosen)

    def files(self) -> list[RemoteObject]:
        return []  # all is streamed

    # -- before the plan -------------------------------------------------------------------------------------------

    def expect(self) -> Expectation:
        sample = self._sampled()
        fetch = sum(file.obj.size or 0 for file in self.chosen)
        rows = int(fetch / max(1.0, sample.packed_bytes))
        episodes = int(rows / max(1.0, sample.rows_per_episode))
        packed = self._packed_row_bytes()
        disk = rows * self.row_estimate(b"") + (0 if self.schema["observation"].codec == "zstd" else rows * packed)
        names = [f"file {file.number}" for file in self.chosen]
        return Expectation(fetch, rows, episodes, int(disk), names)

    def spooling(self, folder: Path, threads: int) -> list[SpoolTask]:
        folder.mkdir(parents=True, exist_ok=True)
        self._spools = folder
        for file in self.chosen:
            if (folder / file.obj.name).is_dir() and not is_of(folder / file.obj.name, file.obj):
                remove_tree(folder / file.obj.name)
        dictionary = folder / DICTIONARY
        if not dictionary.is_file():
            partial = dictionary.with_name(DICTIONARY + ".part")
            partial.write_bytes(self._trained())
            partial.replace(dictionary)
        return [
            SpoolTask(
                index,
                file.obj,
                self.location,
                folder / file.obj.name,
                dictionary,
                self.options.unknown_next,
                self.time_limit,
                threads,
            )
            for index, file in enumerate(self.chosen)
            if not (folder / file.obj.name).is_dir()
        ]

    # -- plan and fill ---------------------------------------------------------------------------------------------

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Reads the spools: call after the tasks of `spooling` are done."""
        assert self._spools is not None
        spools = [Spool.open(self._spools / file.obj.name) for file in self.chosen]
        if not any(spool.episodes[:, STEPS].any() for spool in spools):
            remove_tree(self._spools)  # nothing in them is worth keeping for another run
        self._order = order = Order(spools)
        columns.reserve(int(order.table[:, 3].sum()))
        for action, reward, outcome in order.steps():
            done = outcome != 0
            terminated = outcome == TERMINATED
            columns.append(
                {
                    "action": action,
                    "next/reward": reward[:, None],
                    "next/done": done[:, None],
                    "next/terminated": terminated[:, None],
                    "next/truncated": (done & ~terminated)[:, None],
                }
            )
        on_progress(len(self.chosen), len(self.chosen))
        episodes = order.episode_table()
        counts = order.summary()
        parts = [self._describe_part(part) for part in order.parts]
        found = [[file.number, spool.about["crc32c"]] for file, spool in zip(self.chosen, order.spools)]
        return Plan(
            digest=crc32c(json.dumps([found, [part["layout"] for part in parts]]).encode()),
            episodes=episodes,
            counts=counts,
            notes=self._notes(counts),
            parts=parts,
            fetch_bytes=[self.chosen[part.file].obj.size or 0 for part in order.parts],
            spaces=spaces(),
        )

    def dictionary(self) -> bytes:
        assert self._spools is not None
        return (self._spools / DICTIONARY).read_bytes()

    def row_estimate(self, dictionary: bytes) -> float:
        leaf = self.schema["observation"]
        if leaf.codec == "zstd":
            return self._packed_row_bytes()
        return leaf.row_bytes * (1 if leaf.kind == "state" else 2)

    def tasks(self, folder: Path, threads: int) -> Sequence[FillTask]:
        assert self._spools is not None and self._order is not None
        order, spools = self._order, self._spools
        last = order.parts[-1]
        return [
            FillTask(
                index=index,
                name=self.chosen[part.file].obj.name,
                first_state=part.first_state,
                states=part.states,
                runs=tuple((order.spools[run.file].path, run.first_state, run.states) for run in part.runs),
                folder=folder,
                schema=self.schema,
                all_states=last.first_state + last.states,
                dictionary=spools / DICTIONARY,
                crc32c=order.spools[part.file].about["crc32c"],
            )
            for index, part in enumerate(order.parts)
        ]

    def _sampled(self) -> Sample:
        if self._sample is None:
            self._sample = take_sample(self.location, self.chosen)
        return self._sample

    def _trained(self) -> bytes:
        from .....storage.codecs.zstd import train_dictionary

        return train_dictionary(self._sampled().rows)

    def _packed_row_bytes(self) -> float:
        """Bytes of a compressed row with its offset, measured on a few sample rows."""
        rows = self._sampled().rows
        rows = np.ascontiguousarray(rows[:: max(1, len(rows) // 500)])
        dictionary = self.dictionary() if self._spools and (self._spools / DICTIONARY).is_file() else self._trained()
        starts = np.arange(len(rows), dtype=np.int64) * rows.shape[1]
        return float(RowEncoder(dictionary).encode(rows.data, starts, rows.shape[1])[1].mean()) + 8

    # -- what the manifest says ------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        return []  # all are in the parts

    def raw_objects(self) -> list[RawObject]:
        game = (self.name or "").partition("/")[0]
        return [RawObject(f"{FOLDER}/{game}/{file.obj.name}", file.obj, self.location) for file in self.chosen]

    def about(self) -> dict[str, Any]:
        numbers = [file.number for file in self.chosen]
        return {**about(UPSTREAM, self.name, self.options, numbers), "citation": _CITATION}

    def _describe_part(self, part: Part) -> dict[str, Any]:
        file = self.chosen[part.file]
        return {
            "name": f"file {file.number}",
            "number": file.number,
            "first_state": part.first_state,
            "states": part.states,
            "layout": f"rlu-{crc32c(repr([(run.file, run.first_state, run.states) for run in part.runs]).encode())}",
            "object": {"name": file.obj.name, "size": file.obj.size, "crc32c": file.obj.checksums.get("crc32c")},
        }

    def _notes(self, counts: Mapping[str, Any]) -> list[str]:
        """What a user should know about the values, in sentences."""
        notes = [
            "From RL Unplugged's ordered episodes, which hold the experience of DQN Replay without its padding; episodes "
            "are cut where a checkpoint of 1 M rows ends. The reward of a terminated episode's last row is real: "
            f"{counts['silent_ends']} of {counts['terminated_episodes'] + counts['time_limit_episodes']} end with 0.",
            CLIPPED,
        ]
        if counts["time_limit_episodes"]:
            notes.append(
                f"{counts['time_limit_episodes']} episodes of exactly {self.time_limit} rows ended by the clock: the data "
                "say terminal, they are truncated here."
            )
        if self.options.unknown_next == "zero" and (counts["cut_episodes"] or counts["time_limit_episodes"]):
            notes.append("Rows whose successor is not in the data are kept, truncated, with a successor of zeros.")
        elif counts["given_up_steps"]:
            notes.append(
                f"{counts['given_up_steps']} rows whose successor is not in the data (the episode is cut there, or the "
                "clock ran out) were given up; their frame is the final observation of the step before."
            )
        if counts["midway_episodes"]:
            notes.append(
                f"{counts['midway_episodes']} episodes are the first of a checkpoint whose predecessor ends in an open "
                "episode, or is not there: they may have begun before their first row."
            )
        for gap in counts["gaps"]:
            lost = gap["checkpoints_missing"]
            is_missing = "checkpoint is" if lost == 1 else "checkpoints are"
            notes.append(f"Before checkpoint {gap['before_checkpoint']} {lost} {is_missing} missing.")
        if counts["unclipped_rewards"]:
            notes.append(f"{counts['unclipped_rewards']} rewards lie outside [-1, 1], unlike in the published data.")
        total = self.available[0].total
        absent = sorted(set(range(total)) - {file.number for file in self.available})
        if absent:
            notes.append(f"Of the run's {total} files these are not at the source: {format_numbers(absent)}.")
        left_out = sorted({file.number for file in self.available} - {file.number for file in self.chosen})
        if left_out:
            notes.append(f"Files not taken: {format_numbers(left_out)}.")
        return notes


def _select(files: list[EpisodeFile], wanted: Sequence[int] | None, what: str) -> list[EpisodeFile]:
    if wanted is None:
        return files
    there = {file.number: file for file in files}
    missing = sorted(set(wanted) - set(there))
    if missing:
        message = f"{what} has no file {', '.join(map(str, missing))}"
        raise ObjectNotFoundError(message, hint=f"it has {format_numbers(sorted(there))}")
    return [there[number] for number in sorted(set(wanted))]
