"""Policies that act while an environment is recorded: random actions, or a user's function.

A policy takes an observation and returns an action. For several environments it gets stacked observations, as from Gymnasium's
vector environments, and returns stacked actions (a Discrete action: int ``[num_envs]``).

It is a function, an object that is called or has a method ``act``, a class of such objects (one is made for a recording),
or a file with a function ``act``. Where it has a ``reset``, that is called when an episode begins: without arguments, of
several environments with bool ``[num_envs]``, the environments that begin one.

A policy's identity keeps recordings by different policies apart: for a policy given by name, the files that it is loaded from;
for an object, its content (`datasets.user_code`).
"""

from __future__ import annotations

import inspect
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import FunctionError, UsageError, is_interrupt, reason
from ...ingest.spaces import as_array, cast
from ...user_code_old.identity import (
    Content,
    defining_module,
    differing_values,
    hash_files,
    labelled,
    qualified_name,
)
from ...user_code_old.loading import load_module, note_opened_at_import
from ...user_code_old.process_state import own_turn
from .environments import PYTHON, short_digest

if TYPE_CHECKING:
    import gymnasium

RANDOM = "random"
_FORM = "a policy is 'random', 'package.module:name' or 'file.py:name' of a function or class, or a file.py with a function act"


def load_policy(text: str, *, fresh: bool = False) -> tuple[Any, ModuleType]:
    """What ``module:name``, ``file.py:name`` or ``file.py`` names (a function, class or object), and its module.

    With ``fresh`` a file is run again, so that its variables are as it sets them. Call it inside `environments.importable`.
    Raises UsageError for a policy that does not exist, cannot be imported or called, or was edited since the program imported
    it.
    """
    where, _, name = (text, "", "act") if text.endswith(".py") else text.rpartition(":")
    if not where or not name.isidentifier():
        raise UsageError(f"{text!r} names no function", hint=_FORM)
    try:
        module = load_module(where, Path.cwd(), text, _FORM, fresh=fresh)
    except FunctionError as error:
        refusal = UsageError(error.message, hint=error.hint)
        if not isinstance(error.__cause__, ModuleNotFoundError):
            refusal.detail = error.detail  # type: ignore[attr-defined]
        raise refusal from error
    policy = getattr(module, name, None)
    if policy is None:
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{where} has no {name!r}", hint=f"it has {', '.join(there[:8]) or 'no functions'}")
    if not callable(policy) and not callable(getattr(policy, "act", None)):
        raise UsageError(f"{text} is not a function but {type(policy).__name__}", hint=_FORM)
    return module if where == text else policy, module


def name_policy(policy: Any) -> str:
    """``module:name`` of a policy given as a Python object, or of its class; a policy given as text is its name."""
    if isinstance(policy, str):
        return policy
    named = policy if inspect.isroutine(policy) or inspect.isclass(policy) or inspect.ismodule(policy) else type(policy)
    return qualified_name(named)


def describe_policy_content(policy: Any) -> dict[str, Any]:
    """The identity of a policy, ``{content, values, file, files, python}``; for a module (a policy by name) its files only.

    ``content`` is None if the policy cannot be identified; ``why`` then says which part of it. Raises UsageError for code whose
    file was edited since it was imported.
    """
    content = Content("the policy", unpickled=True)
    digest: str | None = None
    why = None
    try:
        content.add(policy)
        digest = content.sha256
    except UsageError as error:
        why = error.message
    hashes, own = hash_files(content), defining_module(policy)
    files = labelled(hashes, content.files, own)
    found: dict[str, Any] = {"python": PYTHON, "file": hashes.get(str(own)), "files": files}
    if isinstance(policy, ModuleType):
        return found
    return {**found, "content": digest, "values": content.values, **({"why": why} if why else {})}


def changes_of_policy(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How a policy differs from the recorded one, in words."""
    labels = {"the policy's file": (before.get("file"), now.get("file"))}
    old, new = before.get("files") or {}, now.get("files") or {}
    labels |= {label: (old[label], new.get(label)) for label in old}
    changed = [
        f"contents of {label}" for label, (one, other) in labels.items() if None not in (one, other) and one != other
    ]
    if changed or "content" not in before or "content" not in now or before.get("python") != now["python"]:
        return changed
    if now["content"] is None:
        return [f"policy, as far as can be told ({now.get('why')})"]
    if now["content"] in (before["content"], before.get("content_after")):
        return []
    values = differing_values(before.get("values"), now["values"])
    named = f": {', '.join(values)}" if values else ""
    return [f"policy (sha256 {short_digest(before['content'])} there, {short_digest(now['content'])} here{named})"]


def _traceback(error: BaseException) -> str:
    """The traceback of what a user's policy raised, from the user's code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


class Actor:
    """Chooses actions for environments of one kind, and checks what a policy returns."""

    def __init__(self, envs: Sequence[Any], given: Mapping[str, Any]) -> None:
        from gymnasium.vector.utils import batch_space

        policy, seed = given["policy"], given["seed"]
        self._name = name_policy(policy)
        self._count, self._epsilon = (count := len(envs)), given["epsilon"]
        self._space: gymnasium.Space = envs[0].action_space
        self._observed: gymnasium.Space = envs[0].observation_space
        self._all: gymnasium.Space = self._space if count == 1 else batch_space(self._space, count)
        self._all.seed(seed)
        self._space.seed(seed + 1 if count > 1 else seed)
        self._dice = np.random.default_rng(seed)
        self._policy: Callable[..., Any] | None = None
        self._reset: Callable[..., Any] | None = None
        if isinstance(policy, str) and policy == RANDOM:
            return
        loaded = policy
        if isinstance(policy, str):
            loaded, module = load_policy(policy, fresh=True)
            changed = changes_of_policy(given["policy_content"], describe_policy_content(module))
            if changed:
                message = f"{' and '.join(changed)} was edited while the recording started"
                raise FunctionError(message.replace("contents of ", ""), hint="run it again")
            note_opened_at_import(given["policy_content"]["files"], [module.__name__])
        made = self._attempt(loaded) if inspect.isclass(loaded) else loaded
        act, reset = getattr(made, "act", None), getattr(made, "reset", None)
        self._policy = act if callable(act) else made
        self._reset = reset if callable(reset) and not inspect.isroutine(made) else None
        if not callable(self._policy):
            raise UsageError(f"the policy {self._name} cannot be called and has no method act", hint=_FORM)

    @property
    def is_random(self) -> bool:
        return self._policy is None

    def begin(self, which: np.ndarray | None = None) -> None:
        """Tell a policy with state that an episode begins; of several environments, in ``which`` of them (bool)."""
        if self._reset is not None:
            self._attempt(self._reset, *([] if which is None else [which]))

    def _attempt(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the user's code. Raises FunctionError with the user's traceback."""
        try:
            return function(*arguments)
        except BaseException as error:
            if is_interrupt(error):
                raise
            message = f"the policy {self._name} failed: {type(error).__name__}: {reason(error)}"
            hint = "try it on env.reset()[0] in Python"
            raise FunctionError(message, hint=hint, detail=_traceback(error)) from error

    def __call__(self, observations: Sequence[Any]) -> Sequence[Any]:
        """The actions to take, one for each observation.

        Raises UsageError for one outside the space's kind, FunctionError when the policy fails.
        """
        if self._count == 1:
            return (self._act(observations[0]),)
        from gymnasium.vector.utils import iterate

        # In separate memory: a policy may keep or change what it gets.
        stacked = None if self._policy is None else _stacked(self._observed, observations)
        return list(iterate(self._all, self._act(stacked)))

    def _act(self, observation: Any) -> Any:
        if self._policy is None:
            return self._all.sample()
        if self._epsilon and self._count == 1 and self._dice.random() < self._epsilon:
            return self._space.sample()
        given = self._attempt(self._policy, observation)
        count = self._count if self._count > 1 else None
        action = check_action(given, self._space, count, f"the policy {self._name} returned")
        return self._mixed(action) if self._epsilon and self._count > 1 else action

    def _mixed(self, actions: Any) -> Any:
        """Each action replaced, with probability epsilon, by a random one."""
        from gymnasium.vector.utils import iterate

        chosen = self._dice.random(self._count) < self._epsilon
        if not chosen.any():
            return actions
        items = [self._space.sample() if lot else one for lot, one in zip(chosen, iterate(self._all, actions))]
        return _stacked(self._space, items)


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
        wanted = f"{space}" if count is None else f"{count} of {space}, stacked"
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
    low, high = _limits(space)
    if count is None and not shape:
        value = int(array)
        if not low <= value < high:
            raise ValueError(f"it is not among {low}..{high - 1}")
        return np.int64(value)
    if ((array < low) | (array >= high)).any():
        raise ValueError("there is no such action")
    return array.astype(space.dtype, copy=False)


def _limits(space: Any) -> tuple[Any, Any]:
    """The smallest value, and one more than the largest."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start + space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec
    return 0, 2


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators of Python, numpy and torch start from a seed, for policies that draw from them; as before after.

    One thread is in here at a time.
    """
    with own_turn():
        states = random.getstate(), np.random.get_state()
        torch = sys.modules.get("torch")
        torch_state = torch.random.get_rng_state() if torch else None
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        if torch:
            torch.random.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            if torch:
                torch.random.set_rng_state(torch_state)
