"""The dictionaries of a dataset that is being made: each codec that uses one has it, before its first row is compressed.

They lie where the dataset has them; ``.parts/dictionary.json`` says what they come from. Parts that were compressed with others
are of no use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.checksums import crc32c
from ...storage.codecs import codec_of
from ...storage.durable import write_atomically
from ...storage.leaf import Leaf
from ...storage.work import PARTS, read_sealed, write_sealed

_MARK = "dictionary.json"


def trained_leaves(leaves: Sequence[Leaf]) -> list[Leaf]:
    """Those whose codecs use a dictionary."""
    return [leaf for leaf in leaves if codec_of(leaf).uses_dictionary]


def dictionary_path(folder: Path, leaf: Leaf) -> Path:
    """The file of a leaf's dictionary."""
    return folder / codec_of(leaf).path("dictionary")


def store_dictionaries(
    folder: Path, leaves: Mapping[str, Leaf], samples: Sequence[np.ndarray] | Mapping[str, bytes], identity: str
) -> None:
    """Store the dictionaries of leaves: given, or trained on rows. ``identity``: what they come from."""
    made: dict[str, Any] = {}
    trained: dict[type, bytes] = {}
    for name, leaf in leaves.items():
        codec = codec_of(leaf)
        if isinstance(samples, Mapping):
            data = samples[name]
        else:
            data = trained[type(codec)] = trained.get(type(codec)) or codec.train(samples)
        path = dictionary_path(folder, leaf)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
        made[name] = crc32c(data)
    (folder / PARTS).mkdir(exist_ok=True)
    stated = {"identity": identity, "crc32c": made, "leaves": [leaf.to_json() for leaf in leaves.values()]}
    write_sealed(folder / PARTS / _MARK, stated)


def dictionary_mark(folder: Path) -> Any:
    """What `store_dictionaries` recorded; None before that."""
    return read_sealed(folder / PARTS / _MARK)


def has_dictionaries(folder: Path, leaves: Sequence[Leaf], identity: str) -> bool:
    """Whether the dictionaries of these leaves are there, unchanged, and come from ``identity``."""
    mark = dictionary_mark(folder)
    if mark is None or mark["identity"] != identity:
        return False
    try:
        return all(crc32c(dictionary_path(folder, leaf).read_bytes()) == mark["crc32c"][leaf.name] for leaf in leaves)
    except (OSError, LookupError):
        return False
