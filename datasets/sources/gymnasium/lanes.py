"""Turns what environments return into rows and blocks.

Episodes of several environments are recorded side by side, and lie one after the other in the dataset: each environment is a
lane here, and a section of blocks. What steps the environments is in `reader` and `recorder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ....errors import RbdataError
from ...ingest.block import END_TERMINATED, END_TRUNCATED, Block
from ...ingest.spaces import LossyCastError, SpaceLeaf, as_array, cast, text_rows
from ...ingest.trajectories import Column

_HINT = "the environment breaks its own space: gymnasium.utils.env_checker shows where"
_OLD = "is it one of Gym's old interface? gymnasium.make('GymV21Environment-v0', env=...) adapts it (package shimmy)"
#: Rewards are stored as float32.
_LARGEST = float(np.finfo(np.float32).max)


def row_of(leaf: SpaceLeaf, value: Any, name: str) -> np.ndarray:
    """What the environment ``name`` gave for a leaf as a row of it, perhaps a view. Raises RbdataError when it is not of its
    space."""
    if leaf.is_text:
        return text_rows([value], leaf.shape[0], leaf.key)[0]
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{name} gave {leaf.key} as {type(value).__name__}, which is not an array: {error}"
        raise RbdataError(message, hint=_HINT) from error
    basic = tuple(leaf.space.get("shape", ()))
    if array.shape != basic:
        message = f"{name} gave {leaf.key} of shape {array.shape}, its space says {basic}"
        raise RbdataError(message, hint=_HINT)
    if array.dtype.kind not in "biuf":
        raise RbdataError(f"{name} gave {leaf.key} as {array.dtype}, its space says {leaf.dtype}", hint=_HINT)
    try:
        return cast(array, leaf.dtype).reshape(leaf.shape)
    except LossyCastError as error:
        message = f"{name} gave {leaf.key} with the value {error.value}, which {leaf.dtype} does not hold"
        raise RbdataError(message, hint="give the space of the environment a wider dtype") from error


def check_parts(space: Mapping[str, Any], value: Any, key: str, name: str) -> None:
    """Raise RbdataError for an observation with a part that its ``space`` (JSON) has not: no leaf would hold it."""
    if space["type"] == "Dict" and isinstance(value, Mapping):
        inner, given = space["spaces"], {str(part): one for part, one in value.items()}
    elif space["type"] == "Tuple" and isinstance(value, (tuple, list)):
        inner, given = ({str(n): one for n, one in enumerate(several)} for several in (space["spaces"], value))
    else:
        return
    for part, one in given.items():
        if part not in inner:
            hint = "add it to the observation space, so that it is recorded, or leave it out in a wrapper"
            raise RbdataError(f"{name} gave {key}/{part}, which its space has not", hint=hint)
        check_parts(inner[part], one, f"{key}/{part}", name)


#: Bytes of rows kept in memory for all environments together, and the most rows for one.
_BUFFER_BYTES, _BUFFER_ROWS = 32 << 20, 8192


def block_rows(columns: Sequence[Column], count: int, most: int | None = None) -> int:
    """How many rows of each environment are kept in memory, of ``count``; those of one take ``most`` bytes."""
    row = sum(column.row_bytes for column in columns) + 5
    return max(4, min(_BUFFER_ROWS, _BUFFER_BYTES // (row * count), (most or _BUFFER_BYTES) // row))


class Lane:
    """One environment, ``name``, and the rows of it that are not written yet: up to ``room`` states. ``space`` is that of its
    observations, as JSON.

    An action is put into its row before the environment gets it, and an observation before the policy gets it: both may
    change what they are given, and may use one array again and again.
    """

    def __init__(
        self,
        number: int,
        name: str,
        space: Mapping[str, Any],
        states: Sequence[SpaceLeaf],
        steps: Sequence[SpaceLeaf],
        room: int,
    ) -> None:
        self.number, self._name, self._space, self._room = number, name, space, room
        self._of_states, self._of_steps = (
            [(leaf, np.zeros((room, *leaf.shape), leaf.dtype)) for leaf in leaves] for leaves in (states, steps)
        )
        self._reward, self._end = np.zeros(room), np.zeros(room, np.uint8)
        #: Rows in the buffers.
        self.states = self.steps = 0

    @property
    def is_full(self) -> bool:
        """Whether no room is left for a step that ends an episode, and the first state of the next."""
        return self.states > self._room - 2

    def put_state(self, observation: Any) -> None:
        """Take an observation. Raises RbdataError if it is not of its space."""
        check_parts(self._space, observation, "observation", self._name)
        self._put(self._of_states, self.states, observation)
        self.states += 1

    def put_action(self, action: Any) -> None:
        """Take the action of the step that follows."""
        self._put(self._of_steps, self.steps, action)

    def put_step(self, observation: Any, reward: float, end: int) -> None:
        """Take the results of the step; ``end`` is 0 where the episode continues."""
        self.put_state(observation)
        self._reward[self.steps], self._end[self.steps] = reward, end
        self.steps += 1

    def cut(self, how: int) -> None:
        """End the episode with its newest step."""
        self._end[self.steps - 1] = how

    def ready(self) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """The steps whose end is known: the rows of each column, the rewards and the bits, valid until `drop`. The newest step
        of an episode that goes on is none of them, nor is the state that the next action is taken in."""
        states, steps = self._known()
        rows = [rows[:states] for _, rows in self._of_states] + [rows[:steps] for _, rows in self._of_steps]
        return rows, self._reward[:steps], self._end[:steps]

    def drop(self) -> None:
        """Forget what is `ready`."""
        states, steps = self._known()
        buffers = [(rows, states, self.states) for _, rows in self._of_states]
        buffers += [(rows, steps, self.steps + 1) for _, rows in self._of_steps]  # an action may wait for its results
        buffers += [(self._reward, steps, self.steps), (self._end, steps, self.steps)]
        for rows, first, stop in buffers:
            rows[: stop - first] = rows[first:stop].copy()
        self.states, self.steps = self.states - states, self.steps - steps

    def _known(self) -> tuple[int, int]:
        steps = self.steps - int(self.steps > 0 and not self._end[self.steps - 1])
        return steps + int(np.count_nonzero(self._end[:steps])), steps

    def clear(self) -> None:
        """Forget all rows."""
        self.states = self.steps = 0

    def _put(self, buffers: Sequence[tuple[SpaceLeaf, np.ndarray]], row: int, value: Any) -> None:
        for leaf, rows in buffers:
            try:
                one = leaf.pick(value)
            except (KeyError, IndexError, TypeError) as error:
                raise RbdataError(f"{self._name} gave no {leaf.key}, which its space has", hint=_HINT) from error
            same = type(one) is np.ndarray and one.dtype == rows.dtype and one.shape == leaf.shape
            rows[row] = one if same else row_of(leaf, one, self._name)


def block_of(
    columns: Sequence[Column], rows: Sequence[np.ndarray], rewards: np.ndarray, bits: np.ndarray, lane: int, done: int
) -> Block:
    """The rows of each column, the rewards and the bits of steps of an environment, as a block of its section."""
    named = {column.key: some for column, some in zip(columns, rows)}
    return Block({**named, "next/reward": rewards.astype(np.float32)}, bits, place=(0, lane), done=done)


def first_observation(returned: Any) -> Any:
    """The observation of what ``reset`` returned. Raises RbdataError where that is not ``(observation, info)``."""
    if isinstance(returned, (tuple, list)) and len(returned) == 2 and isinstance(returned[1], (Mapping, type(None))):
        return returned[0]
    raise RbdataError(f"it returned {_described(returned)}, not (observation, info)", hint=_OLD)


def step_results(returned: Any) -> tuple[Any, float, int]:
    """Observation, reward and end (0, or how the episode ended: `recording`) of what ``step`` returned.

    Raises RbdataError for other than five values, a reward that float32 cannot hold, and flags that are not true or false.
    """
    try:
        observation, reward, terminated, truncated, _ = returned
    except (TypeError, ValueError) as error:
        wanted = "(observation, reward, terminated, truncated, info)"
        raise RbdataError(f"it returned {_described(returned)}, not {wanted}", hint=_OLD) from error
    if terminated is False is truncated and isinstance(reward, float) and -_LARGEST <= reward <= _LARGEST:
        return observation, reward, 0  # nearly always
    end = END_TERMINATED * _flag(terminated, "terminated") + END_TRUNCATED * _flag(truncated, "truncated")
    return observation, _number(reward, "reward"), end


def _flag(value: Any, name: str) -> bool:
    number = _number(value, name)
    if number not in (0, 1):
        raise RbdataError(f"it gave {name} as {value!r:.60}, which is neither true nor false")
    return bool(number)


def _number(value: Any, name: str) -> float:
    """A number, or an array or tensor of one. Raises RbdataError for anything else, and for what float32 cannot hold."""
    with suppress(TypeError, ValueError, RuntimeError):
        array = as_array(value)
        if array.size == 1 and array.dtype.kind in "fiub" and abs(number := float(array.reshape(-1)[0])) <= _LARGEST:
            return number
    message = f"it gave {name} as {value!r:.60}, not one finite number that float32 holds"
    raise RbdataError(message, hint="rewards are stored as float32")


def _described(returned: Any) -> str:
    several = isinstance(returned, (tuple, list))
    return f"{len(returned)} values" if several else f"{type(returned).__name__} {returned!r:.40}"
