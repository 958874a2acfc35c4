"""Record an ordinary loop of reset and step into a dataset.

    with rbdata.Recorder(gymnasium.make("CartPole-v1"), name="mine") as env:
        observation, _ = env.reset(seed=0)
        for _ in range(1000):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()

Every episode that ends is in a log at once (`episode_log`); closing makes the dataset of it, which has the same files as a
recording by a policy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal, Self, overload
from weakref import finalize

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from .... import settings
from ....errors import DatasetExistsError, RbdataError, UsageError, reason
from ....storage.folder import DatasetPlace, make_writable
from ....storage.work import Work
from ...ingest.block import END_CUT, END_TRUNCATED, Block
from ...ingest.estimate import expect_rows
from ...ingest.pipeline import mark_of, run
from ...ingest.records import ConvertOptions, Expectation
from ...ingest.request import Listener, Request
from ...ingest.unit import Part, Unit
from .episode_log import EpisodeLog, LoggedSteps
from .lanes import Lane, block_of, block_rows, first_observation, step_results
from .policy import check_action
from .reader import EnvironmentReader
from .source import check_name, join_name

#: The log, in the working folder of the dataset.
LOG = "episodes.log"
_NOT_RECORDED = "this action cannot be recorded:"
#: Bytes of rows of an episode that are kept in memory.
_PIECE_BYTES = 16 << 20


class LoopReader(EnvironmentReader):
    """The dataset of a loop. ``log`` may be larger when it is read than when the reader is made."""

    converter, here = "gymnasium loop 3", True  # a log is an open file
    log: EpisodeLog | None = None

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "environments": self.environments, "text": self.options.extra["text"]}

    def describe(self) -> dict[str, Any]:
        options = {"text": self.options.extra["text"], "unknown_next": self.options.unknown_next}
        return {**super().describe(), "recorded_by": "rbdata.Recorder", "options": options}

    def expect(self) -> Expectation:
        return expect_rows(self, *(self.log.counts if self.log else (0, 0)))

    def units(self, lead: Part | None) -> list[LogUnit]:
        steps = self.log.counts[0] if self.log else 0
        return [LogUnit(0, self.title, steps, f"{self.fingerprint} {steps}", self)]


@dataclass(frozen=True)
class LogUnit(Unit):
    """The episodes of a log."""

    reader: LoopReader

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        reader, done = self.reader, 0
        assert reader.log is not None
        for env in range(reader.environments):
            for piece in reader.log.pieces(env):
                bits = np.zeros(len(piece.rewards), np.uint8)
                bits[-1], done = piece.end, done + len(bits)
                yield block_of(reader.columns, piece.rows, piece.rewards, bits, env, done)


class _OpenEpisode(Lane):
    """The episode of one environment that is being recorded."""

    log: EpisodeLog
    #: Whether there is an episode to step in.
    is_open = False
    _begins = False

    def begin(self, observation: Any) -> None:
        """Begin an episode; an episode that did not end is truncated, or dropped if it has no steps."""
        self.end(END_TRUNCATED)
        self.put_state(observation)
        self.is_open, self._begins = True, True

    def step(self, returned: Any) -> None:
        """Record what ``step`` returned, whose action has been put, and the end of the episode if it is the last. Raises
        RbdataError for what cannot be recorded."""
        observation, reward, end = step_results(returned)
        self.put_step(observation, reward, 0)
        if end:
            self.end(end)
        elif self.is_full:
            self._write(0)

    def end(self, how: int) -> None:
        """End the episode, if it is open, with its newest step."""
        is_open, self.is_open = self.is_open, False
        if is_open and self.steps:
            self.cut(how)
            self._write(how)
        self.clear()

    def _write(self, end: int) -> None:
        """Write the steps in memory to the log."""
        rows, rewards, _ = self.ready()
        self.log.append(LoggedSteps(self.number, self._begins, end, rows, rewards))
        self.drop()  # not before: where the log cannot be written, the episode has no gap
        self._begins = False


class Tape:
    """The recording of a loop: an episode for each environment, the log they write to, the lock of the dataset."""

    #: After an error, of which nobody knows which of several environments were stepped.
    must_reset = False

    def __init__(
        self,
        env: Any,
        count: int,
        name: str | None = None,
        root: str | os.PathLike[str] | None = None,
        text: str = "bytes",
        codec: str = "auto",
        layout: Any = "auto",
        force: bool = False,
        listener: Listener | None = None,
    ) -> None:
        options = ConvertOptions(codec, layout, extra={"text": text})
        spec, where = env.spec, settings.root(root)
        if spec is None and name is None:
            raise UsageError("an environment without an id needs a name", hint='rbdata.Recorder(env, name="...")')
        full = f"gymnasium/{join_name(spec.id, name)}" if spec else f"my/{check_name(str(name))}"
        self._request, self._listener = Request(full, root=where, options=options, force=force), listener or Listener()
        self._reader = reader = LoopReader(spec.id if spec else str(name), env, count, options)
        self.place = DatasetPlace(where, full)
        make_writable(where)
        with ExitStack() as stack:
            stack.enter_context(self.place.lock())
            self.place.recover()
            if self.place.exists() and not force:
                hint = "record under another name, or use force=True"
                raise DatasetExistsError(f"{full} is there already", hint=hint)
            work = Work(self.place, mark_of(reader, self.place), restart=force)
            work.remember("log", True)  # what it holds is worth keeping
            self.log = reader.log = EpisodeLog(work.folder / LOG, reader.columns)
            self._held = stack.pop_all()
        room = block_rows(reader.columns, count, _PIECE_BYTES)
        of = (reader.title, reader.spaces["observation"], reader.observation, reader.action, room)
        self.lanes = [_OpenEpisode(number, *of) for number in range(count)]
        for lane in self.lanes:
            lane.log = self.log

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """An error of an environment cuts all episodes: environments may have been stepped or reset without a record of it."""
        try:
            yield
        except BaseException as error:
            self.must_reset = True
            for lane in self.lanes:
                lane.end(END_CUT)
            if isinstance(error, RbdataError) and self._reader.title not in reason(error):
                raise RbdataError(f"{self._reader.title}: {reason(error)}", hint=error.hint) from error
            raise

    def finish(self) -> Path | None:
        """Make the dataset; None where nothing was recorded."""
        try:
            for lane in self.lanes:
                lane.end(END_CUT)
            if self.log.counts[0]:
                self._held.close()  # the run takes the lock
                return run(self._reader, self.place, self._request, self._listener, self._reader.location.url).path
            self.place.discard_working()
        finally:
            self.abandon()
        self.place.prune_parents()
        return None

    def abandon(self) -> None:
        """Stop, and leave the episodes that ended to the next recorder of this name."""
        self.log.close()
        self._held.close()


class _RecorderBase:
    """What the recorders of one environment and of several have in common."""

    env: Any
    _tape: Tape | None = None
    #: The folder of the dataset, once it exists.
    path: Path | None = None

    def _begin(self, tape: Tape) -> None:
        self._tape, self.dataset_id = tape, tape.place.id
        finalize(self, tape.abandon).atexit = False

    @property
    def counts(self) -> tuple[int, int]:
        """The recorded (steps, episodes); only whole episodes count, including those of earlier loops."""
        return self._tape.log.counts if self._tape else (0, 0)

    def close(self, **options: Any) -> None:
        """Make the dataset, and close the environment; ``options`` are those of a vector environment's own ``close``."""
        try:
            tape, self._tape = self._tape, None
            if tape:
                self.path = tape.finish()
        finally:
            self.env.close(**options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> Literal[False]:
        if error and error[0] is not None and self._tape:
            tape, self._tape = self._tape, None
            tape.abandon()
        self.close()
        return False


class Recorder(_RecorderBase, gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that records what happens in an environment, as the dataset ``gymnasium/ID`` (with a name ``ID@NAME``).

    For an environment without an id, the dataset is ``my/NAME``. ``close``, or the end of a ``with`` block, makes the dataset;
    an episode that has not ended is cut there, and also if ``step`` or ``reset`` of the environment raises. ``reset`` before
    the end of an episode truncates it. Infos are not recorded.

    If the process dies, or an exception leaves the ``with`` block, no dataset is made, but every episode that had ended is
    kept: the next recorder of the same name adds to them (close it at once to have a dataset of just those). ``force`` replaces
    an existing dataset. A vector environment is recorded as well, unless it resets environments in the same step: the rows of
    environment 0 come first, then those of 1.

    ``path`` is None until the dataset exists. Raises DatasetExistsError, DatasetBusyError while another process records under
    the same name, UsageError for spaces that cannot be stored.
    """

    # Gymnasium annotates attributes with names that it imports for type checkers alone: `get_type_hints` would fail.
    __no_type_check__ = True

    @overload
    def __new__(cls, env: gymnasium.Env[Any, Any], **options: Any) -> Recorder: ...
    @overload
    def __new__(cls, env: gymnasium.vector.VectorEnv, **options: Any) -> VectorRecorder: ...  # type: ignore[misc]
    def __new__(cls, env: Any, **options: Any) -> Any:
        return VectorRecorder(env, **options) if hasattr(env, "single_action_space") else super().__new__(cls)

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv,
        *,
        name: str | None = None,
        root: str | os.PathLike[str] | None = None,
        text: str = "bytes",
        codec: str = "auto",
        layout: str = "auto",
        force: bool = False,
        listener: Listener | None = None,
    ) -> None:
        super().__init__(env)  # type: ignore[arg-type]  # of several environments `__new__` has made the other class
        self._begin(Tape(env, 1, name, root, text, codec, layout, force, listener))

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
        lane.put_action(check_action(action, self.env.action_space, None, _NOT_RECORDED))
        with self._tape.cutting():
            returned = self.env.step(action)
            lane.step(returned)
        return returned


# What `help` and editors show of a class is the signature of `__new__`.
Recorder.__new__.__signature__ = signature(Recorder.__init__)  # type: ignore[attr-defined]


class VectorRecorder(_RecorderBase, gymnasium.vector.VectorWrapper):
    """`Recorder` of a vector environment, made by it."""

    def __init__(self, env: gymnasium.vector.VectorEnv, **options: Any) -> None:
        super().__init__(env)
        self._mode = _autoreset_mode(env)
        self._begin(Tape(env, env.num_envs, **options))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``; their episodes begin."""
        mask = (options or {}).get("reset_mask")
        which = np.ones(self.num_envs, bool) if mask is None else np.asarray(mask, bool).copy()
        if self._tape is None:
            return self.env.reset(seed=seed, options=options)
        with self._tape.cutting():
            observations, info = self.env.reset(seed=seed, options=options)
            for lane, begins, observation in zip(self._tape.lanes, which, self._each(observations)):
                if begins:
                    lane.begin(observation)
        self._tape.must_reset &= not which.all()
        return observations, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments, and record the steps; one that only resets an environment is not recorded."""
        if self._tape is None:
            return self.env.step(actions)
        if self._tape.must_reset:
            raise UsageError("there are no episodes to step in", hint="call reset() first, for all environments")
        stacked = check_action(actions, self.env.single_action_space, self.num_envs, _NOT_RECORDED)
        for lane, action in zip(self._tape.lanes, iterate(self.env.action_space, stacked)):
            if lane.is_open:
                lane.put_action(action)
        with self._tape.cutting():
            observations, rewards, terminated, truncated, info = self.env.step(actions)
            for i, (lane, observation) in enumerate(zip(self._tape.lanes, self._each(observations))):
                if lane.is_open:
                    lane.step((observation, rewards[i], terminated[i], truncated[i], info))
                elif self._mode == AutoresetMode.NEXT_STEP:
                    lane.begin(observation)
        return observations, rewards, terminated, truncated, info

    def _each(self, observations: Any) -> Sequence[Any]:
        return list(iterate(self.env.observation_space, observations))


def _autoreset_mode(env: Any) -> AutoresetMode:
    """When a vector environment resets its environments. Raises UsageError if it does not state that, or does so in the step
    that ends an episode."""
    try:
        mode = AutoresetMode(env.metadata.get("autoreset_mode"))
    except ValueError as error:
        message = "the vector environment does not say when it resets its environments"
        hint = 'state it: env.metadata["autoreset_mode"] = gymnasium.vector.AutoresetMode.NEXT_STEP (or as it is)'
        raise UsageError(message, hint=hint) from error
    if mode == AutoresetMode.SAME_STEP:
        message = (
            "a vector environment that resets in the step that ends an episode hides or overwrites final observations"
        )
        hint = "make it with autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP (or DISABLED)"
        raise UsageError(message, hint=hint)
    return mode
