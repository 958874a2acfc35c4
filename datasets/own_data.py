"""Datasets from data that a program holds in memory: arrays, or a sequence of episodes."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .. import settings
from ..errors import DatasetExistsError, SchemaError, UsageError
from ..storage.folder import DatasetPlace
from ..storage.keywords import refuse_empty
from ..storage.leaf import check_key, is_observation
from ..storage.lock import when_free
from ..storage.schema import LARGE_ROW
from .catalogue import check_own
from .ingest.bar import progress_listener
from .ingest.pipeline import run
from .ingest.records import ConvertOptions
from .ingest.request import Listener, Request, extend, find_existing

if TYPE_CHECKING:
    from ..storage.manifest import Manifest
    from .sources.arrays.reader import ArraysReader
    from .sources.arrays.tables import Table

#: Short episodes are joined before their rows are inspected, up to this many bytes, episodes and seconds.
_TOGETHER_BYTES, _TOGETHER_EPISODES, _TOGETHER_SECONDS = 4 << 20, 512, 1.0


def from_arrays(
    arrays: Any,
    dataset_id: str,
    *,
    map: Mapping[str, str | Sequence[str] | float] | None = None,
    environment: str | None = None,
    root: str | os.PathLike[str] | None = None,
    codec: str = "auto",
    layout: Literal["auto", "ted"] = "auto",
    unknown_next: Literal["truncate", "zero"] = "truncate",
    force: bool = False,
    wait: bool = True,
    progress: bool | None = None,
    listener: Listener | None = None,
) -> Path:
    """Make the dataset ``dataset_id`` (``"my/x"``) of arrays in memory, or mapped; returns its folder, for `load`.

    ``arrays`` is a dictionary of NumPy arrays or tensors (nested ones are groups), a table of pandas, or a TensorDict. The
    names used by TED, Gymnasium, D4RL, d3rlpy, Spinning Up and diffusion policies are known. ``map`` maps rbdata's keys to
    other names: ``{"observation": "obs", "action": ["x", "y"], "done": "d"}``. The keys are ``observation, action, reward,
    terminated, truncated, done, next_observation``, the ends of episodes (``episode``, a number per row; ``episode_lengths``;
    ``episode_ends``), and any other key, which becomes a leaf.

    Arrays have a row per step; observations may have one more for each episode. A step has a true successor or is terminated:
    if the data do not hold the state after a step, the episode ends before that step (``unknown_next="zero"`` keeps the step).
    The notes of the dataset (``rbdata inspect``) say what was assumed, dropped and left out.

    ``environment`` is the Gymnasium id, for `Dataset.make_env`. Raises UsageError, with the names of the arrays, if arrays are
    missing, ambiguous or contradictory; CorruptSourceError for values that cannot be stored, with their row; DatasetExistsError
    unless ``force``.
    """
    from .sources.arrays.reader import TablesReader
    from .sources.arrays.tables import memory_table

    refuse_empty(root=root, environment=environment)
    table = memory_table(arrays)
    about = {"made_from": {"made_from": "arrays", "script": _script()}, "content": None, "environment": environment}
    options = ConvertOptions(codec, layout, unknown_next)
    request = Request(dataset_id, None if root is None else Path(root), options=options, force=force, wait=wait)
    return _make(partial(TablesReader, tables=[table], given=map or {}, **about), request, progress, listener)


def from_episodes(
    episodes: Iterable[Mapping[str, Any]] | Callable[[int], Iterable[Mapping[str, Any]]],
    dataset_id: str,
    *,
    identity: str | None = None,
    environment: str | None = None,
    root: str | os.PathLike[str] | None = None,
    codec: str = "auto",
    layout: Literal["auto", "ted"] = "auto",
    unknown_next: Literal["truncate", "zero"] = "truncate",
    append: bool = False,
    force: bool = False,
    wait: bool = True,
    progress: bool | None = None,
    listener: Listener | None = None,
) -> Path:
    """Make the dataset ``dataset_id`` of episodes, one after the other; returns its folder, for `load`.

    An episode of n steps is a dictionary: ``observation`` with n + 1 rows (or n, and perhaps ``next_observation``),
    ``action`` and ``reward`` with n rows, and how it ended: ``terminated`` and ``truncated``, each with one value or n values
    (``done`` alone counts as terminated); the other names that `from_arrays` knows are known here, too. Observations and
    actions may be dictionaries of arrays; other keys are leaves with n
    rows. All episodes have the same keys, dtypes and shapes of rows.

    ``episodes`` may be a generator: memory stays flat, however many there are, and frames are compressed as they arrive. If it
    raises, no dataset is made.

    An interrupted run is continued by the next one with the same ``identity``, a text that you choose for what makes the
    episodes. It checks that the first episode is the same, and skips those that are stored already; if ``episodes`` is a
    function, ``episodes(first)`` gives the episodes from number ``first`` on, and only the missing ones are made. The dataset
    has the bytes of an uninterrupted run. Without an ``identity`` a run starts over.

    With ``append`` the episodes come after those of the dataset that is there (without one it is made): they have the same
    keys, dtypes and shapes, and are stored in the same way. The old dataset is replaced when all is written, and stays as it
    is if the run fails or is killed; what has it open goes on reading it. ``source["appended"]`` of its manifest says what was
    added when, by which program. An ``identity`` is added once.

    Everything else is as in `from_arrays`. Raises what ``episodes`` raises, UsageError for episodes that do not fit each other
    or the dataset, DatasetExistsError for an ``identity`` that is in it, or if a run with other
    episodes is unfinished under this id, unless ``force``; DamagedDatasetError if it is damaged.
    """
    from .sources.arrays.reader import StreamReader

    refuse_empty(root=root, environment=environment, identity=identity)
    made_from = {"made_from": "episodes", "script": _script(), **({"identity": identity} if identity else {})}
    options = ConvertOptions(codec, layout, unknown_next)
    where = None if root is None else Path(root)
    request = Request(dataset_id, where, options=options, append=append, force=force, wait=wait)
    remaining = iter(_begun(episodes, 0))
    first = list(islice(remaining, 1))
    if not first:
        raise UsageError("there are no episodes")
    arrays = _arrays_of(first[0], 0)

    def begin(number: int) -> Iterator[Table]:
        rest = _begun(episodes, number) if callable(episodes) else islice(remaining, number - 1, None)
        return _tables(rest, number)

    about: dict[str, Any] = {"made_from": made_from, "content": None, "environment": environment}
    if identity is not None:
        about |= {"content": [identity, _digest(arrays)], "begin": begin}
    tables = _tables(chain(first, remaining))
    return _make(
        partial(StreamReader, tables=tables, given={key: key for key in arrays}, **about), request, progress, listener
    )


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 of an episode."""
    digest = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _begun(episodes: Any, first: int) -> Iterable[Mapping[str, Any]]:
    """The episodes from number ``first`` on."""
    if callable(episodes):
        try:
            inspect.signature(episodes).bind(first)
        except TypeError as error:
            message = f"episodes is called with one argument, the number of the first episode wanted: {error}"
            raise UsageError(message, hint="def episodes(first): ...; or give what the function returns") from error
        except ValueError:  # a callable written in C has no signature
            pass
    begun = episodes(first) if callable(episodes) else episodes
    if not isinstance(begun, Iterable):
        what = f"episodes({first}) returned" if callable(episodes) else "episodes are"
        raise UsageError(f"{what} a {type(begun).__name__}, not an iterable of episodes")
    return begun


def _make(
    reader_of: Callable[..., ArraysReader], request: Request, progress: bool | None, listener: Listener | None
) -> Path:
    """Make the dataset of ``reader_of(name=, options=)``."""
    check_own(request.id)
    place = DatasetPlace(settings.root(request.root), request.id)

    def refuse(existing: Manifest | None) -> None:
        """Nothing says that a dataset which is there, or which another process made meanwhile, has the same arrays."""
        if existing is not None:
            message = f"{place.id} is there already"
            raise DatasetExistsError(message, hint="choose another id, or replace it with force=True")

    refuse(find_existing(place, request))
    request = extend(place, request, ()) if request.append else request
    reader = reader_of(name=place.id, options=request.options)
    script = reader.describe()["script"]
    with progress_listener(place.id, listener, progress) as events:
        action = partial(run, reader, place, request, events, script, refuse)
        try:
            outcome = when_free(action, request.wait, events.on_note, events.on_stage)
        except DatasetExistsError as error:
            if not error.unfinished:
                raise
            message = f"an unfinished {place.id} exists, begun with other episodes or options, or another function"
            hint = f"continue with what it was begun with, or start over with force=True ({place.working})"
            raise DatasetExistsError(message, hint=hint, unfinished=True) from error
    return outcome.path


def _script() -> str:
    """The program that runs, for the lineage."""
    name = sys.argv[0] if sys.argv else ""
    return str(Path(name).resolve()) if name and Path(name).is_file() else "an interactive session"


# -- episodes as tables --------------------------------------------------------------------------------------------------


def _tables(episodes: Iterable[Mapping[str, Any]], first: int = 0) -> Iterator[Table]:
    """Episodes from number ``first`` on as tables with ``episode_lengths``; short episodes are joined."""
    from .sources.arrays.tables import Table

    together: list[dict[str, np.ndarray]] = []
    size, since = 0, time.monotonic()

    def table(number: int) -> Table:
        """The episodes before ``number`` that are held."""
        nonlocal size
        first = number - len(together)
        name = f"episode {first}" if len(together) == 1 else f"episodes {first} to {number - 1}"
        lengths = np.array([len(one["reward"]) for one in together])
        joined = {key: np.concatenate([one[key] for one in together]) for key in together[0]}
        together.clear()
        size = 0
        return Table(name, {**joined, "episode_lengths": lengths})

    number = first
    for number, episode in enumerate(episodes, first):
        arrays = {key: np.array(value) for key, value in _arrays_of(episode, number).items()}  # may be used again
        if together and _kind(arrays) != _kind(together[0]):
            message = f"episode {number} is unlike the ones before: {_shown(arrays)}; before {_shown(together[0])}"
            raise UsageError(message, hint="all episodes have the same keys, dtypes and shapes of rows")
        if together and _has_final_state(arrays) != _has_final_state(together[0]):
            yield table(number)
        together.append(arrays)
        size += sum(array.nbytes for array in arrays.values())
        # The frames that a dictionary is trained on must not depend on time.
        has_frames = any(array.nbytes >= LARGE_ROW * len(array) for array in arrays.values())
        is_late = time.monotonic() - since > _TOGETHER_SECONDS and not has_frames
        # The first episode alone: a continued run inspects it again, and no other episode.
        is_late |= number == 0
        if size >= _TOGETHER_BYTES or len(together) >= _TOGETHER_EPISODES or is_late:
            yield table(number + 1)
            since = time.monotonic()
    if together:
        yield table(number + 1)


def _has_final_state(arrays: Mapping[str, np.ndarray]) -> bool:
    return any(len(array) > len(arrays["reward"]) for array in arrays.values())


def _arrays_of(episode: Any, number: int) -> dict[str, np.ndarray]:
    """The arrays of an episode, with a flag per step. Raises UsageError for other values, and for missing keys."""
    from .sources.arrays.roles import check_flags, rename_roles
    from .sources.arrays.tables import flat_arrays, memory_table

    if not hasattr(episode, "items"):
        raise UsageError(f"episode {number} is a {type(episode).__name__}, not a dictionary of arrays")
    pairs = list(flat_arrays(episode))
    if len(dict(pairs)) < len(pairs):
        raise UsageError(f"episode {number}: two arrays have one name", hint=f"{', '.join(key for key, _ in pairs)}")
    arrays = rename_roles(dict(pairs), f"episode {number}")
    ends = [key for key in ("episode", "episode_lengths", "episode_ends") if key in arrays]
    if ends:
        message = f"episode {number}: its key {ends[0]} would say where episodes end, and each dictionary is one"
        raise UsageError(message, hint="give it another name; dataset.episodes has the numbers of episodes")
    there = {*arrays, *(key.partition("/")[0] for key in arrays if not key.startswith("reward/"))}
    missing = [key for key in ("observation", "action", "reward") if key not in there]
    if missing:
        message = f"episode {number} has no {', '.join(missing)}"
        raise UsageError(message, hint=f"its keys are {', '.join(map(str, arrays)) or 'none'}")
    if not np.ndim(arrays["reward"]):
        raise UsageError(f"episode {number}: reward has one value", hint="a reward per step: a number for each action")
    length = len(arrays["reward"])
    if not length:
        raise UsageError(f"episode {number} has no step", hint="leave it out")
    if not {"terminated", "truncated", "done"} & set(arrays):
        check_flags(arrays, f"episode {number}")
    _spread_flags(arrays, number, length)
    table = memory_table(arrays, f"episode {number}")
    if table.unreadable:
        key, why = next(iter(table.unreadable.items()))
        raise UsageError(f"episode {number}: {key} cannot be stored: {why}")
    for key, array in table.values.items():
        try:
            check_key(key)
        except SchemaError as error:
            raise UsageError(f"episode {number}: {error.message}") from error
        if not array.ndim or len(array) - length not in (0, is_observation(key)):
            rows = f"{len(array)} rows" if array.ndim else "one value"
            message = f"episode {number}: {key} has {rows}, and the episode {length} steps"
            hint = "a row per step; observations may have one more, and flags may be one value"
            raise UsageError(message, hint=hint)
    return table.values


def _spread_flags(arrays: dict[str, Any], number: int, length: int) -> None:
    """Make the flags of an episode bool ``[length]``: a single value is that of the last step. Raises UsageError."""
    from .ingest.spaces import LossyCastError, as_array, cast

    for key in arrays:
        if key.startswith(("terminated/", "truncated/", "done/")):
            raise UsageError(f"episode {number}: {key.partition('/')[0]} is a dictionary, not true or false")
    # ``done`` alone is taken as terminated, as in `from_arrays`.
    needed = () if "done" in arrays else ("terminated", "truncated")
    for name in [name for name in ("terminated", "truncated", "done") if name in arrays or name in needed]:
        if np.ma.is_masked(arrays.get(name)):
            raise UsageError(f"episode {number}: {name} has masked elements", hint="fill them")
        try:
            value = cast(as_array(arrays.get(name, False)), bool)
        except LossyCastError as error:
            raise UsageError(f"episode {number}: {name} is {error.value}, not true or false") from error
        if value.shape == (length, 1):
            value = value.reshape(length)
        elif value.size == 1 and value.shape != (length,):  # it is the last step's
            value = np.append(np.zeros(length - 1, value.dtype), value)
        arrays[name] = value


def _kind(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {key: (array.dtype, array.shape[1:]) for key, array in arrays.items()}


def _shown(arrays: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{key} {array.dtype} {list(array.shape)}" for key, array in arrays.items())
