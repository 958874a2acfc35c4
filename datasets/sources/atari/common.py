"""What an Atari dataset looks like, whichever upstream it came from."""

from __future__ import annotations

from typing import Any

from ....errors import UsageError
from ....storage.codecs import resolve_choice
from ....storage.schema import Leaf, Schema, ted_flags
from ...ingest.protocol import ConvertOptions
from .ring import TIME_LIMIT
from .shards import FRAME

LICENCE = "not stated for the data (the code is Apache-2.0); see https://research.google/resources/datasets/dqn-replay/"
CITATION = (
    "Rishabh Agarwal, Dale Schuurmans, Mohammad Norouzi. An Optimistic Perspective on Offline Reinforcement Learning. "
    "ICML 2020. arXiv:1907.04543"
)
CLIPPED = "Rewards were clipped to [-1, 1] before they were published; game scores cannot be recovered."


def schema(options: ConvertOptions) -> Schema:
    """Frames as a state leaf (or, with layout ``ted``, twice as step leaves), the rest as TED has it."""
    small = (Leaf("action", "step", "int32", ()), *ted_flags())
    if options.layout == "ted":
        big: tuple[Leaf, ...] = (
            Leaf("observation", "step", "uint8", FRAME),
            Leaf("next/observation", "step", "uint8", FRAME),
        )
    else:
        big = (Leaf("observation", "state", "uint8", FRAME, codec=resolve_choice(options.codec)),)
    return Schema((*big, *small))


def time_limit(options: ConvertOptions) -> int:
    """Rows after which the clock ended an episode, 0 for none. Raises UsageError for what makes no sense."""
    limit = TIME_LIMIT if options.time_limit is None else options.time_limit
    if limit == 1 or limit < 0:
        raise UsageError(f"a time limit of {limit} steps makes no sense", hint="0 means no time limit")
    return limit


def spaces() -> dict[str, Any]:
    """Observation and action space for the manifest."""
    return {
        "observation": {"type": "Box", "low": 0, "high": 255, "shape": list(FRAME), "dtype": "uint8"},
        "action": {"type": "Discrete", "n": None, "note": "the game's minimal action set"},
    }


def about(upstream: str, dataset: str | None, options: ConvertOptions, shards: list[int]) -> dict[str, Any]:
    """``source`` of the manifest, and ``licence`` and ``citation``; ``shards`` are the numbers of the raw files taken."""
    return {
        "source": {
            "name": "atari",
            "upstream": upstream,
            "dataset": dataset,
            "options": {
                "codec": schema(options)["observation"].codec,
                "layout": options.layout,
                "unknown_next": options.unknown_next,
                "time_limit": time_limit(options),
                "upstream": upstream,
            },
            "shards": shards,
            "all_shards": options.parts is None,
        },
        "licence": LICENCE,
        "citation": CITATION,
    }
