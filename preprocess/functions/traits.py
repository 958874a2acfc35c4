"""What a ready-made function says about itself: how it must be run, and what it must know beforehand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ...errors import UsageError

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase

#: What is known of a part of the data: named tensors, float64 sums and int64 counts mostly.
Partial: TypeAlias = "dict[str, torch.Tensor]"
Per = Literal["batch", "episode"]
F = TypeVar("F", bound=Callable[..., Any])

#: Arguments that the core gives, not the user.
_GIVEN = ("td", "statistics")


@dataclass(frozen=True)
class Fit:
    """A first pass over all data, for functions that must know them as a whole (means, quantiles).

    ``collect(td, **args)`` of consecutive steps, or of one episode where the function runs per episode; ``merge(a, b)``
    joins what was collected of two neighbouring parts, in their order; ``finish(partial, **args)`` makes of it all what JSON
    can hold. The function gets that as ``statistics``. ``needed(**args)`` says whether these arguments want the pass at all.
    """

    collect: Callable[..., Partial]
    merge: Callable[[Partial, Partial], Partial]
    finish: Callable[..., dict[str, Any]]
    needed: Callable[..., bool] = lambda **_: True


@dataclass(frozen=True)
class Ready:
    """``per``: what it must be given, any batch of steps or whole episodes; ``states``, ``blind``: see `ready`."""

    name: str
    per: Per
    fit: Fit | None
    states: bool
    blind: bool
    signature: inspect.Signature
    validate: Callable[..., object] | None

    def check(self, **args: Any) -> None:
        """Raise UsageError unless the function can be called with these arguments."""
        takes = [name for name in self.signature.parameters if name not in _GIVEN]
        unknown = [name for name in args if name not in takes]
        if unknown:
            message = f"{self.name} takes no argument {', '.join(unknown)}"
            raise UsageError(message, hint=f"it takes {', '.join(takes)}")
        parameters = self.signature.parameters
        missing = [name for name in takes if parameters[name].default is inspect.Parameter.empty and name not in args]
        if missing:
            message = f"{self.name} needs {', '.join(missing)}"
            raise UsageError(message, hint=f"for example --args {missing[0]}=... on the command line")
        if self.validate is not None:
            self.validate(**args)

    def stateful(self, td: TensorDictBase, *, keys: Any = None, **_: Any) -> bool:
        """Whether ``on_state`` does all of it: every leaf that these arguments name has a successor in ``td``.

        Raises UsageError for keys that are not there.
        """
        if not self.states:
            return False
        from .checks import key_list
        from .leaves import named, observations

        wanted = key_list("keys", keys)
        return wanted is None or set(named(td, wanted)) <= set(observations(td))


def ready(
    per: Per,
    *,
    fit: Fit | None = None,
    on_state: Callable[..., torch.Tensor] | None = None,
    blind: bool = False,
    check: Callable[..., object] | None = None,
) -> Callable[[F], F]:
    """Mark ``fn(td, **args)`` as ready-made: it gets the attribute ``ready``.

    ``on_state(name, rows, **args)`` does to the state rows ``[n, ...]`` of one leaf what ``fn`` does to the leaf and to its
    successor: where states are stored once they need to be changed only once. It returns the rows themselves where the
    leaf is none of its business. ``blind``: it works without observations, and on whole steps or episodes as they are: where
    they are compressed they need not be decoded. ``check(**args)`` raises UsageError for arguments that make no sense.
    """

    def mark(function: F) -> F:
        signature = inspect.signature(function)
        record = Ready(function.__name__, per, fit, on_state is not None, blind, signature, check)
        vars(function).update(ready=record, on_state=on_state)
        return function

    return mark
