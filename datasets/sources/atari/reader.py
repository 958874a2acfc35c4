"""What the readers of both upstreams share: the columns of an Atari dataset, the choice of shards or files, the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ....errors import UsageError
from ....storage.amounts import plural
from ...fetch import Location, RemoteObject
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ...ingest.request import format_numbers
from ...ingest.trajectories import Column
from .raw_files import FRAME, RunFile, Shard
from .ring import TIME_LIMIT

Piece = TypeVar("Piece", Shard, RunFile)

ROW_BYTES = FRAME[0] * FRAME[1]
LICENCE = "not stated for the data (the code is Apache-2.0); see https://research.google/resources/datasets/dqn-replay/"
CITATION = (
    "Rishabh Agarwal, Dale Schuurmans, Mohammad Norouzi. An Optimistic Perspective on Offline Reinforcement Learning. "
    "ICML 2020. arXiv:1907.04543"
)
COLUMNS = (Column("observation", "uint8", FRAME, "state"), Column("action", "int32", (), "step"))
_CLIPPED = "Rewards were clipped to [-1, 1] before they were published; game scores cannot be recovered."


#: Observation and action space, for the manifest.
SPACES: dict[str, Any] = {
    "observation": {"type": "Box", "low": 0, "high": 255, "shape": list(FRAME), "dtype": "uint8"},
    "action": {"type": "Discrete", "n": None, "note": "the game's minimal action set"},
}


def describe(item: RemoteObject, found: str | None = None) -> dict[str, Any]:
    """An object as the manifest records it; the checksum is the computed one (``found``), or else the stated one."""
    return {"name": item.name, "size": item.size, "crc32c": found or item.checksums.get("crc32c")}


class RunReader(Reader, Generic[Piece]):
    """One run from its pieces (shards or files) at a place: what both upstreams have in common.

    ``available`` are the pieces at the place, ``chosen`` the selected pieces, both by number.
    """

    source, licence, citation = "atari", LICENCE, CITATION
    #: What a piece is called: "shard" or "file".
    piece: str
    available: Sequence[Piece]
    chosen: Sequence[Piece]

    def __init__(
        self, name: str | None, location: Location, available: Sequence[Piece], options: ConvertOptions
    ) -> None:
        super().__init__(name, location, options)
        self.available = available
        self.resolved_options = {"upstream": self.upstream}
        #: Rows after which the clock ended an episode, 0 for none.
        self.time_limit = TIME_LIMIT if options.time_limit is None else options.time_limit
        if self.time_limit == 1 or self.time_limit < 0:
            raise UsageError(f"a time limit of {self.time_limit} steps is invalid", hint="0 means no time limit")
        self.set_columns(COLUMNS)

    def unverified(self) -> list[str]:
        """None: gzip states the length and CRC-32 of what is in it, and both are compared."""
        return []

    def identity(self) -> dict[str, Any]:
        return {
            "converter": f"atari-{self.upstream} 1",
            "leaves": [leaf.to_json() for leaf in self.schema],
            "unknown_next": self.options.unknown_next,
            "time_limit": self.time_limit,
        }

    def shards(self) -> list[int]:
        return [one.number for one in self.chosen]

    def describe(self) -> dict[str, Any]:
        options = {
            "codec": self.schema["observation"].codec,
            "layout": self.options.layout,
            "unknown_next": self.options.unknown_next,
            "time_limit": self.time_limit,
            "upstream": self.upstream,
        }
        return {"options": options, "shards": self.shards(), "all_shards": self.options.parts is None}

    def sentences(
        self, counts: Mapping[str, Any], first: str, dropped: str, gaps: Iterable[str], absent: Iterable[str] = ()
    ) -> Iterator[str]:
        """What a user should know about the values: what both upstreams share, and what differs."""
        yield first
        yield _CLIPPED
        if counts["time_limit_episodes"]:
            yield (
                f"{plural(counts['time_limit_episodes'], 'episode')} of exactly {self.time_limit} rows ended at "
                "the time limit: the "
                "data say terminal, they are truncated here."
            )
        if self.options.unknown_next == "zero" and (counts["cut_episodes"] or counts["time_limit_episodes"]):
            yield "Rows whose successor is not in the data are kept, truncated, with a successor of zeros."
        elif counts["given_up_steps"]:
            yield dropped
        yield from gaps
        if counts["unclipped_rewards"]:
            yield f"{counts['unclipped_rewards']} rewards lie outside [-1, 1], unlike in the published data."
        yield from absent
        left_out = {one.number for one in self.available} - {one.number for one in self.chosen}
        if left_out:
            yield f"{self.piece.capitalize()}s not taken: {format_numbers(sorted(left_out))}."
