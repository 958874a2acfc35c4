"""Parameters of samplers that change as training goes on, as in ``torchrl.data.replay_buffers.scheduler``.

schedulers = SchedulerList([LinearScheduler(buffer, "beta", final_value=1.0, num_steps=100_000)])
schedulers.step()                       # after each step of training
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ....errors import UsageError
from ..samplers.sampler import Sampler
from ..storages.trees import copy_of


class ParameterScheduler:
    """Base of schedulers: sets ``param_name`` of a sampler (or of a buffer's sampler) to the result of `value` after each step.

    ``initial_val`` is the first value, a number or a tensor with one element; ``min_value`` and ``max_value`` are bounds.
    Raises UsageError if the sampler has no such parameter.
    """

    def __init__(self, obj: Any, param_name: str, min_value: Any = None, max_value: Any = None) -> None:
        sampler = getattr(obj, "sampler", obj)
        if not isinstance(sampler, Sampler):
            raise UsageError(f"a scheduler takes a ReplayBuffer or a Sampler, not a {type(obj).__name__}")
        if not hasattr(sampler, param_name):
            raise UsageError(f"a {type(sampler).__name__} has no parameter {param_name!r}")
        self.sampler, self.param_name = sampler, param_name
        self.min_value, self.max_value = min_value, max_value
        self.initial_val = copy_of(getattr(sampler, param_name))
        self.steps = 0

    def step(self) -> None:
        """Count a step, and set the parameter to its value after it."""
        self.steps += 1
        value = self._step()
        if self.min_value is not None:
            value = max(value, self._like(self.min_value))
        if self.max_value is not None:
            value = min(value, self._like(self.max_value))
        setattr(self.sampler, self.param_name, value)

    def _step(self) -> Any:
        """The value after ``steps`` steps."""
        raise NotImplementedError

    def _like(self, value: Any) -> Any:
        """A number as a tensor if the parameter is a tensor."""
        if isinstance(self.initial_val, torch.Tensor):
            return torch.as_tensor(value).to(self.initial_val)
        return value

    def state_dict(self) -> dict[str, Any]:
        """All attributes except the sampler and functions, by name; tensors are copies."""
        kept = {name: value for name, value in self.__dict__.items() if name != "sampler" and not callable(value)}
        return copy_of(kept)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from ``state_dict``. Raises UsageError for the state of another parameter."""
        if state.get("param_name") != self.param_name or set(state) != set(self.state_dict()):
            raise UsageError(f"the state is not that of a {type(self).__name__} of {self.param_name!r}")
        self.__dict__.update(copy_of(state))


class LambdaScheduler(ParameterScheduler):
    """The initial value times ``lambda_fn(steps)``."""

    def __init__(
        self, obj: Any, param_name: str, lambda_fn: Callable[[int], float], min_value: Any = None, max_value: Any = None
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.lambda_fn = lambda_fn

    def _step(self) -> Any:
        return self.initial_val * self.lambda_fn(self.steps)


class LinearScheduler(ParameterScheduler):
    """In equal steps from the initial value to ``final_value``, which it has from step ``num_steps`` on."""

    def __init__(self, obj: Any, param_name: str, final_value: Any, num_steps: int) -> None:
        super().__init__(obj, param_name)
        if num_steps < 1:
            raise UsageError(f"num_steps must be at least 1, not {num_steps!r}")
        self.final_val, self.num_steps = self._like(final_value), num_steps

    def _step(self) -> Any:
        if self.steps >= self.num_steps:
            return self.final_val
        return self.initial_val + (self.final_val - self.initial_val) * (self.steps / self.num_steps)


class StepScheduler(ParameterScheduler):
    """Every ``n_steps`` steps times ``gamma``, or with ``mode="additive"`` plus ``gamma``."""

    def __init__(
        self,
        obj: Any,
        param_name: str,
        gamma: Any = 0.9,
        n_steps: int = 1,
        mode: str = "multiplicative",
        min_value: Any = None,
        max_value: Any = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        if mode not in ("multiplicative", "additive"):
            raise UsageError(f"mode is {mode!r}, not 'multiplicative' or 'additive'")
        if n_steps < 1:
            raise UsageError(f"n_steps must be at least 1, not {n_steps!r}")
        self.gamma, self.n_steps, self.mode = gamma, n_steps, mode

    def _step(self) -> Any:
        value = getattr(self.sampler, self.param_name)
        if self.steps % self.n_steps:
            return value
        return value * self.gamma if self.mode == "multiplicative" else value + self.gamma


class SchedulerList:
    """Several schedulers that step together."""

    def __init__(self, schedulers: ParameterScheduler | Iterable[ParameterScheduler]) -> None:
        self.schedulers = [schedulers] if isinstance(schedulers, ParameterScheduler) else list(schedulers)

    def append(self, scheduler: ParameterScheduler) -> None:
        self.schedulers.append(scheduler)

    def step(self) -> None:
        for scheduler in self.schedulers:
            scheduler.step()
