"""Data from workers for the process that distributes the work: records for the journal, small files of arrays."""

from __future__ import annotations

import base64
import io
import os
import uuid
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ResultError
from ..storage.durable import open_plain, write_atomically
from ..storage.parts import PARTS
from .layout import Shapes


@dataclass(frozen=True)
class ProbeResult:
    """The result of the functions for the first steps.

    - ``before``, ``after``: dtypes and shapes of the leaves.
    - ``unchained``: observations whose successor is not the observation of the following step, with the first such row.
    - ``changed``: leaves whose values or types differ from the input; None where rows cannot be compared.
    - ``passthrough``: compressed leaves that no function changed.
    - ``dropped``: number of dropped episodes; ``nans``: NaN values by leaf that the input does not have; ``step_seconds``: the
      time of one step.
    """

    before: Shapes
    after: Shapes
    unchained: dict[str, int]
    changed: list[str] | None
    passthrough: list[str]
    steps_in: int
    steps_out: int
    dropped: int
    nans: dict[str, int]
    step_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The record for the journal. Its keys must stay, because a later version may continue the run."""
        return dict(zip(_PROBE_KEYS, vars(self).values()))

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ProbeResult:
        before, after, *values = (record[key] for key in _PROBE_KEYS)
        return cls(_shapes_from_json(before), _shapes_from_json(after), *values)


def _shapes_from_json(record: Mapping[str, Any]) -> Shapes:
    return {path: (dtype, tuple(shape)) for path, (dtype, shape) in record.items()}


#: The keys of `ProbeResult` in the journal, in the order of its fields.
_PROBE_KEYS = (
    *("input", "shapes", "broken", "changed", "untouched", "steps_in", "steps", "dropped", "nans", "step_seconds"),
)


def unchained_error(functions: Sequence[str], name: str, where: str) -> ResultError:
    """The error for a state leaf whose successor is not the observation of the following step; any of the functions may have
    made it so."""
    message = (
        f"{', '.join(functions)} made 'next/{name}' other than {name!r} of the step that follows, {where}; "
        "in the first result they were equal, so that each is stored once"
    )
    return ResultError(message, hint="if that is intended, store both: --layout ted --force")


def nothing_left_error(functions: Sequence[str], dataset_id: str) -> ResultError:
    """The error if no episode is left; any function of the chain may have dropped them."""
    message = f"{', '.join(functions)} dropped every episode of {dataset_id}: nothing is left"
    return ResultError(message, hint="a dataset has at least one step")


#: Bits of ``lost_edges``, a number for each episode of the view: one function split the episode, and a later function dropped
#: the first piece, or the last.
FIRST, LAST = 1, 2


def pack_counts(counts: np.ndarray) -> str:
    """Whole numbers below 2^31 as compressed text."""
    return base64.b64encode(zlib.compress(counts.astype("<i4").tobytes(), 9)).decode()


def unpack_counts(text: str) -> np.ndarray:
    """The inverse of `pack_counts`, int64."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i4").astype(np.int64)


#: Number of rows of results from each sampled chunk.
ROWS_PER_SAMPLE = 128


def sample_path(folder: Path, name: str, chunk: int) -> Path:
    """The file of sampled rows of a leaf, from one chunk."""
    return folder / PARTS / f"sample.{name.replace('/', '.')}.{chunk}.npz"


def collected_path(folder: Path, number: int, chunk: int) -> Path:
    """The file of partial statistics for function ``number``, from one chunk."""
    return folder / PARTS / f"fit.{number}.{chunk}.npz"


def save_arrays(path: Path, arrays: dict[str, np.ndarray], note: str = "") -> None:
    """Write arrays and a text to a file, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    # Names of leaves may contain slashes, which a zip archive takes for folders, or equal arguments of savez.
    content: dict[str, Any] = {f"_{number}": array for number, array in enumerate(arrays.values())}
    np.savez(buffer, names=np.array(list(arrays), dtype=str), of=np.array(path.name), note=np.array(note), **content)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{uuid.uuid4().hex}")
    write_atomically(temporary, buffer.getvalue())
    temporary.replace(path)


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """What `save_arrays` wrote. Raises ResultError where the file is missing or was changed (zip archives have checksums)."""
    try:
        with open_plain(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            if str(archive["of"]) != path.name:
                raise ValueError("it belongs elsewhere")
            arrays = {str(name): archive[f"_{number}"] for number, name in enumerate(archive["names"])}
            return arrays, str(archive["note"])
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        hint = "run the command again: it makes the file once more"
        raise ResultError(f"{path} was changed: {error}", hint=hint) from error
