"""Codecs: how the rows of a leaf are stored. One module per codec; the rest of the package uses the functions below.

A new codec is a module in this folder with a `codec.Codec` (or a `compressed.CompressedCodec`, which needs only a compressor)
and a line in ``CODECS``. Modules are loaded when a codec is used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ...errors import UsageError

if TYPE_CHECKING:
    from ..leaf import Leaf
    from .codec import Codec

#: Name in the manifest -> module (relative to this package if it starts with a dot) and class in it.
CODECS = {"raw": (".raw", "RawCodec"), "zstd": (".zstd", "ZstdCodec")}

#: The codec of small leaves and of plain TED: rows in the file as they are in memory.
PLAIN = "raw"
#: The default codec of large leaves.
DEFAULT = "zstd"
#: The levels that users may choose (``zstd:19``). A level is the encoder's matter: a folder does not depend on it.
LEVELS = {"zstd": range(1, 23)}


def choices() -> tuple[str, ...]:
    """Return the choices of users: ``auto`` and the names of all codecs."""
    return ("auto", *CODECS)


def resolve_choice(choice: str, *, plain: bool = False) -> str:
    """The codec of large leaves for a choice of ``choices()``, or one with a level; ``plain``: the layout requires plain rows.

    Raises UsageError for an unknown name, a level that the codec has not, and for a codec that the layout excludes.
    """
    name, colon, level = str(choice).partition(":")
    if name not in choices():
        message = f"codec is {', '.join(choices())} or zstd:LEVEL, not {choice!r}"
        raise UsageError(message, hint="such as --codec zstd:9")
    levels = LEVELS.get(name, range(0))
    if colon and not (level.isdecimal() and int(level) in levels):
        has = f"levels {levels[0]} to {levels[-1]}" if levels else "no levels"
        raise UsageError(f"codec {choice!r}: {name} has {has}", hint="for example zstd:9")
    if plain and name not in ("auto", PLAIN):
        message = f"layout ted is for readers without codecs: its frames are {PLAIN}"
        raise UsageError(message, hint=f"leave out --codec {choice}, or --layout ted")
    return PLAIN if plain else DEFAULT if name == "auto" else name


def level_of(choice: str) -> int | None:
    """Return the level of a choice like ``zstd:19``; None for the codec's own."""
    level = choice.partition(":")[2]
    return int(level) if level else None


@cache
def load_codec(name: str) -> type[Codec]:
    """Return the class of a codec by its name."""
    module, attribute = CODECS[name]
    found: type[Codec] = getattr(import_module(module, __name__), attribute)
    return found


def codec_of(leaf: Leaf) -> Codec:
    """Return the codec of a leaf, bound to it."""
    return load_codec(leaf.codec)(leaf)
