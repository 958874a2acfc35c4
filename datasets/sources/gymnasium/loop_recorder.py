"""Record an ordinary loop of reset and step into a dataset.

    with rbdata.Recorder(gymnasium.make("CartPole-v1"), name="mine") as env:
        observation, _ = env.reset(seed=0)
        for _ in range(1000):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()

Every episode that ends is in a log at once (`loop_job.EpisodeLog`); closing makes the dataset of it.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, overload
from weakref import finalize

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate
from typing_extensions import TypedDict, Unpack

from .... import settings
from ....errors import (
    DatasetBusyError,
    DatasetExistsError,
    RbdataError,
    UnfinishedDatasetError,
    UsageError,
    is_interrupt,
    reason,
)
from ....storage.folder import JOURNAL, DatasetPlace, make_writable
from ....storage.journal import Journal
from ....storage.keywords import with_options
from ....storage.writer import DatasetWriter, fingerprint
from ...ingest.job import ConvertOptions
from ...ingest.recording import END_CUT, END_TRUNCATED
from ...ingest.request import Listener, Request
from ...ingest.run import run
from .environments import PYTHON, changes_of_environment, describe_environment
from .loop_job import LOG, EpisodeLog, LoopJob, Piece
from .policy import check_action, seeded
from .recording import LeafRows, first_observation, to_end, to_reward
from .source import check_name, join_name

_OVERWRITTEN = 'put a copy into infos["final_obs"], or use another autoreset mode than same-step'
_NOT_RECORDED = "this action cannot be recorded:"
#: After how many steps an environment is reset, to see whether the reset changes what the last step returned.
_TRIED_STEPS = (1, 3, 10)
#: The locks of the recorders that are open, with the process that opened them.
_open: dict[str, int] = {}
#: Bytes of rows of an episode that are kept in memory.
_PIECE_BYTES = 16 << 20


class RecorderOptions(TypedDict, total=False):
    """The keyword arguments of `Recorder`, of one environment and of several."""

    name: str | None
    root: str | os.PathLike[str] | None
    text: str
    codec: str
    layout: str
    force: bool
    listener: Listener | None


class _OpenEpisode:
    """The episode of one environment that is being recorded."""

    def __init__(self, env: int, tape: Tape) -> None:
        self._env, self._tape = env, tape
        self._rows: list[list[np.ndarray]] = [[] for _ in tape.job.columns]
        self._rewards: list[float] = []
        self._begins = self._bytes = 0
        self.steps = 0
        self.is_open = False

    def begin(self, observation: Any) -> None:
        """Begin an episode; an episode that did not end is truncated, or dropped if it has no steps."""
        if self.is_open and self.steps:
            self._write(END_TRUNCATED)
        self.is_open, self._bytes = False, 0
        self._rewards.clear()
        for rows in self._rows:
            rows.clear()
        states = self._state(observation)
        self.is_open, self._begins, self.steps = True, 1, 0
        self._put(0, states)

    def action(self, action: Any) -> list[np.ndarray]:
        """The rows of an action, for `step`. They are copies: the environment may change what it gets."""
        return self._copied(self._tape.job.action, action)

    def step(self, action: list[np.ndarray], observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        """Record a step, and the end of the episode if it is the last.

        Raises RbdataError for what cannot be recorded; the episode is then cut before this step.
        """
        try:
            states = self._state(observation)
            number, end = to_reward(reward), to_end(terminated, truncated)
        except RbdataError as error:
            self.cut()
            name = self._tape.job.title
            message = reason(error) if name in reason(error) else f"{name}: {reason(error)}"
            raise RbdataError(message, hint=error.hint) from error
        self._put(len(self._tape.job.observation), action)
        self._put(0, states)
        self._rewards.append(number)
        self.steps += 1
        self.is_open = not end
        if end:
            self._write(end)
        elif self._bytes > _PIECE_BYTES and len(self._rewards) > 1:
            self._write(0)

    def lies_in(self, holder: Any, final: Any, first: Any) -> bool:
        """Whether an array of the final observation is memory of ``holder``, and equals that of the next episode's first."""
        leaves, pick = self._tape.job.observation, self._tape.values.pick
        rows = zip(leaves, self._copied(leaves, final), self._copied(leaves, first))
        same = [pick(leaf, final) for leaf, end, begin in rows if end.tobytes() == begin.tobytes()]
        return bool(same) and (any(map(_is_foreign, _arrays(same))) or _shares_memory(same, _held_arrays(holder)))

    def cut(self) -> None:
        """End the recording of the episode here."""
        is_open, self.is_open = self.is_open, False
        if is_open and self.steps:
            self._write(END_CUT)

    def _state(self, observation: Any) -> list[np.ndarray]:
        """Copies of the rows of an observation. Raises RbdataError for parts that its space has not."""
        self._tape.values.check(observation)
        return self._copied(self._tape.job.observation, observation)

    def _copied(self, leaves: Any, value: Any) -> list[np.ndarray]:
        values = self._tape.values
        return [np.array(values.row(leaf, values.pick(leaf, value))) for leaf in leaves]

    def _put(self, first: int, rows: list[np.ndarray]) -> None:
        for number, row in enumerate(rows, first):
            self._rows[number].append(row)
            self._bytes += row.nbytes

    def _write(self, end: int) -> None:
        """Write the recorded steps to the log; if the episode continues, its last step stays, so that it can still end
        there."""
        tape, last = self._tape, None if end else -1
        tape.check_process()
        rewards = np.array(self._rewards[:last], float)
        rows = [
            np.stack(rows[:last]) if rows[:last] else np.zeros((0, *column.shape), column.dtype)
            for rows, column in zip(self._rows, tape.job.columns)
        ]
        tape.log.append(Piece(self._env, bool(self._begins), end, rows, rewards))
        self._begins = self._bytes = 0
        del self._rewards[:last]
        for written in self._rows:
            del written[:last]


class Tape:
    """The recording of a loop: one lane for each environment, the log they write to, the lock of the dataset."""

    def __init__(
        self,
        env: Any,
        count: int,
        *,
        name: str | None = None,
        root: str | os.PathLike[str] | None = None,
        text: str = "bytes",
        codec: str = "auto",
        layout: Any = "auto",
        force: bool = False,
        listener: Listener | None = None,
    ) -> None:
        spec = env.spec
        if spec is None and name is None:
            raise UsageError("an environment without an id needs a name", hint='rbdata.Recorder(env, name="...")')
        full = f"gymnasium/{join_name(spec.id, name)}" if spec else f"my/{check_name(str(name))}"
        options = ConvertOptions(codec, layout, extra={"text": text})
        where = settings.root(root)
        self.request = Request(full, root=where, options=options, force=force)
        self.listener = listener or Listener()
        self._env = env
        self.job = LoopJob(spec.id if spec else str(name), env, count, options)
        self.values = LeafRows(self.job.title, self.job.spaces["observation"])
        self.place = DatasetPlace(where, full)
        make_writable(where)
        self._lock = self.place.lock()
        if _open.get(str(self._lock.path)) == os.getpid():
            message = f"a Recorder of {full} is still open in this program"
            raise DatasetBusyError(
                message, hint="close() it first, which makes its dataset, or record under another name"
            )
        self._lock.__enter__()
        try:
            self._open(force)
        except BaseException:
            self._lock.__exit__()
            raise
        _open[str(self._lock.path)] = os.getpid()
        self.lanes = [_OpenEpisode(number, self) for number in range(count)]
        self._process, self._is_released = os.getpid(), False

    @property
    def is_ours(self) -> bool:
        """Whether this process began the recording: a forked one has a copy of it, and the same files."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Raise UsageError in another process than the one that began the recording."""
        if not self.is_ours:
            message = f"{self.place.id} is recorded by process {self._process}, this is a fork of it"
            raise UsageError(message, hint="make a Recorder of another name in each process")

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """An error of an environment cuts all episodes: environments may have been stepped or reset without a record of it."""
        try:
            yield
        except BaseException:
            for lane in self.lanes:
                lane.cut()
            raise

    def _open(self, force: bool) -> None:
        self.place.recover()
        if self.place.exists() and not force:
            message = f"{self.place.id} is there already"
            raise DatasetExistsError(message, hint="record under another name, or replace it with force=True")
        job, mark = self.job, fingerprint({"id": self.place.id, **self.job.identity()})
        before = {} if force else Journal(self.place.working / JOURNAL).find("environment")
        if before:  # as the last recorder found it, and left it
            self._check_environment(before)
        writer = DatasetWriter(self.place, job.schema, mark, bulk=job.bulk, parts=1, restart=force)
        self._writer = writer
        writer.remember("log", {})  # what it holds is worth keeping
        writer.remember("environment", {"layers": job.layers, "python": PYTHON})
        self.log = job.log = EpisodeLog(writer.folder / LOG, job.columns)

    def _check_environment(self, before: Mapping[Any, Mapping[str, Any]]) -> None:
        """Raise UnfinishedDatasetError unless the episodes that are kept are of this environment."""
        for record in before.values():
            same = record.get("python") == PYTHON
            changed = changes_of_environment(record.get("layers") or [], self.job.layers, same_versions=same)
            if not changed:
                return
        message = f"the unfinished {self.place.id} has episodes of another {' and '.join(changed)}"
        hint = f"record under another name, or start over with force=True ({self.place.working})"
        raise UnfinishedDatasetError(message, hint=hint)

    def finish(self) -> Path | None:
        """Make the dataset; None where nothing was recorded, and in a fork."""
        if not self.is_ours:
            return None
        for lane in self.lanes:
            lane.cut()
        self.job.more_notes = self.values.notes()
        if not self.log.counts[0]:
            self.abandon()
            with self.place.lock():
                self.place.discard_working()
            self.place.prune_parents()
            return None
        self._release()  # the run takes it
        try:
            return run(self.job, self.place, self.request, self.listener, self.job.location.url).path
        finally:
            self.log.close()

    def abandon(self) -> None:
        """Stop, unless it is stopped, and leave the episodes that ended to the next recorder of this name."""
        if self._is_released or not self.is_ours:
            return
        with suppress(UsageError):  # its file was edited meanwhile
            after = {"layers": describe_environment(self._env), "python": PYTHON}
            self._writer.remember("environment", after, 1)
        self.log.close()
        self._release()

    def _release(self) -> None:
        self._is_released = True
        _open.pop(str(self._lock.path), None)
        self._lock.__exit__()


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that records what happens in an environment, as the dataset ``gymnasium/ID`` (with a name ``ID@NAME``).

    For an environment without an id, the dataset is ``my/NAME``. ``close``, or the end of a ``with`` block, makes the dataset;
    an episode that has not ended is cut there, and also if ``step`` or ``reset`` of the environment raises. ``reset`` before
    the end of an episode truncates it. Infos are not recorded.

    If the process dies, or an exception leaves the ``with`` block, no dataset is made, but every episode that had ended is
    kept: the next recorder of the same name adds to them (close it at once to have a dataset of just those). ``force`` replaces
    an existing dataset. A vector environment is recorded as well, in any autoreset mode: the rows of environment 0 come first,
    then those of 1.

    ``path`` is None until the dataset exists. Raises DatasetExistsError, DatasetBusyError while another process records under
    the same name, UsageError for spaces that cannot be stored.
    """

    # Gymnasium annotates attributes with names that it imports for type checkers alone: `get_type_hints` would fail.
    __no_type_check__ = True

    @overload
    def __new__(cls, env: gymnasium.Env[Any, Any], **options: Unpack[RecorderOptions]) -> Recorder: ...
    @overload
    def __new__(  # type: ignore[misc]  # not a Recorder
        cls, env: gymnasium.vector.VectorEnv, **options: Unpack[RecorderOptions]
    ) -> VectorRecorder: ...
    def __new__(cls, env: Any, **options: Any) -> Any:
        return VectorRecorder(env, **options) if hasattr(env, "single_action_space") else super().__new__(cls)

    @with_options(RecorderOptions, Tape.__init__)
    def __init__(
        self, env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv, **options: Unpack[RecorderOptions]
    ) -> None:
        super().__init__(env)  # type: ignore[arg-type]  # of several environments `__new__` has made the other class
        self._tape: Tape | None = Tape(env, 1, **options)
        finalize(self, self._tape.abandon).atexit = False
        self.dataset_id = self._tape.place.id
        self.path: Path | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """The recorded (steps, episodes); only whole episodes count, including those of earlier loops."""
        return self._tape.log.counts if self._tape else (0, 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; an episode begins."""
        if self._tape is None:
            return self.env.reset(seed=seed, options=options)
        with self._tape.cutting():
            returned = self.env.reset(seed=seed, options=options)
            self._tape.lanes[0].begin(first_observation(returned))
        return returned

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and record the step. Raises UsageError for an action that is not of the space."""
        if self._tape is None:
            return self.env.step(action)
        lane = self._tape.lanes[0]
        if not lane.is_open:
            raise UsageError("there is no episode to step in", hint="call reset() first")
        taken = lane.action(check_action(action, self.env.action_space, None, _NOT_RECORDED))
        with self._tape.cutting():
            observation, reward, terminated, truncated, info = self.env.step(action)
            lane.step(taken, observation, reward, terminated, truncated)
        return observation, reward, terminated, truncated, info

    def close(self, **options: Any) -> None:
        """Make the dataset, and close the environment; ``options`` are those of a vector environment's own ``close``."""
        try:
            tape, self._tape = self._tape, None
            if tape:
                self.path = tape.finish()
        finally:
            self.env.close(**options)

    def __exit__(self, *error: Any) -> Literal[False]:
        if error and error[0] is not None and self._tape:
            tape, self._tape = self._tape, None
            tape.abandon()
        self.close()
        return False

    def __reduce_ex__(self, protocol: Any) -> Any:
        message = f"the recorder of {self.dataset_id} cannot be copied or pickled: both would write to one log"
        raise UsageError(message, hint="copy the environment in it: copy.deepcopy(recorder.env)")


Recorder.__new__.__signature__ = signature(Recorder.__init__)  # type: ignore[attr-defined]


class VectorRecorder(gymnasium.vector.VectorWrapper):
    """`Recorder` of a vector environment."""

    counts = Recorder.counts
    close = Recorder.close
    __exit__ = Recorder.__exit__
    __reduce_ex__ = Recorder.__reduce_ex__

    def __enter__(self) -> VectorRecorder:
        return self

    @with_options(RecorderOptions, Tape.__init__)
    def __init__(self, env: gymnasium.vector.VectorEnv, **options: Unpack[RecorderOptions]) -> None:
        super().__init__(env)
        self._mode = _autoreset_mode(env)
        if self._mode == AutoresetMode.SAME_STEP and isinstance(env.unwrapped, gymnasium.vector.AsyncVectorEnv):
            _check_final_observations(env.unwrapped)
        self._tape: Tape | None = Tape(env, env.num_envs, **options)
        finalize(self, self._tape.abandon).atexit = False
        self.dataset_id = self._tape.place.id
        self.path: Path | None = None
        #: After an error, of which no lane knows whether its environment was stepped.
        self._must_reset = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``; their episodes begin."""
        mask = (options or {}).get("reset_mask")
        which = np.ones(self.num_envs, bool) if mask is None else np.asarray(mask, bool).copy()
        if self._tape is None:
            return self.env.reset(seed=seed, options=options)
        with self._cutting(self._tape):
            observations, info = self.env.reset(seed=seed, options=options)
            for lane, begins, observation in zip(
                self._tape.lanes, which, iterate(self.env.observation_space, observations)
            ):
                if begins:
                    lane.begin(observation)
        self._must_reset = self._must_reset and not which.all()
        return observations, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments, and record the steps; one that only resets an environment is not recorded."""
        if self._tape is None:
            return self.env.step(actions)
        if self._must_reset:
            raise UsageError("there are no episodes to step in", hint="call reset() first, for all environments")
        stacked = check_action(actions, self.env.single_action_space, self.num_envs, _NOT_RECORDED)
        lanes = self._tape.lanes
        taken = [
            lane.action(one) if lane.is_open else []
            for lane, one in zip(lanes, iterate(self.env.action_space, stacked))
        ]
        with self._cutting(self._tape):
            with self._final_observations_copied():
                observations, rewards, terminated, truncated, info = self.env.step(actions)
            for i, (lane, observation) in enumerate(zip(lanes, iterate(self.env.observation_space, observations))):
                if not lane.is_open:
                    if self._mode == AutoresetMode.NEXT_STEP:
                        lane.begin(observation)
                    continue
                at_once = self._mode == AutoresetMode.SAME_STEP and bool(terminated[i] or truncated[i])
                final = observation
                if at_once:
                    final = self._final(info, i)
                    self._check_memory(lane, i, final, observation, observations)
                lane.step(taken[i], final, rewards[i], terminated[i], truncated[i])
                if at_once:
                    lane.begin(observation)
        return observations, rewards, terminated, truncated, info

    @contextmanager
    def _cutting(self, tape: Tape) -> Iterator[None]:
        try:
            with tape.cutting():
                yield
        except BaseException:
            self._must_reset = True
            raise

    @contextmanager
    def _final_observations_copied(self) -> Iterator[None]:
        """A `SyncVectorEnv` resets environments in the step that ends an episode: what they returned is copied before."""
        several = self.env.unwrapped
        if self._mode != AutoresetMode.SAME_STEP or not isinstance(several, gymnasium.vector.SyncVectorEnv):
            yield
            return
        envs: list[Any] = several.envs
        envs[:] = map(_CopiesFinal, envs)
        try:
            yield
        finally:
            envs[:] = [one.env if isinstance(one, _CopiesFinal) else one for one in envs]

    def _final(self, info: Any, number: int) -> Any:
        """The final observation of an environment that was reset in the same step."""
        try:  # infos are a dictionary of arrays, or with Gymnasium's DictInfoToList a list of dictionaries
            return info["final_obs"][number] if isinstance(info, dict) else info[number]["final_obs"]
        except (KeyError, IndexError, TypeError) as error:
            message = (
                f"environment {number} of {self.dataset_id} was reset in the step, and its infos have no final_obs"
            )
            hint = 'put the final observation into infos["final_obs"][number], or use another autoreset mode than same-step'
            raise RbdataError(message, hint=hint) from error

    def _check_memory(self, lane: _OpenEpisode, number: int, final: Any, first: Any, returned: Any) -> None:
        """Raise RbdataError where the reset has overwritten the final observation: it lies in the memory of what the step
        ``returned``, or in that of the vector environment, which now holds the first observation of the next episode.
        """
        several = self.env.unwrapped
        is_elsewhere = isinstance(several, gymnasium.vector.AsyncVectorEnv)  # was tried when the recorder was made
        if _shares_memory(final, returned) or (not is_elsewhere and lane.lies_in(several, final, first)):
            message = (
                f"environment {number} of {self.dataset_id} reuses its observation: the reset overwrote the final one"
            )
            raise RbdataError(message, hint=_OVERWRITTEN)


class _CopiesFinal:
    """An environment whose last observation of an episode is a copy, which no reset changes."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info


def _check_final_observations(several: gymnasium.vector.AsyncVectorEnv) -> None:
    """Raise UsageError where the environments reset themselves in other processes, and overwrite the final observation.

    The memory there cannot be seen. So one environment of each kind is made again in this process, and tried.
    """
    hint = "use another autoreset mode than same-step, a SyncVectorEnv, or return a copy from the environment's step"
    kinds = dict(zip(several.call("__str__"), several.env_fns))
    for kind, make in kinds.items():
        try:
            overwrites = _reset_overwrites(make)
        except BaseException as problem:
            if is_interrupt(problem):
                raise
            message = f"whether the reset of {kind} overwrites the final observation cannot be tried: {reason(problem)}"
            raise UsageError(message, hint=hint) from problem
        if overwrites:
            message = f"{kind} reuses its observation: in another process the reset overwrites the final one"
            raise UsageError(message, hint=hint)


def _reset_overwrites(make: Any) -> bool:
    """Whether the reset of an environment that is made for this changes what its step returned."""
    with seeded(0), warnings.catch_warnings():  # global generators stay as they are
        warnings.simplefilter("ignore")
        env = make()
        try:
            space = copy.deepcopy(env.action_space)  # classes may share theirs
            space.seed(0)
            for steps in _TRIED_STEPS:
                returned, _ = env.reset(seed=steps)
                for _ in range(steps):
                    returned, _, terminated, truncated, _ = env.step(space.sample())
                    if terminated or truncated:
                        break
                before = [array.tobytes() for array in _arrays(returned)]
                env.reset(seed=0)
                if before != [array.tobytes() for array in _arrays(returned)]:
                    return True
        finally:
            env.close()
    return False


def _autoreset_mode(env: Any) -> AutoresetMode:
    """When a vector environment resets its environments. Raises UsageError if it does not state that."""
    stated = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(stated)
    except ValueError as error:
        message = "the vector environment does not say when it resets its environments"
        hint = 'state it: env.metadata["autoreset_mode"] = gymnasium.vector.AutoresetMode.NEXT_STEP (or as it is)'
        raise UsageError(message, hint=hint) from error


def _shares_memory(one: Any, other: Any) -> bool:
    """Whether observations have an array in common."""
    others = [*_arrays(other)]
    return any(np.shares_memory(array, another) for array in _arrays(one) for another in others)


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield value
    elif isinstance(value, (dict, tuple, list, np.ndarray)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _arrays(inner)


def _held_arrays(holder: Any) -> list[np.ndarray]:
    """The arrays that an object holds, itself or in what it holds."""
    found, seen, left = [], set[int](), [holder]
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, (type, ModuleType)):
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            found.append(value)
        elif isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, (tuple, list, set, frozenset, deque, np.ndarray)):
            left += value
        else:
            left += getattr(value, "__dict__", {}).values()
    return found


def _is_foreign(array: np.ndarray) -> bool:
    """Whether NumPy does not own the memory of an array, so that other code may change it."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base is not None
