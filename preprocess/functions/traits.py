"""What a built-in function declares about itself: how it is run, and which statistics it needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ...errors import UsageError

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


@dataclass(frozen=True)
class Traits:
    """The attribute ``traits`` of a built-in function; the arguments of `builtin`, its name and its signature."""

    name: str
    per: Literal["batch", "episode"]
    fit: Fit | None
    map_states: Callable[..., torch.Tensor] | None
    ignores_observations: bool
    signature: inspect.Signature
    validate: Callable[..., object] | None

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
            raise UsageError(message, hint=f"for example --args {missing[0]}=... on the command line")
        if self.validate is not None:
            self.validate(**args)

    def applies_to_states(self, td: TensorDictBase, *, keys: Any = None, **_: Any) -> bool:
        """Whether ``map_states`` replaces the function: every leaf that ``keys`` selects has a successor in ``td``.

        Raises UsageError for missing keys.
        """
        if self.map_states is None:
            return False
        from .checks import key_list
        from .leaves import named, observations

        selected = key_list("keys", keys)
        return selected is None or set(named(td, selected)) <= set(observations(td))


def builtin(
    per: Literal["batch", "episode"],
    *,
    fit: Fit | None = None,
    map_states: Callable[..., torch.Tensor] | None = None,
    ignores_observations: bool = False,
    check: Callable[..., object] | None = None,
) -> Callable[[F], F]:
    """Mark ``fn(td, **args)`` as a built-in function: it gets the attribute ``traits``.

    - ``per``: what it must be given, any batch of steps or one whole episode.
    - ``fit``: the first pass it needs.
    - ``map_states(name, rows, **args)`` maps the state rows ``[n, ...]`` of one leaf as ``fn`` maps the leaf and its successor:
      states that are stored once are then mapped once. It returns ``rows`` itself for leaves that are not selected.
    - ``ignores_observations``: it does not read observations and keeps steps and episodes whole, so that compressed
      observations need not be decoded.
    - ``check(**args)`` raises UsageError for invalid arguments.
    """

    def mark(function: F) -> F:
        signature = inspect.signature(function)
        traits = Traits(function.__name__, per, fit, map_states, ignores_observations, signature, check)
        vars(function).update(traits=traits)
        return function

    return mark


def traits_of(function: Callable[..., Any]) -> Traits | None:
    """The traits of a built-in function; None for any other."""
    traits = getattr(function, "traits", None)
    return traits if isinstance(traits, Traits) else None
