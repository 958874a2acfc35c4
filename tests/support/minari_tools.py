"""Minari datasets written by Minari's own storages, and read by its own reader, for comparison.

with_root(monkeypatch, folder)                    # MINARI_DATASETS_PATH
write(name, observation_space, action_space, lengths, data_format="arrow", infos=...)
compare(dataset, name)                            # every value, against minari.load_dataset
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from paths import DATA
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify
from text_rows import text_of

FIXTURES = DATA / "minari"


def minari() -> Any:
    """The package, or the test is skipped: 0.5.4 takes episodes as they are given here, and needs Python 3.11."""
    return pytest.importorskip("minari", minversion="0.5.4")


def with_root(monkeypatch: Any, folder: Path) -> Path:
    """A Minari root of the test's own."""
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    return folder


def draw(space: spaces.Space, count: int) -> Any:
    """Random values of a space, stacked as Minari keeps them in its buffers."""
    if isinstance(space, spaces.Dict):
        return {key: draw(inner, count) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(draw(inner, count) for inner in space.spaces)
    if isinstance(space, spaces.Text):
        return [space.sample() for _ in range(count)]
    several = batch_space(space, count)
    several.seed(int(space.np_random.integers(1 << 31)))
    return several.sample()


def buffers(
    observation: spaces.Space,
    action: spaces.Space,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    infos: Callable[[int, int], Any] | None = None,
    ends: Callable[[int], tuple[bool, bool]] = lambda number: (number % 2 == 0, number % 2 == 1),
) -> list[Any]:
    """Episodes of random values; ``infos(number, n)`` gives what belongs to episode ``number`` of n steps, ``ends(number)``
    whether it is terminated and truncated: at its last step, or ``[2, k]`` for the last k."""
    observation.seed(seed)
    action.seed(seed + 1)
    rng = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(lengths):
        flags = np.zeros((2, length), bool)
        last = np.array(ends(number)).reshape(2, -1)
        flags[:, length - last.shape[1] :] = last
        made.append(
            minari().data_collector.EpisodeBuffer(
                id=number,
                seed=number,
                observations=draw(observation, length + 1),
                actions=draw(action, length),
                rewards=rng.standard_normal(length).tolist(),
                terminations=flags[0].tolist(),
                truncations=flags[1].tolist(),
                infos=infos(number, length) if infos else {},
            )
        )
    return made


def write(
    name: str,
    observation: spaces.Space,
    action: spaces.Space,
    lengths: Sequence[int],
    *,
    data_format: str = "hdf5",
    **more: Any,
) -> list[Any]:
    """Write a dataset into Minari's root; returns what went in."""
    jpeg = more.pop("jpeg_encoding", True)
    about = {
        key: more.pop(key) for key in list(more) if key in ("ref_min_score", "ref_max_score", "env", "description")
    }
    made = buffers(observation, action, lengths, **more)
    minari().create_dataset_from_buffers(
        name,
        made,
        observation_space=observation,
        action_space=action,
        data_format=data_format,
        jpeg_encoding=jpeg,
        author="tests",
        author_email="tests@example.org",
        algorithm_name="random",
        code_permalink="https://example.org",
        **about,
    )
    return made


def play(env: Any, episodes: int, *, infos: bool = False, seed: int = 0) -> list[Any]:
    """Episodes of random play, stepped here and stacked as Minari keeps them."""
    env.action_space.seed(seed)
    made = []
    for number in range(episodes):
        observation, info = env.reset(seed=seed + number)
        states, told = [observation], [info]
        steps: list[tuple[Any, float, bool, bool]] = []
        while not steps or not (steps[-1][2] or steps[-1][3]):
            action = env.action_space.sample()
            observation, reward, terminated, truncated, info = env.step(action)
            states.append(observation)
            told.append(info)
            steps.append((action, float(reward), bool(terminated), bool(truncated)))
        actions, rewards, terminations, truncations = map(list, zip(*steps))
        made.append(
            minari().data_collector.EpisodeBuffer(
                id=number,
                seed=seed + number,
                observations=stacked(states),
                actions=stacked(actions),
                rewards=rewards,
                terminations=terminations,
                truncations=truncations,
                infos=stacked(told) if infos else {},
            )
        )
    return made


def stacked(values: Sequence[Any]) -> Any:
    """Values of a space one below the other: arrays, or dicts and tuples of such; texts stay a list."""
    first = values[0]
    if isinstance(first, dict):
        return {key: stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked(parts) for parts in zip(*values))
    return list(values) if isinstance(first, str) else np.stack(values)


def save(name: str, made: Sequence[Any], env: Any, data_format: str = "hdf5") -> None:
    """Write played episodes with Minari's own storages."""
    minari().create_dataset_from_buffers(
        name,
        list(made),
        env=env,
        observation_space=env.observation_space,
        action_space=env.action_space,
        data_format=data_format,
        author="tests",
        author_email="tests@example.org",
        code_permalink="https://example.org",
        algorithm_name="random",
    )


def convert(root: Path, name: str, *, mirror: str | None = None, force: bool = False, **options: Any) -> Dataset:
    """Get a dataset, and check all that must hold in it."""
    outcome = download(
        Request(f"minari/{name}", root=root, mirror=mirror, options=ConvertOptions(**options), force=force, procs=0)
    )
    report = verify(outcome.path)
    assert report.ok, report.problems
    return Dataset(outcome.path)


def truth(name: str) -> list[Any]:
    """All episodes by Minari's own reader."""
    return list(minari().load_dataset(name).iterate_episodes())


def compare(dataset: Dataset, episodes: Sequence[Any], *, text: bool = True) -> None:
    """Every observation, action, reward and flag of a dataset against episodes as Minari gives them."""
    assert len(dataset.episodes) == len(episodes)
    assert len(dataset) == sum(len(episode.rewards) for episode in episodes)
    for number, episode in enumerate(episodes):
        rows = dataset.episode(number)
        steps = len(episode.rewards)
        observations = flatten(episode.observations, "observation")
        assert observations
        for key, values in observations.items():
            if text or not isinstance(values[0], str):
                path = tuple(key.split("/"))
                after = ("next", *path)
                same(rows[path], values[:-1], f"{key} of episode {number}")
                same(rows[after], values[1:], f"next {key} of episode {number}")
        for key, values in flatten(episode.actions, "action").items():
            if text or not isinstance(values[0], str):
                same(rows[tuple(key.split("/"))], values, f"{key} of episode {number}")
        assert np.array_equal(rows["next", "reward"].numpy()[:, 0], np.asarray(episode.rewards, np.float32))
        terminated, truncated = np.array(episode.terminations, bool), np.array(episode.truncations, bool)
        truncated[-1] |= not terminated[-1]
        assert np.array_equal(rows["next", "terminated"].numpy()[:, 0], terminated)
        assert np.array_equal(rows["next", "truncated"].numpy()[:, 0], truncated)
        assert int(dataset.episodes.lengths[number]) == steps


def flatten(values: Any, key: str) -> dict[str, Any]:
    """Nested values by their TED key."""
    if isinstance(values, dict):
        return {name: one for part, inner in values.items() for name, one in flatten(inner, f"{key}/{part}").items()}
    if isinstance(values, tuple):
        return {name: one for part, inner in enumerate(values) for name, one in flatten(inner, f"{key}/{part}").items()}
    return {key: values}


def same(found: Any, expected: Any, what: str) -> None:
    rows = found.numpy()
    if len(expected) and isinstance(expected[0], str):
        assert [text_of(row) for row in rows] == list(expected), what
        return
    values = np.asarray(expected)
    assert rows.dtype == values.dtype or values.dtype.name in ("uint16", "uint32"), (what, rows.dtype, values.dtype)
    assert np.array_equal(rows.reshape(values.shape), values), what
