"""What a built-in function declares about itself: how it is run, and which statistics it needs.

The fingerprint of a run contains the module, the source hash and the file hash of each function. Those of a built-in function
are fixed here, so that renaming its module or editing its documentation does not invalidate datasets and interrupted runs.
When a change alters the results of a function, remove its line: it is then identified by its current source, like any
function. New functions need no line.
"""

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


#: Name -> module that held it, sha256 of its source.
_SOURCES = {
    "clip_rewards": ("rewards", "85d53f2514ba68d8a333fbb3d0f69a174ff0e756c0dfeacba258f79385ba4c0e"),
    "filter_episodes": ("filter", "ca60d2219a37f8fd656d1002f584b2f354095008247a66a12e5d4f20edb42c1f"),
    "grayscale": ("grey", "f5f583eff9a17d30538ec44047cd17c85929b27574ec98b04094dfe8ff7a28ba"),
    "n_step": ("multi_step", "000a9b3dfcc22cdf56cc8928451df9a7e84ea34adaba6545d1e6336c202131b0"),
    "normalize_observations": ("normalize", "c570e41cb5720ef96572bbec89b2808dabcfba99f2a38a5b3b865c4318020654"),
    "relabel_rewards": ("relabel", "aaa8bb5223f65a813c53990b85d4e77dc4fc5eae12a967eda6ff876921e2fa94"),
    "resize_frames": ("resize", "6cf88b04f9ff2523431e40eb22c6d612238101509078dc30f24d6bd00403aa5a"),
    "returns_to_go": ("returns", "8d25bd6021247d0d8b0717b7e96087c01222f88f3c7fd7d821088672671e0ac6"),
    "scale_rewards": ("rewards", "fc87e13853ecf2cee8b10fb4b7be4e8eeefea6989212ba3f10f15e36f52c69cd"),
    "select_keys": ("select", "2ff155ae0b1e5f9a2ede927042727670dcb52bf2f51e5077b6d4160a021cae54"),
    "subsample": ("thin", "e85b27d06f8fb4ad24dae785976630fcf85861db7d4aa88b7ebdf0928ba78264"),
    "to_float": ("cast", "73db1dbe010419760fe53402dbab52274c59909a957af22f8829ae90e04ed44f"),
}
#: Module -> sha256 of its file.
_FILES = {
    "rewards": "d4e130ef2dfecba5cbb4a88b48447c2a10c9e58d3f2075d63374f65c62571222",
    "filter": "c79feebbfe7c48573ef1ca3ec2b9379141afb2de769cca8ff9c95c218ee01de9",
    "grey": "877f02422f658ee6b91529a4435751a6671632bb3e479c6bb37fa08783c1697e",
    "multi_step": "100adaedb99b1ac220eb546d149eea2e19090df6527f38eeeeb520ba0ea97c7b",
    "normalize": "9419b31ff96c48627d2f8738db7bf67bc3171f31d65a714c092796fcfdfef0b5",
    "relabel": "9b4b0d0a3fcece5397da91ffba4a5ff8ee56a36bd059cd0e9d58135d926d7cbf",
    "resize": "0d2d38fbe7c003b42752bed3ea7dbc5b4f5eb2f1f98a1fdea13c52ca4ab0e310",
    "returns": "84d13e2f5f7370d5ffd54e3f7ce1f3d762294e16597040192e91ff5b8a382a6a",
    "select": "826ceac2833519df41d2d98e9a1440baa080b3b363307da3154a1958f811e91e",
    "thin": "45f22a9792023f1ef23b128fbe2c053c0dc7223324717c2bf844e7e67fc4f3bc",
    "cast": "d631e62790543afce4fc2097cf4f85e71377b84976ca27a88218334f1f691604",
}


def recorded_identity(name: str) -> tuple[str, str, str] | None:
    """Qualified name, content hash and file hash of a built-in function; None where they are not fixed."""
    if name not in _SOURCES:
        return None
    module, source = _SOURCES[name]
    return f"{__package__}.{module}:{name}", source, _FILES[module]


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
        """Whether ``map_states`` replaces the function: every leaf that ``keys`` selects has a successor in ``td``.

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
    """The traits of a built-in function, or of a partial of one; None for any other.

    A user's function that wraps a built-in one (`functools.wraps`) has its attribute, but does something else.
    """
    while isinstance(function, functools.partial):
        function = function.func
    traits = getattr(function, "traits", None)
    return traits if isinstance(traits, Traits) and traits.checked is function else None
