"""What the readers of Minari's formats have in common.

A *place* is where the values of one leaf are, in every episode: ``("observations", "state", "pos")``, ``("actions", 0)`` for
the first of a Tuple, ``("infos", "qpos")``, ``("rewards",)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ...ingest.spaces import Json

Place = tuple[str | int, ...]
Kind = Literal["numbers", "jpeg", "text", "other"]


@dataclass(frozen=True)
class Field:
    """What is at a place in one episode: ``rows`` rows of ``shape`` (of the picture, where they are JPEG).

    ``dtype`` is in native byte order. ``why``: what keeps it from being used, where its kind is ``other``.
    """

    rows: int
    kind: Kind
    dtype: np.dtype
    shape: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Data:
    """The files of a dataset on a disk: ``files`` by their path below ``data/``. Picklable.

    ``checked``: they have been looked through by `survey`, and are not suspected again of what would be dangerous.
    """

    format: str
    name: str
    files: dict[str, Path]
    checked: bool = False


class EpisodeReader(Protocol):
    """One dataset, open for reading. Everything that is wrong with its files is a CorruptSourceError."""

    #: Numbers of the episodes, ascending.
    episodes: list[int]

    def steps(self, episode: int) -> int:
        """How many steps an episode has."""

    def field(self, episode: int, place: Place, shape: tuple[int, ...]) -> Field:
        """What is there; ``shape`` is that of a row by the space. Raises CorruptSourceError where nothing is."""

    def infos(self, episode: int) -> dict[Place, Field]:
        """All that is among an episode's infos."""

    def read(self, episode: int, place: Place, low: int, high: int, kind: Kind) -> Any:
        """Rows ``low..high-1``: an array, or for ``jpeg`` and ``text`` a list of bytes."""

    def space(self, place: Place) -> Json:
        """The space that the first episode's values seem to be of, where the metadata state none."""

    def close(self) -> None: ...
