"""What an environment returns, as rows of leaves."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....errors import RbdataError
from ...ingest.spaces import SpaceLeaf, text_rows
from .recording import TERMINATED, TRUNCATED

_HINT = "the environment breaks its own space: gymnasium.utils.env_checker shows where"


class LeafRows:
    """Makes rows of the values of one environment, ``name``, and notes where these are not of the dtype of their space."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._cast: set[str] = set()

    def row(self, leaf: SpaceLeaf, value: Any) -> np.ndarray:
        """A value as a row of its leaf. Raises RbdataError when it is not of its space."""
        if leaf.is_text:
            return text_rows([value], leaf.shape[0], leaf.key)[0]
        return self._rows(leaf, np.asarray(value)[None])[0]

    def batch(self, leaf: SpaceLeaf, values: Any) -> np.ndarray:
        """The values of several environments as rows."""
        if leaf.is_text:
            return text_rows(list(values), leaf.shape[0], leaf.key)
        return self._rows(leaf, np.asarray(values))

    def pick(self, leaf: SpaceLeaf, value: Any) -> Any:
        """The part of a value that a leaf holds. Raises RbdataError where it has none."""
        try:
            return leaf.pick(value)
        except (KeyError, IndexError, TypeError) as error:
            raise RbdataError(f"{self._name} gave no {leaf.key}, which its space has", hint=_HINT) from error

    def reward(self, value: Any) -> float:
        """A reward as a number; arrays and tensors of one element are one. Raises RbdataError for anything else."""
        if isinstance(value, (float, int, np.floating)):
            return float(value)
        try:
            return float(np.asarray(value, float).reshape(()))
        except (TypeError, ValueError) as error:
            raise RbdataError(
                f"{self._name} gave {value!r:.80} as a reward, which is not a number", hint=_HINT
            ) from error

    def end(self, terminated: Any, truncated: Any) -> int:
        """Whether a step ends the episode: 0, or TERMINATED, TRUNCATED, BOTH. Raises RbdataError for what is not a flag."""
        if type(terminated) is not bool:  # the usual case is called once a step
            terminated = self._flag("terminated", terminated)
        if type(truncated) is not bool:
            truncated = self._flag("truncated", truncated)
        return TERMINATED * terminated + TRUNCATED * truncated

    def _flag(self, name: str, value: Any) -> bool:
        if type(value) is np.bool_:
            return bool(value)
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
            hint = "step returns observation, reward, terminated, truncated, info: true or false for one environment"
            raise RbdataError(f"{self._name} gave {name} as {value!r:.80}", hint=hint)
        return bool(array.item())

    def notes(self) -> list[str]:
        """A sentence about values that were given in another dtype, if any."""
        if not self._cast:
            return []
        names = ", ".join(sorted(self._cast))
        return [f"The environment gave {names} in another dtype than its space states; stored as it states."]

    def _rows(self, leaf: SpaceLeaf, array: np.ndarray) -> np.ndarray:
        basic = tuple(leaf.space.get("shape", ()))
        if array.shape[1:] != basic:
            message = f"{self._name} gave {leaf.key} of shape {array.shape[1:]}, its space says {basic}"
            raise RbdataError(message, hint=_HINT)
        if array.dtype != leaf.dtype:
            if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                message = f"{self._name} gave {leaf.key} as {array.dtype}, its space says {leaf.dtype}"
                raise RbdataError(message, hint=_HINT)
            if not np.can_cast(array.dtype, leaf.dtype, "safe"):
                self._cast.add(leaf.key)
            array = array.astype(leaf.dtype)
        return array.reshape(len(array), *leaf.shape)
