"""ExORL's archives: a zip of episodes, each a compressed npz in dm_env order.

``buffer/episode_NNNNNN_LENGTH.npz`` (beside videos) holds ``observation`` [T + 1, n], ``action`` [T + 1, m], ``reward`` and
``discount`` [T + 1, 1], ``physics`` [T + 1, p], and what the algorithm adds (``skill``, ``task``, ``z``). Row 0 is a dummy:
action and reward of row t led to the observation of row t. (denisyarats/exorl, replay_buffer.py)
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....errors import CorruptSourceError
from ...formats.limits import most_unpacked
from ...ingest.episode_files import Episode, EpisodeReader, RawInput

_EPISODE = re.compile(r"(?:.*/)?episode_(\d+)_\d+\.npz")
_NEEDED = ("observation", "action", "reward", "discount")


@dataclass(frozen=True)
class ExorlReader(EpisodeReader):
    """Reads one zip, its episodes by their number."""

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        assert raw.path is not None
        try:
            with zipfile.ZipFile(raw.path) as archive:
                numbered = ((_EPISODE.fullmatch(entry.filename), entry) for entry in archive.infolist())
                found = sorted((int(match[1]), entry) for match, entry in numbered if match)
                for _, entry in found:
                    where = f"{raw.name}: {entry.filename}"
                    if entry.file_size > most_unpacked(entry.compress_size):
                        raise CorruptSourceError(f"{where} states {entry.file_size} bytes")
                    yield _episode(_arrays(archive.read(entry), where), where)
        except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
            raise CorruptSourceError(f"{raw.name} is no sound zip: {error}") from error


def _arrays(data: bytes, where: str) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return dict(archive)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise CorruptSourceError(f"{where} cannot be read: {error}") from error


def _episode(arrays: dict[str, np.ndarray], where: str) -> Episode:
    missing = [key for key in _NEEDED if key not in arrays]
    if missing:
        raise CorruptSourceError(f"{where} has no {', '.join(missing)}")
    rows = len(arrays["observation"])
    for key, values in arrays.items():
        if values.ndim == 0 or len(values) != rows:
            raise CorruptSourceError(f"{where}: {key} has the shape {list(values.shape)}, not {rows} rows")
    others = {key: values for key, values in arrays.items() if key not in _NEEDED}
    terminated = rows > 1 and float(arrays["discount"][-1].reshape(-1)[0]) == 0
    return Episode(
        states={
            "observation": arrays["observation"],
            **({"info/physics": others.pop("physics")} if "physics" in others else {}),
        },
        steps={
            "action": arrays["action"][1:],
            "info/discount": arrays["discount"][1:, 0],
            **{f"info/{key}": values[1:] for key, values in others.items()},
        },
        rewards=arrays["reward"][1:].reshape(rows - 1, -1)[:, 0],
        terminated=terminated,
        truncated=not terminated,
    )
