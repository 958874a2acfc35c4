"""What workers write down for the one who started them: small things that go into the journal, and small files of arrays."""

from __future__ import annotations

import base64
import io
import os
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ResultError
from ..storage.folder import PARTS
from ..storage.manifest import write_atomically


def not_chained(function: str, name: str, where: str) -> ResultError:
    """A state leaf whose successor turned out not to be what follows."""
    message = (
        f"{function} made 'next/{name}' other than {name!r} of the step that follows, {where}; "
        "in the first result they were the same, so each is stored once"
    )
    return ResultError(message, hint="if that is meant, store both: --layout ted --force")


def packed(counts: np.ndarray) -> str:
    """Small whole numbers as short text: most of them are 1."""
    return base64.b64encode(zlib.compress(counts.astype("<i4").tobytes(), 9)).decode()


def unpacked(text: str) -> np.ndarray:
    """What ``packed`` packed, int64."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i4").astype(np.int64)


def sample_path(folder: Path, name: str, chunk: int) -> Path:
    """Where a chunk's sampled rows of a leaf lie until they made a dictionary."""
    return folder / PARTS / f"sample.{name.replace('/', '.')}.{chunk}.npz"


def collected_path(folder: Path, number: int, chunk: int) -> Path:
    """Where lies what a first pass for function ``number`` collected of a chunk."""
    return folder / PARTS / f"fit.{number}.{chunk}.npz"


def collected(folder: Path) -> bool:
    """Whether a first pass has collected anything yet."""
    return any((folder / PARTS).glob("fit.*.npz"))


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays so that the file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    # Names of leaves hold slashes, which a zip archive would make folders of, and may be those of savez's own arguments.
    content: dict[str, Any] = {f"_{number}": array for number, array in enumerate(arrays.values())}
    np.savez(buffer, names=np.array(list(arrays), dtype=str), **content)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{uuid.uuid4().hex}")
    write_atomically(temporary, buffer.getvalue())
    temporary.replace(path)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """What ``save_arrays`` saved."""
    with np.load(path, allow_pickle=False) as archive:
        return {str(name): archive[f"_{number}"] for number, name in enumerate(archive["names"])}
