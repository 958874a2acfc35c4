"""Which blocks of a cached dataset are there: one small file, mapped by all processes that share the cache.

    header   4096 bytes: one JSON object, zeros, and in the last byte 1 when the dataset is finished
    states   one byte a block: ABSENT, RESIDENT, or UNPROVEN
    sums     uint32 a block: crc32c of what was stored

A byte is written by one store, so a reader sees one state or the other. Data and states survive the end of any process,
since the system has them; after a crash of the machine either may be lost. Blocks stored before the machine was last started
are therefore UNPROVEN: they are compared with their sums before they are used.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CacheError
from ..durable import open_plain, write_atomically

ABSENT, RESIDENT, UNPROVEN = 0, 1, 2
FILENAME = ".rbdata-blocks"
FORMAT, VERSION = "rbdata block cache", 1
HEADER = 4096

_DELETE = "delete the folder, or choose another one with cache_dir"


class BlockStates:
    """The mapped file: ``states`` uint8 ``[blocks]`` and ``sums`` uint32 ``[blocks]``, shared and writable."""

    def __init__(self, path: Path, blocks: int) -> None:
        with open_plain(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _size(blocks))
        whole = np.frombuffer(self._map, np.uint8)
        self.states = whole[HEADER : HEADER + blocks]
        self.sums = whole[_sums_at(blocks) :].view(np.uint32)[:blocks]
        self._finished = whole[HEADER - 1 : HEADER]

    @property
    def finished(self) -> bool:
        """Whether every block is there and checked, for good."""
        return bool(self._finished[0])

    @finished.setter
    def finished(self, value: bool) -> None:
        self._finished[0] = value


def create(path: Path, blocks: int, facts: dict[str, Any]) -> None:
    """Write the file of a cache in which nothing is there yet; atomic."""
    header = json.dumps({"format": FORMAT, "version": VERSION, "blocks": blocks, **facts}).encode()
    assert len(header) < HEADER
    # No hole: on a full disk writing to a map of one ends the process.
    write_atomically(path, header.ljust(_size(blocks), b"\0"))


def read_facts(path: Path) -> dict[str, Any] | None:
    """The facts that `create` wrote; None where there is no file, or what a crash left of one.

    Raises CacheError for the file of another version of rbdata.
    """
    try:
        with open_plain(path, "rb") as file:
            facts = json.loads(file.read(HEADER - 1).rstrip(b"\0"))
            if not isinstance(facts, dict) or facts.get("format") != FORMAT:
                return None
            if facts.get("version") != VERSION:
                message = f"{path.parent} is a cache of version {facts.get('version')}, this rbdata reads {VERSION}"
                raise CacheError(message, hint=_DELETE)
            whole = os.fstat(file.fileno()).st_size == _size(int(facts["blocks"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return facts if whole else None


def _sums_at(blocks: int) -> int:
    return HEADER + -(-blocks // 8) * 8


def _size(blocks: int) -> int:
    return _sums_at(blocks) + 4 * blocks
