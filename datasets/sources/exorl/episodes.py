"""ExORL's archives: a zip of episodes, each a compressed npz in dm_env order.

``buffer/episode_NNNNNN_LENGTH.npz`` (beside videos) holds ``observation`` [T + 1, n], ``action`` [T + 1, m], ``reward`` and
``discount`` [T + 1, 1], ``physics`` [T + 1, p], and what the algorithm adds (``skill``, ``task``, ``z``). Row 0 is a dummy:
action and reward of row t led to the observation of row t. (denisyarats/exorl, replay_buffer.py)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ....errors import CorruptSourceError
from ...formats.npz import NpzArchive
from ...formats.zip_archive import ZipArchive
from ...ingest.episode_files import Episode, EpisodeReader, RawInput
from ..dm_env_order import SENTENCES as DM_ENV_SENTENCES
from ..dm_env_order import check_keys, check_lengths, dm_env_episode, vector_rows
from .rewards import column_names, task_rewards

_EPISODE = re.compile(r"(?:.*/)?episode_(\d{1,18})_\d+\.npz")
_NEEDED = ("observation", "action", "reward", "discount")

SENTENCES = {
    **DM_ENV_SENTENCES,
    "reward_columns": "The data have {n} rewards a step, for as many tasks: info/reward has all of them.",
    "recomputed_rewards": "{n} rewards are recomputed from info/physics: they are those of the task that was asked for.",
}


@dataclass(frozen=True)
class ExorlReader(EpisodeReader):
    """Reads one zip, its episodes by their number. ``task`` (None: as stored) is that of the rewards, see `rewards.TASKS`."""

    domain: str | None = None
    task: str | None = None

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        assert raw.path is not None
        with ZipArchive(raw.path, raw.name) as archive:
            numbered = [(int(match[1]), name) for name in archive.members if (match := _EPISODE.fullmatch(name))]
            if not numbered:
                message = f"{raw.name} holds no episodes: files called episode_<number>_<length>.npz"
                raise CorruptSourceError(message, hint=f"it holds {', '.join(list(archive.members)[:12]) or 'nothing'}")
            for _, name in sorted(numbered):
                with NpzArchive(archive.read(name), f"{raw.name}: {name}") as episode:
                    yield self._episode(episode, raw)

    def _episode(self, archive: NpzArchive, raw: RawInput) -> Episode:
        check_keys([key for key in _NEEDED if key not in archive.keys], archive.name, archive.keys)
        arrays = {key: archive.array(key) for key in archive.keys}
        rows = len(arrays["observation"]) if arrays["observation"].ndim else 0
        check_lengths(arrays, rows, archive.name)
        observation, action, discount = (arrays.pop(key) for key in ("observation", "action", "discount"))
        columns = arrays.pop("reward").reshape(rows, -1)
        if discount.size != rows:
            raise CorruptSourceError(
                f"{archive.name}: discount has the shape {list(discount.shape)}, not one number a row"
            )
        physics = arrays.pop("physics", None)
        names = column_names(self.domain, columns.shape[1])
        if self.task in names:
            rewards = columns[:, names.index(self.task)]
        elif self.task is not None:
            rewards = task_rewards(self.task, physics, action, archive.name)
            raw.counts["recomputed_rewards"] += rows - 1
        else:
            rewards = columns[:, 0]
        raw.counts["reward_columns"] = len(names)
        return dm_env_episode(
            {
                "observation": vector_rows(observation),
                **({} if physics is None else {"info/physics": vector_rows(physics)}),
            },
            {
                "action": action,
                "info/discount": discount.reshape(rows),
                **{f"info/reward/{name}": columns[:, number] for number, name in enumerate(names)},
                **{f"info/{key}": values for key, values in sorted(arrays.items())},
            },
            rewards,
            raw.counts,
            discount=discount.reshape(rows),
        )
