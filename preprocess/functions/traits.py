"""What a built-in function declares about itself: how it is run, and which statistics it needs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from ...errors import FunctionError, UsageError

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase


#: Statistics of a part of the data: named tensors, mostly float64 sums and int64 counts.
Partial: TypeAlias = "dict[str, torch.Tensor]"
F = TypeVar("F", bound=Callable[..., Any])

#: Arguments that rbdata passes, not the user.
_PASSED = ("td", "statistics")


@dataclass(frozen=True)
class Fit:
    """A first pass over all data, for functions that need statistics of the whole dataset (means, quantiles).

    ``collect(td, **args)`` computes partial statistics of consecutive steps, or of one episode where the function runs per
    episode; ``merge(a, b)`` joins those of two neighbouring parts, in this order; ``finish(partial, **args)`` turns the total
    into a JSON object, which the function receives as ``statistics``. ``needed(**args)``: whether these arguments require
    the pass.
    """

    collect: Callable[..., Partial]
    merge: Callable[[Partial, Partial], Partial]
    finish: Callable[..., dict[str, Any]]
    needed: Callable[..., bool] = lambda **_: True


def fit_of_episodes(
    name: str, collect: Callable[..., torch.Tensor], finish: Callable[..., dict[str, Any]], needed: Callable[..., bool]
) -> Fit:
    """A first pass over the number ``collect(td, **args)`` of each episode; ``finish`` gets all of them under ``name``."""

    def merge(a: Partial, b: Partial) -> Partial:
        import torch

        return {name: torch.cat([a[name], b[name]])}

    return Fit(lambda td, **args: {name: collect(td, **args).reshape(1)}, merge, finish, needed)


@dataclass
class Traits:
    """The decorator of a built-in function ``fn(td, **args)``, and then its attribute ``traits``.

    - ``per``: what it must be given, any batch of steps or one whole episode.
    - ``fit``: the first pass it needs.
    - ``map_states(name, rows, **args)`` maps the state rows ``[n, ...]`` of one leaf as ``fn`` maps the leaf and its successor:
      states that are stored once are then mapped once. It returns ``rows`` itself for leaves that are not selected.
    - ``ignores_observations``: it does not read observations and keeps steps and episodes whole, so that compressed
      observations need not be decoded.
    - ``validate(**args)`` raises UsageError for invalid arguments, before a run and before every call.

    Wherever ``args`` are passed on to these, they are complete: the defaults are those of ``fn``.
    """

    per: Literal["batch", "episode"]
    fit: Fit | None = None
    map_states: Callable[..., torch.Tensor] | None = None
    ignores_observations: bool = False
    validate: Callable[..., object] = lambda **_: None
    name: str = field(init=False)
    signature: inspect.Signature = field(init=False)
    #: The function that is called: the decorated one with its checks.
    checked: Callable[..., Any] = field(init=False)

    def __call__(self, function: F) -> F:
        self.name, self.signature = function.__name__, inspect.signature(function)
        parameters = [one for one in self.signature.parameters.values() if one.name not in _PASSED]
        defaults = {one.name: one.default for one in parameters if one.default is not one.empty}

        def complete(declared: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *given, **args: declared(*given, **{**defaults, **args})

        self.validate = complete(self.validate)
        if self.map_states is not None:
            self.map_states = complete(self.map_states)
        if self.fit is not None:
            fit = self.fit
            self.fit = Fit(complete(fit.collect), fit.merge, complete(fit.finish), complete(fit.needed))

        @functools.wraps(function)
        def checked(td: TensorDictBase, **args: Any) -> Any:
            given = {name: value for name, value in args.items() if name not in _PASSED}
            self.check(**given)
            if self.fit is not None and self.fit.needed(**given) and args.get("statistics") is None:
                hint = "run it with rbdata.preprocess, or pass the statistics of a preprocessed dataset"
                raise UsageError(f"{self.name} has no statistics, which these arguments need", hint=hint)
            if self.per == "episode":
                _check_episode(td, self.name)
            return function(td, **args)

        vars(checked).update(traits=self)
        self.checked = checked
        return cast(F, checked)

    def check(self, **args: Any) -> None:
        """Raise UsageError unless the function can be called with these arguments."""
        parameters = self.signature.parameters
        accepted = [name for name in parameters if name not in _PASSED]
        unknown = [name for name in args if name not in accepted]
        if unknown:
            message = f"{self.name} takes no argument {', '.join(unknown)}"
            raise UsageError(message, hint=f"it takes {', '.join(accepted)}")
        missing = [
            name for name in accepted if parameters[name].default is inspect.Parameter.empty and name not in args
        ]
        if missing:
            message = f"{self.name} needs {', '.join(missing)}"
            given = " ".join(f"--args {name}=..." for name in missing)
            raise UsageError(message, hint=f"on the command line: {given}")
        self.validate(**args)

    def applies_to_states(self, td: TensorDictBase, *, keys: Any = None, **_: Any) -> bool:
        """Return whether ``map_states`` replaces the function: every leaf that ``keys`` selects has a successor in ``td``.

        Raises UsageError for missing keys.
        """
        if self.map_states is None:
            return False
        from .leaves import observations, select

        return set(select(td, keys)) <= set(observations(td))


def _check_episode(td: TensorDictBase, name: str) -> None:
    """Raise FunctionError unless ``td`` is one whole episode, as far as its flags tell."""
    done = td.get(("next", "done"), None) if td.batch_dims == 1 else None
    if done is None:
        what = f"batch size {list(td.batch_size)}" if td.batch_dims != 1 else "steps without ('next', 'done')"
    else:
        count = int(done.count_nonzero())
        if not len(td) or (count == done[-1].numel() and bool(done[-1].all())):
            return
        what = f"{len(td):,} steps of several" if count else "steps without the end of one"
    hint = 'run it with per="episode" (--per episode), or call it with dataset.episode(i)'
    raise FunctionError(f"{name} needs one whole episode, whose last step alone is done, and got {what}", hint=hint)


def traits_of(function: Callable[..., Any]) -> Traits | None:
    """Return the traits of a built-in function; None for any other.

    A user's function that wraps a built-in one (`functools.wraps`) has its attribute, but does something else.
    """
    traits = getattr(function, "traits", None)
    return traits if isinstance(traits, Traits) and traits.checked is function else None
