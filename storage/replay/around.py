"""What a batch has of the rows around each step: stacks, n-step returns, windows by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch

from ...errors import UsageError
from ..amounts import MOST_RECORDS
from ..keywords import goes_with, whole_number
from .timeline import Edges, as_key, path_of

_EXAMPLE = 'for example windows={"observation": (-1, 0), "action": (0, 15)}'


@dataclass(frozen=True)
class Around:
    """Rows around each step, which never cross an episode; the options have the names and meanings of `rbdata.load`.

    - ``frame_stack``: the last k states; ``stack_keys``: of these leaves alone. ``n_step``, ``gamma``: n-step returns.
    - ``windows``: for each key the offsets of the first and the last row, instead of all else.
    - ``padding``: what rows outside of the episode are, "repeat" (its nearest row) or "zero".
    - ``end_key``, ``traj_key``: where the data say that episodes end, if not under the usual keys (see `Edges`).

    Raises UsageError for values out of range, and for an option without the one that it belongs to.
    """

    frame_stack: int | None = None
    stack_keys: Any = None
    n_step: int | None = None
    gamma: float = 0.99
    windows: Mapping[Any, tuple[int, int]] | None = None
    padding: str = "repeat"
    end_key: Any = None
    traj_key: Any = None
    edges: Edges = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.padding not in ("repeat", "zero"):
            raise UsageError(f"padding is {self.padding!r}, not 'repeat' or 'zero'")
        if self.frame_stack is None:
            goes_with("frame_stack", stack_keys=self.stack_keys is not None)
            if self.windows is None:
                goes_with("windows or frame_stack", padding=self.padding != "repeat")
        else:
            self._set("frame_stack", whole_number("frame_stack", self.frame_stack, 1, MOST_RECORDS))
        if self.stack_keys is not None:
            keys = (self.stack_keys,) if isinstance(self.stack_keys, str) else self.stack_keys
            self._set("stack_keys", tuple(map(path_of, keys)))
        if self.n_step is None:
            goes_with("n_step", gamma=self.gamma != 0.99)
        else:
            returns = NStep(self.n_step, self.gamma)
            self._set("n_step", returns.steps)
            self._set("gamma", returns.gamma)
        if self.windows is not None:
            self._set("windows", _offsets(self.windows))
            if self.frame_stack is not None or self.n_step is not None:
                raise UsageError("windows are read instead of frame_stack and n_step", hint="give windows alone")
        ends = () if self.end_key is None else (as_key(self.end_key),)
        self._set("edges", Edges(None if self.traj_key is None else as_key(self.traj_key), ends))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def names(self) -> list[str]:
        """The options by which rows around each step are read; none: steps are read as they are."""
        return [name for name in ("n_step", "frame_stack", "windows") if getattr(self, name) is not None]


def _offsets(windows: Any) -> dict[str, tuple[int, int]]:
    """Offsets of the first and the last row around a step, by path. Raises UsageError for anything else."""
    if not isinstance(windows, Mapping) or not windows:
        raise UsageError(f"windows give a first and a last offset for each key, not {windows!r}", hint=_EXAMPLE)
    offsets: dict[str, tuple[int, int]] = {}
    for key, given in windows.items():
        path = path_of(key)
        pair = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        is_whole = [isinstance(one, Integral) and not isinstance(one, bool) for one in pair]
        if len(pair) != 2 or not all(is_whole) or pair[0] > pair[1]:
            message = f"the window of {path} is {given!r}, not the offsets of its first and its last row"
            raise UsageError(message, hint=_EXAMPLE)
        if max(-pair[0], pair[1], pair[1] - pair[0] + 1) > MOST_RECORDS:
            raise UsageError(f"the window of {path}, {given!r}, is longer than {MOST_RECORDS:,}")
        offsets[path] = (int(pair[0]), int(pair[1]))
    return offsets


@dataclass(frozen=True)
class NStep:
    """Look ``steps`` ahead, discounting by ``gamma``. Raises UsageError for values out of range."""

    steps: int
    gamma: float

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise UsageError(f"gamma must lie in (0, 1], and is {self.gamma!r}")
        self.__dict__.update(steps=whole_number("n_step", self.steps, 1, MOST_RECORDS), gamma=float(self.gamma))

    def check_rewards(self, leaves: Iterable[str]) -> None:
        """Raise UsageError for rewards beside ``next/reward`` (of each agent, say): the last step's would look like sums."""
        rewards = [name for name in leaves if name.startswith("next/") and name.endswith("/reward")]
        others = [name for name in rewards if name != "next/reward"]
        if self.steps > 1 and others:
            message = f"n_step sums next/reward alone, not {', '.join(others)}"
            raise UsageError(message, hint="leave these leaves out; under other names they are those of the last step")

    def ahead(self, position: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        """Return the number of steps to take: ``n``, or fewer before the episode's ``end``; int64 ``[B]``."""
        return (end - position).clamp(max=self.steps)

    def total(self, rewards: torch.Tensor) -> torch.Tensor:
        """The discounted sum of rewards ``[B, n, *shape]``, zero beyond the end: ``[B, *shape]``; float32 of whole numbers."""
        weights = self.gamma ** torch.arange(self.steps, dtype=torch.float64, device=rewards.device)
        summed = (rewards.double() * weights.view(1, -1, *[1] * (rewards.ndim - 2))).sum(1)
        return summed.to(rewards.dtype if rewards.is_floating_point() else torch.float32)

    def discount(self, taken: torch.Tensor) -> torch.Tensor:
        """Return the factor of the value of the next state: gamma^k, float32 ``[B]``."""
        return (self.gamma ** taken.double()).float()
