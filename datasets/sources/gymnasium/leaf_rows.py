"""What an environment returns, as rows of leaves."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....errors import RbdataError
from ...ingest.spaces import SpaceLeaf, text_rows

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
