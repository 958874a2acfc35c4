"""A leaf: one tensor of a dataset, named by its TED key.

Keys are limited to what every tensordict version reads without renaming files: letters, digits and underscore.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..errors import SchemaError

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["step", "state"]

#: numpy dtypes a leaf may have; all little-endian on disk. bfloat16 has no numpy dtype and is not among them.
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")

#: Top-level names that leaves must not have: those of the folder's own files, and of what reading adds to a batch.
RESERVED = frozenset({"episodes", "index", "mask"})

#: Names that no level of a key may have: tensordict's ``meta.json`` has entries of these names besides the leaves.
RESERVED_EVERYWHERE = frozenset({"shape", "device", "_type"})

#: Limit in characters of a key with all its levels: files of unfinished parts add up to 50 characters.
LONGEST_KEY = 200

_KEY_PART = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class Leaf:
    """One tensor of the dataset.

    ``shape`` is that of one row. ``codec`` names how its rows are stored (`storage.codecs`; `Schema` checks it).
    ``constant`` is set if every row holds this one value (the root flags of TED are all false). The file still exists for
    other readers; this package does not read it.
    """

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    codec: str = "raw"
    constant: bool | int | float | None = None

    def __post_init__(self) -> None:
        check_key(self.name)
        if self.kind not in ("step", "state"):
            raise SchemaError(f"leaf {self.name}: kind {self.kind!r} is neither 'step' nor 'state'")
        if self.dtype not in DTYPES:
            raise SchemaError(f"leaf {self.name}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if min(self.shape, default=1) < 1:
            raise SchemaError(f"leaf {self.name}: shape {self.shape} has an empty dimension")
        if self.kind == "state" and self.key[0] == "next":
            raise SchemaError(f"leaf {self.name}: a state leaf is named by its root key, it gives next/ as well")
        if self.constant is not None and not _is_value(self.constant, self.dtype):
            raise SchemaError(f"leaf {self.name}: constant {self.constant!r} is not a value of {self.dtype}")

    @property
    def key(self) -> tuple[str, ...]:
        """The key as a tuple, for tensordict."""
        return tuple(self.name.split("/"))

    @property
    def names(self) -> tuple[str, ...]:
        """The TED keys, as paths: a state leaf has that of the successor too."""
        return (self.name, f"next/{self.name}") if self.kind == "state" else (self.name,)

    @property
    def memmap(self) -> str:
        """The file of the leaf's plain rows, relative to the folder, with tensordict's name for it."""
        return self.name + ".memmap"

    @cached_property
    def np_dtype(self) -> np.dtype:
        """The dtype on disk (little-endian)."""
        import numpy as np  # here: lists of datasets are shown without it

        return np.dtype(self.dtype).newbyteorder("<")

    @cached_property
    def row_bytes(self) -> int:
        """Size of one decoded row in bytes."""
        return prod(self.shape) * self.np_dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's form."""
        record = {**asdict(self), "shape": list(self.shape)}
        if self.constant is None:
            del record["constant"]
        return record

    @classmethod
    def from_json(cls, record: Any) -> Leaf:
        """Raises SchemaError on anything that ``to_json`` does not write."""
        try:
            return msgspec.convert(record, cls)
        except msgspec.ValidationError as error:
            raise SchemaError(f"a leaf is malformed: {error}") from error


def _is_value(number: object, dtype: str) -> bool:
    """Whether a number can be stored as a dtype; without NumPy."""
    if not isinstance(number, (int, float)):
        return False
    if dtype.startswith("float"):
        return isinstance(number, float) or abs(number) < 1 << 1023
    bits = int("".join(filter(str.isdigit, dtype)) or 1)
    low, high = (0, 1 << bits) if dtype.startswith(("u", "b")) else (-(1 << bits - 1), 1 << bits - 1)
    return isinstance(number, int) and low <= number < high


def is_observation(name: str) -> bool:
    """Return whether a key is ``observation`` or lies below it."""
    return name.partition("/")[0] == "observation"


@lru_cache(maxsize=1024)
def check_key(name: str) -> None:
    """Raise SchemaError for keys that some tensordict version would rename, and for reserved names."""
    parts = name.split("/")
    if not all(_KEY_PART.fullmatch(part) for part in parts):
        message = f"key {name!r} is not made of letters, digits and underscores"
        raise SchemaError(message, hint="rename it, or use rbdata.storage.schema.clean_keys to map names")
    if len(name) > LONGEST_KEY:
        message = f"key {name[:40]!r}... has {len(name)} characters: files are named after keys"
        raise SchemaError(message, hint=f"at most {LONGEST_KEY} characters, all levels together")
    if parts[0] in RESERVED or not RESERVED_EVERYWHERE.isdisjoint(parts):
        raise SchemaError(f"key {name!r} is reserved for the dataset folder itself")
