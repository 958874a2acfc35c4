"""One run of RL Unplugged's ordered episodes, from its files to a dataset.

Each file is decoded as a unit (`rl_unplugged_decode`). The episodes of all files lie in training order (`training_order`), that
of the stored indices, (checkpoint, index in it); the names of files say nothing.

Whether an episode's beginning is missing is not stored. A checkpoint's last episode that did not terminate was cut by the
checkpoint's end, and then the first one of the next checkpoint is its continuation, as far as can be known (sources say
so, none shows it): it becomes a separate episode, marked ``midway``. So does the first one of a checkpoint whose predecessor is
not among the files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ....errors import CorruptSourceError
from ....storage.amounts import plural
from ....storage.codecs import codec_of
from ....storage.episodes import CUT, EpisodeTable
from ...fetch import Location, resolve
from ...ingest.estimate import compressed_share, expect_rows
from ...ingest.records import ConvertOptions, Expectation, RawObject
from ...ingest.request import format_numbers, select_numbered
from ...ingest.trajectories import count_outcomes
from ...ingest.unit import Facts, Part
from .raw_files import FOLDER, RL_UNPLUGGED, RunFile
from .reader import CITATION, SPACES, RunReader, describe
from .rl_unplugged_decode import CHECKPOINT, FILE_ROWS, INDEX, OUTCOME, STEPS, Sample, UnpluggedUnit, take_sample

#: After the fields that a unit says of an episode: the place of its file in the list.
FILE = OUTCOME + 1


def training_order(files: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[dict[str, Any], np.ndarray]:
    """What some files hold, for the manifest, and which of their episodes with steps, in training order, may have begun before
    their first row, bool.

    ``files`` are their names and what their units recorded (`UnpluggedUnit`). Raises CorruptSourceError when an episode is
    there twice.
    """
    in_files = [np.array(about["episodes"], np.int64).reshape(-1, FILE) for _, about in files]
    table = np.concatenate([np.insert(one, FILE, number, axis=1) for number, one in enumerate(in_files)])
    table = table[np.lexsort((table[:, INDEX], table[:, CHECKPOINT]))]
    same = (np.diff(table[:, CHECKPOINT]) == 0) & (np.diff(table[:, INDEX]) == 0)
    if same.any():
        at = int(np.argmax(same))
        one, other = (files[int(table[row, FILE])][0] for row in (at, at + 1))
        checkpoint, index = table[at, [CHECKPOINT, INDEX]].tolist()
        message = f"episode {index} of checkpoint {checkpoint} is there twice, in {one} and in {other}"
        raise CorruptSourceError(message, hint="files of different versions or runs are mixed; check the mirror")
    midway, gaps = _find_midway(table)
    rows, steps = table[:, FILE_ROWS], table[:, STEPS]
    midway, outcomes = midway[steps > 0], table[steps > 0, OUTCOME]
    counts = {
        "rows_read": int(rows.sum()),
        "pad_rows": 0,
        "given_up_steps": int((rows - steps).sum()),
        "given_up_episodes": int(((steps == 0) & (rows > 0)).sum()),
        "empty_episodes": int((rows == 0).sum()),
        **count_outcomes(outcomes),
        "midway_episodes": int(midway.sum()),
        "silent_ends": sum(about["silent_ends"] for _, about in files),
        "unclipped_rewards": sum(about["unclipped_rewards"] for _, about in files),
        "gaps": gaps,
    }
    return counts, midway


def _find_midway(table: np.ndarray) -> tuple[np.ndarray, list[dict[str, int]]]:
    """Which episodes may have begun before their first row, bool; and the gaps between checkpoints."""
    midway, gaps = np.zeros(len(table), bool), []
    checkpoint = table[:, CHECKPOINT]
    for row in np.flatnonzero(np.diff(checkpoint, prepend=-1)).tolist():
        before = int(checkpoint[row - 1]) if row else -1
        missing = int(checkpoint[row]) - before - 1
        if missing and row:
            gaps.append({"before_checkpoint": int(checkpoint[row]), "checkpoints_missing": missing})
        open_end = bool(row) and table[row - 1, OUTCOME] == CUT and table[row - 1, FILE_ROWS] > 0
        midway[row] = bool(missing) or open_end
    return midway, gaps


class RluReader(RunReader[RunFile]):
    """Each file is a unit. Their runs of episodes are sections, in training order."""

    upstream, piece = RL_UNPLUGGED, "file"
    citation = f"{CITATION} Distributed in: Caglar Gulcehre et al. RL Unplugged. NeurIPS 2020. arXiv:2006.13888"
    return_steps = sys.maxsize  # rewards of an episode are summed at once
    #: Set by `facts`.
    _objects: list[dict[str, Any]]

    def __init__(self, name: str | None, location: Location, files: list[RunFile], options: ConvertOptions) -> None:
        super().__init__(name, location, files, options)
        chosen = select_numbered({one.number: one for one in files}, options.parts, self.title, self.piece)
        self._check_complete()
        objects = resolve(location, [file.obj for file in chosen])
        self.chosen = [RunFile(file.number, file.total, obj) for file, obj in zip(chosen, objects)]

    def _check_complete(self) -> None:
        """Raise CorruptSourceError if all files are requested and a server lists fewer than their names state, as in a
        truncated listing. A folder on this machine is accepted as it is, with a note."""
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
        # Parts are compared with their objects: an interrupted run may be continued with another mirror.
        return {**super().identity(), "files": [file.number for file in self.chosen]}

    def expect(self) -> Expectation:
        sample = self._sample
        fetch = sum(file.obj.size or 0 for file in self.chosen)
        rows = int(fetch / max(1.0, sample.packed_bytes))
        episodes = int(rows / max(1.0, sample.rows_per_episode))
        ratio = compressed_share(codec_of(leaves[0]), sample.rows) if (leaves := self.compressed()) else 1.0
        return replace(expect_rows(self, rows, episodes, ratio), fetch_bytes=fetch)

    def units(self, lead: Part | None) -> list[UnpluggedUnit]:
        how = (self.location, self.options.unknown_next, self.time_limit)
        return [
            UnpluggedUnit(index, file.obj.name, file.obj.size or 1, file.obj.name, file.obj, *how)
            for index, file in enumerate(self.chosen)
        ]

    @cached_property
    def _sample(self) -> Sample:
        return take_sample(self.location, self.chosen)

    def sample_rows(self) -> np.ndarray:
        return self._sample.rows

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        if not len(episodes):
            raise CorruptSourceError(f"{self.title} holds no complete step")
        counts, midway = training_order([(file.obj.name, part.about) for file, part in zip(self.chosen, parts)])
        self._objects = [describe(file.obj, part.about["crc32c"]) for file, part in zip(self.chosen, parts)]
        return Facts(counts, self._notes(counts), [], SPACES, midway)

    # -- what the manifest says ------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        return self._objects

    def raw_objects(self) -> list[RawObject]:
        game = (self.name or "").partition("/")[0]
        return [RawObject(f"{FOLDER}/{game}/{file.obj.name}", file.obj, self.location) for file in self.chosen]

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
                f"{plural(counts['midway_episodes'], 'episode')} at the beginning of a checkpoint whose "
                "predecessor ends in an open "
                "episode, or is not there: what came before the first row may be missing."
            )
        for gap in counts["gaps"]:
            lost = gap["checkpoints_missing"]
            is_missing = "checkpoint is" if lost == 1 else "checkpoints are"
            gaps.append(f"Before checkpoint {gap['before_checkpoint']} {lost} {is_missing} missing.")
        total = self.available[0].total
        absent = self._absent()
        not_there = [f"Of the run's {total} files these are not at the source: {absent}."] if absent else []
        return list(self.sentences(counts, first, dropped, gaps, not_there))
