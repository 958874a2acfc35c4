"""Names of OGBench's datasets, and the files that hold them.

    antmaze-large-navigate-v0                          antmaze-large-navigate-v0.npz
    antmaze-large-navigate-v0-val                      antmaze-large-navigate-v0-val.npz
    cube-double-play-100m-v0                           cube-double-play-100m-v0/cube-double-play-v0-000.npz, 001 ... 099
    cube-double-play-100m-v0-val                       the files beside them that end in -val.npz
    antmaze-large-navigate-singletask-v0               a set with the rewards of the environment's default task
    antmaze-large-navigate-singletask-task3-v0-val     of task 3, validation

From seohongpark/ogbench: data_gen_scripts/commands.sh (the 85 sets), README (those of 100M steps), ogbench/utils.py (tasks).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

_MAZES, _SIZES = ("medium", "large", "giant", "teleport"), ("medium", "large", "giant")
_CUBES, _PUZZLES = ("single", "double", "triple", "quadruple"), ("3x3", "4x4", "4x5", "4x6")
#: Environments, their variants, and the kinds of data of each.
_PIXELS_TOO = (
    ("antmaze", _MAZES, ("navigate", "stitch")),
    ("antmaze", ("medium", "large", "teleport"), ("explore",)),
    ("humanoidmaze", _SIZES, ("navigate", "stitch")),
    ("cube", _CUBES, ("play", "noisy")),
    ("scene", ("",), ("play", "noisy")),
    ("puzzle", _PUZZLES, ("play", "noisy")),
)
_OTHERS = (
    ("pointmaze", _MAZES, ("navigate", "stitch")),
    ("antsoccer", ("arena", "medium"), ("navigate", "stitch")),
    ("powderworld", ("easy", "medium", "hard"), ("play",)),
)
_OF_100M = (
    *("humanoidmaze-giant-navigate", "cube-double-play", "cube-triple-play", "cube-quadruple-play"),
    *("cube-quadruple-noisy", "cube-octuple-play", "scene-play"),
    *("puzzle-3x3-play", "puzzle-4x4-play", "puzzle-4x5-play", "puzzle-4x6-play"),
)
#: Files of a set of 100M steps.
FILES = 100
_NAME = re.compile(
    r"(?P<environment>(?:visual-)?[a-z]+(?:-[a-z0-9]+)?)-(?P<kind>navigate|stitch|explore|play|noisy)(?P<large>-100m)?"
    r"(?P<single>-singletask(?:-task(?P<task>[1-5]))?)?-v0(?P<validation>-val)?"
)


@dataclass(frozen=True)
class SetName:
    """A dataset. ``task`` is that of a single-task set: its number, 0 for the environment's default, None for no task."""

    environment: str
    kind: str
    large: bool = False
    task: int | None = None
    validation: bool = False

    def __str__(self) -> str:
        task = "" if self.task is None else f"-singletask-task{self.task}" if self.task else "-singletask"
        large, validation = "-100m" * self.large, "-val" * self.validation
        return f"{self.environment}-{self.kind}{large}{task}-v0{validation}"

    @property
    def base(self) -> SetName:
        """The set whose file or folder has the data: that of training, without a task."""
        return replace(self, task=None, validation=False)

    @property
    def stem(self) -> str:
        """What the names of its files begin with."""
        return f"{self.environment}-{self.kind}-v0"

    @property
    def files(self) -> list[str]:
        """The paths of its files at the provider."""
        validation = "-val" * self.validation
        if not self.large:
            return [f"{self.stem}{validation}.npz"]
        return [f"{self.base}/{self.stem}-{number:03}{validation}.npz" for number in range(FILES)]

    @property
    def has_pixels(self) -> bool:
        return self.environment.startswith(("visual-", "powderworld-"))


def sets() -> Iterator[SetName]:
    """The sets of training data, without tasks."""
    for tables, prefixes in ((_OTHERS, ("",)), (_PIXELS_TOO, ("", "visual-"))):
        for prefix in prefixes:
            for environment, variants, kinds in tables:
                for variant in variants:
                    whole = f"{prefix}{environment}{f'-{variant}' if variant else ''}"
                    yield from (SetName(whole, kind) for kind in kinds)
    for name in _OF_100M:
        environment, _, kind = name.rpartition("-")
        yield SetName(environment, kind, large=True)


@cache
def known() -> frozenset[SetName]:
    """`sets`."""
    return frozenset(sets())


def parse(text: str) -> SetName | None:
    """The dataset of a name; None for a name of none. Powderworld has no single tasks."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    task = None if match["single"] is None else int(match["task"] or 0)
    name = SetName(match["environment"], match["kind"], bool(match["large"]), task, bool(match["validation"]))
    has_tasks = task is None or not name.environment.startswith("powderworld")
    return name if name.base in known() and has_tasks else None


def parse_file(name: str) -> SetName | None:
    """The set that a file of this name belongs to; None for other files."""
    match = re.fullmatch(r"(.+-v0)(-\d{3})?(-val)?\.npz", name)
    if match is None:
        return None
    stem = match[1].removesuffix("-v0") + "-100m-v0" if match[2] else match[1]
    return parse(f"{stem}{match[3] or ''}")
