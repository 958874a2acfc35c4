"""Policies that act while an environment is recorded: random actions, or a user's function.

A policy takes an observation and returns an action. For several environments it gets stacked observations, as from Gymnasium's
vector environments, and returns stacked actions (a Discrete action: int ``[num_envs]``).

It is a function, an object that is called or has a method ``act``, a class of such objects (one is made for a recording),
or a file with a function ``act``. Where it has a ``reset``, that is called when an episode begins: without arguments, of
several environments with bool ``[num_envs]``, the environments that begin one.
"""

from __future__ import annotations

import inspect
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import FunctionError, UsageError, reason
from ... import user_code
from ...ingest.spaces import as_array, cast

if TYPE_CHECKING:
    import gymnasium

RANDOM = "random"
_FORM = "a policy is 'random', 'package.module:name' or 'file.py:name' of a function or class, or a file.py with a function act"


def reference(text: str) -> str:
    """The reference of a policy given as text: of a file alone, that of its function ``act``."""
    return f"{text}:act" if text.endswith(".py") else text


def find_policy(text: str) -> Any:
    """What ``module:name``, ``file.py:name`` or ``file.py`` names: a function, class or object.

    Raises UsageError for a policy that does not exist, or cannot be imported or called.
    """
    policy = user_code.find(reference(text))
    if not callable(policy) and not callable(getattr(policy, "act", None)):
        raise UsageError(f"{text} is not a function but {type(policy).__name__}", hint=_FORM)
    return policy


def name_policy(policy: Any) -> str:
    """``module:name`` of a policy given as a Python object, or of its class; a policy given as text is its name."""
    if isinstance(policy, str):
        return policy
    named = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{named.__module__}:{named.__qualname__}"


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, NumPy and (if it is imported) torch, for policies that draw from them."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.random.manual_seed(seed)


class Actor:
    """Chooses actions for environments of one kind, and checks what a policy returns.

    ``policy`` is the policy itself (None: random actions), ``name`` what messages call it. ``epsilon`` is the probability of a
    random action instead.
    """

    def __init__(self, envs: Sequence[Any], policy: Any, name: str, epsilon: float, seed: int) -> None:
        from gymnasium.vector.utils import batch_space

        self._name, self._count, self._epsilon = name, (count := len(envs)), epsilon
        self._space: gymnasium.Space = envs[0].action_space
        self._observed: gymnasium.Space = envs[0].observation_space
        self._all: gymnasium.Space = self._space if count == 1 else batch_space(self._space, count)
        self._all.seed(seed)
        self._space.seed(seed + 1 if count > 1 else seed)
        self._dice = np.random.default_rng(seed)
        self.is_random = policy is None
        self._reset: Any = None
        if self.is_random:
            return
        made = self._attempt(policy) if inspect.isclass(policy) else policy
        self._policy: Callable[..., Any] = getattr(made, "act", made)
        if not callable(self._policy):
            raise UsageError(f"the policy {name} cannot be called and has no method act", hint=_FORM)
        # Of a file alone, reset is a function beside act.
        of_file = made.__globals__.get("reset") if name.endswith(".py") else None
        self._reset = of_file if inspect.isroutine(made) else getattr(made, "reset", None)

    def begin(self, which: np.ndarray | None = None) -> None:
        """Tell a policy with state that an episode begins; of several environments, in ``which`` of them (bool)."""
        if callable(self._reset):
            self._attempt(self._reset, *([] if which is None else [which]))

    def _attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the user's code. Raises FunctionError with the user's traceback."""
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            message = f"the policy {self._name} failed: {type(error).__name__}: {reason(error)}"
            trace = error.__traceback__.tb_next if error.__traceback__ else None
            detail = "".join(traceback.format_exception(type(error), error, trace))
            hint = "try it on env.reset()[0] in Python"
            if self._count > 1:
                hint = f"with num_envs it gets {self._count} observations stacked, and returns {self._count} actions"
            raise FunctionError(message, hint=hint, detail=detail) from error

    def __call__(self, observations: Sequence[Any]) -> Sequence[Any]:
        """The actions to take, one for each observation.

        Raises UsageError for one outside the space's kind, FunctionError when the policy fails.
        """
        from gymnasium.vector.utils import iterate

        count = self._count if self._count > 1 else None
        if self.is_random:
            given = self._all.sample()
        else:
            # Stacked in separate memory: a policy may keep or change what it gets.
            seen = observations[0] if count is None else _stacked(self._observed, observations)
            given = self._attempt(self._policy, seen)
            given = check_action(given, self._space, count, f"the policy {self._name} returned")
        actions = [given] if count is None else list(iterate(self._all, given))
        if self._epsilon and not self.is_random:
            chosen = self._dice.random(len(actions)) < self._epsilon
            actions = [self._space.sample() if lot else one for lot, one in zip(chosen, actions)]
        return actions


def _stacked(space: gymnasium.Space, values: Sequence[Any]) -> Any:
    """Values of a space as vector environments give them."""
    from gymnasium.vector.utils import concatenate, create_empty_array

    room: Any = create_empty_array(space, len(values))
    return concatenate(space, values, room)


def check_action(action: Any, space: gymnasium.Space, count: int | None, what: str) -> Any:
    """An action as the space has it; with ``count`` those of ``count`` environments, stacked.

    Raises UsageError, which begins with ``what``, for a wrong structure, shape or kind of number, a Discrete action that does
    not exist, one that is not finite, and one that the dtype of the space does not hold. Box actions may lie outside the
    bounds: what happens then is the environment's affair.
    """
    try:
        return _checked(action, space, count)
    except (TypeError, ValueError, RuntimeError, KeyError, IndexError) as error:
        wanted = f"{space}" if count is None else f"{count} of {space}, stacked as the observations are"
        message = f"{what} {action!r:.80}: {reason(error)}"
        raise UsageError(message, hint=f"the environment takes {wanted}") from error


def _checked(action: Any, space: gymnasium.Space, count: int | None) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not isinstance(action, dict) or set(action) != set(space.spaces):
            raise TypeError(f"not a dict of {', '.join(space.spaces)}")
        return {key: _checked(action[key], inner, count) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(action, (tuple, list)) or len(action) != len(space.spaces):
            raise TypeError(f"not a tuple of {len(space.spaces)}")
        return tuple(_checked(one, inner, count) for one, inner in zip(action, space.spaces))
    if isinstance(space, spaces.Text):
        values = [action] if count is None else action
        if (count is not None and len(action) != count) or not all(space.contains(one) for one in values):
            raise ValueError("not a text of the space")
        return action
    return _checked_array(action, space, count)


def _checked_array(action: Any, space: gymnasium.Space, count: int | None) -> Any:
    from gymnasium import spaces

    array = as_array(action)
    assert space.shape is not None and space.dtype is not None
    shape = space.shape if count is None else (count, *space.shape)
    if array.shape != shape:
        raise ValueError(f"its shape is {array.shape}, not {shape}")
    if isinstance(space, spaces.Box):
        if array.dtype.kind not in "fiub":
            raise TypeError(f"its dtype is {array.dtype}, not {space.dtype}")
        if not np.isfinite(array).all():
            raise ValueError("it is not finite")
        return cast(array, space.dtype)
    if array.dtype.kind not in "iub":
        raise TypeError(f"its dtype is {array.dtype}, not a whole number")
    values = array.astype(space.dtype, copy=False)[()]  # of Discrete a number
    if not all(map(space.contains, [values] if count is None else values)):
        raise ValueError("there is no such action")
    return values
