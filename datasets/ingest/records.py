"""What a conversion is asked for and says: options, raw objects, parts, expectations, notes. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...storage.amounts import listed
from ...storage.codecs import resolve_choice

if TYPE_CHECKING:
    from ..fetch import Location, RemoteObject


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert; part of what identifies a dataset's bytes.

    ``codec`` is that of large leaves (`storage.codecs.choices`). ``layout`` ``ted`` writes large leaves twice, as plain TED.
    ``unknown_next``: what becomes of a step whose successor is not in the data (`sources.atari.ring`). ``parts`` selects
    raw objects by number (None: all there are).
    """

    codec: str = "auto"
    layout: Literal["auto", "ted"] = "auto"
    unknown_next: Literal["truncate", "zero"] = "truncate"
    time_limit: int | None = None
    parts: tuple[int, ...] | None = None
    #: An existing folder for data that must be unpacked to be read. None: the system's folder for temporary files.
    scratch: Path | None = None
    #: Options of one source only, by name; `Source.check` checks them against its declarations.
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises UsageError for options that exclude each other."""
        resolve_choice(self.codec, plain=self.layout == "ted")


@dataclass(frozen=True)
class RawObject:
    """A raw object, the place it is read from, and its ``path`` in a mirror laid out as the provider does it."""

    path: str
    item: RemoteObject
    location: Location


@dataclass(frozen=True)
class PartSpec:
    """One part of the large leaves: consecutive state rows, filled by one task.

    ``object`` describes the remote object it comes from: name, size, crc32c. ``layout`` identifies which rows of the object
    become which state rows: a part of equal layout and object has equal rows.
    """

    name: str
    states: int
    layout: str
    object: dict[str, Any]
    number: int
    first_state: int
    #: Bytes to be fetched to fill it.
    fetch_bytes: int = 0

    def with_checksum(self, crc32c: str | None) -> PartSpec:
        """The part with the checksum that was computed while its object was read, if any."""
        return replace(self, object={**self.object, "crc32c": crc32c or self.object["crc32c"]})

    def to_json(self) -> dict[str, Any]:
        """The record in the manifest."""
        names = ("name", "number", "first_state", "states", "layout", "object")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Expectation:
    """A guess, before units are read, of the bytes to be fetched and those that the dataset will take, and ``notes`` that
    are known already. ``counted``: steps and episodes are known."""

    fetch_bytes: int
    steps: int
    episodes: int
    disk_bytes: int
    notes: Sequence[str] = ()
    counted: bool = False


# -- notes ---------------------------------------------------------------------------------------------------------------


class Count(int):
    """A number in a sentence: ``{n}`` is 1,200; ``{n:step}`` "1 step" or "2 steps"; ``{n:step is|steps are}`` "1 step is"."""

    def __format__(self, words: str) -> str:
        one, _, several = words.partition("|")
        return f"{int(self):,} {one if self == 1 else several or one + 's'}" if words else f"{int(self):,}"


def count_notes(sentences: Mapping[str, str], counts: Mapping[str, Any]) -> list[str]:
    """The sentences whose count is not 0. ``{n}`` in a sentence is that count, ``{rows}`` and so on the others, as `Count`."""
    numbers = {name: Count(value) if isinstance(value, int) else value for name, value in counts.items()}
    return [sentence.format(n=numbers[name], **numbers) for name, sentence in sentences.items() if numbers.get(name)]


def name_left_out(left_out: Mapping[str, str], most: int = 8) -> str:
    """What is left out and why, in a few words: ``a (its dtype is object), b (it is text) and 3 more``."""
    return listed((f"{name} ({why})" for name, why in left_out.items()), most)
