"""Specs: the allowed values of the tensors of a key. The classes have the names of TorchRL's, and do not need TorchRL.

    Bounded                       numbers between two bounds, both included
    Unbounded                     every number of the dtype
    Categorical, OneHot           one of n choices: its number, or a row of n zeros with a single one
    MultiCategorical, MultiOneHot a row of several such choices
    Binary                        zeros and ones
    Composite                     specs by key, as a TensorDict has tensors

A value has the dtype of its spec, and its last dimensions are the shape of the spec; there may be others before them. A spec is
for asking what a network must produce and whether values are right. What it leaves out (masks, encodings, indices of specs)
is TorchRL's: ``spec.to_torchrl()``. `specs` makes the specs of a dataset.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..errors import MissingExtraError, SchemaError, UnknownKeyError, UsageError

__all__ = ["Binary", "Bounded", "Categorical", "Composite", "MultiCategorical", "MultiOneHot", "OneHot", "TensorSpec"]
__all__ += ["Unbounded"]

Shape: TypeAlias = int | Sequence[int]
Device: TypeAlias = torch.device | str | int | None
#: A bound: a number, a list, an array or a tensor.
Numbers: TypeAlias = Any

_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


class ContinuousBox(NamedTuple):
    """The ``space`` of Bounded and Unbounded: the smallest and the largest values."""

    low: Tensor
    high: Tensor


class CategoricalBox(NamedTuple):
    """The ``space`` of Categorical and OneHot: the number of choices; MultiCategorical and MultiOneHot have a tuple of them."""

    n: int


class TensorSpec:
    """Base of all specs. Methods return another spec; only the keys of a Composite can be set."""

    _shape: torch.Size
    _device: torch.device | None
    _dtype: torch.dtype | None = None
    #: The arguments of the constructor beside shape, device and dtype, which are attributes.
    _own: tuple[str, ...] = ()

    @property
    def shape(self) -> torch.Size:
        """The last dimensions of the values; of a Composite, the first dimensions of all its values."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of dimensions of the shape."""
        return len(self._shape)

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the values; None for a Composite."""
        return self._dtype

    @property
    def device(self) -> torch.device | None:
        """Where values are made; those on other devices are checked all the same. None for a Composite that leaves it open."""
        return self._device

    @property
    def domain(self) -> str:
        """Either "continuous" (Bounded and Unbounded of floating-point numbers), "discrete" or "composite"."""
        if isinstance(self, Composite):
            return "composite"
        numbers = isinstance(self, (Bounded, Unbounded)) and self._dtype.is_floating_point
        return "continuous" if numbers else "discrete"

    def rand(self, shape: Shape = ()) -> Any:
        """Return a random value of ``[*shape, *spec.shape]``, by torch's global generator.

        Uniform between bounds; normal without, and exponential from the one bound where there is no other. Whole numbers
        without bounds are uniform over the dtype.
        """
        raise NotImplementedError

    def zero(self, shape: Shape = ()) -> Any:
        """Return zeros of ``[*shape, *spec.shape]``, whether or not they are in the spec."""
        return torch.zeros((*_size(shape), *self._shape), dtype=self._dtype, device=self._device)

    def one(self, shape: Shape = ()) -> Any:
        """Return ones of ``[*shape, *spec.shape]``, whether or not they are in the spec."""
        return torch.ones((*_size(shape), *self._shape), dtype=self._dtype, device=self._device)

    def is_in(self, value: Any) -> bool:
        """Return whether dtype, last dimensions and numbers of ``value`` are those of the spec; NaN is outside any bounds.

        A Composite takes TensorDicts and dicts, and ignores further keys. Raises UsageError for other types.
        """
        return self._fault(value) is None

    def assert_is_in(self, value: Any) -> None:
        """Raise SchemaError for a value outside the spec; its message states the fault."""
        fault = self._fault(value)
        if fault is not None:
            raise SchemaError(f"the value is not in the spec: {fault}", hint="spec.project(value) is in it")

    def _fault(self, value: Any) -> str | None:
        """Why a value is not in the spec; None if it is."""
        raise NotImplementedError

    def project(self, value: Any) -> Any:
        """``value`` itself if it is in the spec, otherwise a value near it that is; ``value`` is not changed.

        Numbers are rounded and limited; rows of OneHot are drawn by their weights. Raises UsageError for a shape that does not
        fit, SchemaError for NaN.
        """
        raise NotImplementedError

    def expand(self, *shape: Any) -> Self:
        """Return the spec of values that are expanded, as `torch.Tensor.expand`. Raises UsageError if they cannot be."""
        raise NotImplementedError

    def to(self, dest: torch.dtype | Device) -> Self:
        """Return the spec of another dtype or device. Raises UsageError for a dtype that cannot hold the values."""
        raise NotImplementedError

    def cpu(self) -> Self:
        """Return the spec of the CPU."""
        return self.to("cpu")

    def clone(self) -> Self:
        """Return a copy that shares nothing with the spec."""
        return copy.deepcopy(self)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, TensorSpec):
            return False
        same = (self._shape, self._dtype, self._device) == (other._shape, other._dtype, other._device)
        return same and all(_are_equal(getattr(self, name), getattr(other, name)) for name in self._own)

    def to_torchrl(self) -> Any:
        """Return the same as one of TorchRL's specs. Raises MissingExtraError without torchrl."""
        raise NotImplementedError

    def _expanded(self, shape: tuple[Any, ...]) -> torch.Size:
        try:
            return torch.empty(self._shape, device="meta").expand(*shape).shape
        except (RuntimeError, TypeError) as error:
            raise UsageError(f"{type(self).__name__} of shape {list(self._shape)}: {error}") from error


class _LeafSpec(TensorSpec):
    """The spec of one tensor. A derived class says which numbers it holds, and makes such."""

    _device: torch.device
    _dtype: torch.dtype

    def __init__(self, shape: Shape, device: Device, dtype: torch.dtype | None) -> None:
        self._shape, self._device = _size(shape), _device(device)
        self._dtype = torch.get_default_dtype() if dtype is None else dtype
        if self._dtype not in _DTYPES:
            raise UsageError(f"there are no specs of dtype {dtype}", hint=f"there are {', '.join(map(str, _DTYPES))}")

    def _arguments(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self._own}
        return {"shape": self._shape, **own, "device": self._device, "dtype": self._dtype}

    def _fault(self, value: Any) -> str | None:
        if not isinstance(value, Tensor):
            raise UsageError(f"{type(value).__name__} is not a tensor", hint="torch.as_tensor(value) makes one of it")
        if value.dtype != self._dtype:
            return f"its dtype is {value.dtype}, not {self._dtype}"
        if not self._fits(value.shape):
            return f"its shape {list(value.shape)} does not end with {list(self._shape)}"
        return None if self._holds(value) else f"a number of it is outside {self}"

    def _fits(self, shape: torch.Size) -> bool:
        return len(shape) >= self.ndim and shape[len(shape) - self.ndim :] == self._shape

    def project(self, value: Tensor) -> Tensor:
        if self._fault(value) is None:
            return value
        if not self._fits(value.shape) or value.dtype not in _DTYPES:
            raise UsageError(
                f"{value.dtype} {list(value.shape)} cannot become {self._dtype} [..., {list(self._shape)}]"
            )
        if value.is_floating_point() and value.isnan().any():
            raise SchemaError("no value of the spec is near NaN")
        return self._project(value)

    def _holds(self, value: Tensor) -> bool:
        """Whether the numbers of a value of the right dtype and shape are allowed."""
        raise NotImplementedError

    def _project(self, value: Tensor) -> Tensor:
        """A value of the right shape that is not in the spec, made one that is."""
        raise NotImplementedError

    def expand(self, *shape: Any) -> Self:
        return type(self)(**{**self._arguments(), "shape": self._expanded(shape)})

    def to(self, dest: torch.dtype | Device) -> Self:
        change = {"dtype": dest} if isinstance(dest, torch.dtype) else {"device": _device(dest)}
        unchanged = dest is None or change in ({"dtype": self._dtype}, {"device": self._device})
        return self if unchanged else type(self)(**{**self._arguments(), **change})

    def to_torchrl(self) -> Any:
        return getattr(_torchrl(), type(self).__name__)(**self.clone()._arguments())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(one)}' for name, one in self._arguments().items())})"


class Bounded(_LeafSpec):
    """Numbers between ``low`` and ``high``, both included; the default dtype is `torch.get_default_dtype`.

    The bounds are numbers, arrays or tensors, broadcast to ``shape``; where they have dimensions, the shape may be left out.
    Raises UsageError for bounds that the dtype cannot hold, NaN, and a low above its high.
    """

    _own = ("low", "high")
    low: Tensor
    high: Tensor

    def __init__(
        self,
        low: Numbers,
        high: Numbers,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        try:
            bounds = [torch.as_tensor(np.asarray(one) if not isinstance(one, Tensor) else one) for one in (low, high)]
        except (ValueError, TypeError) as error:
            raise UsageError(f"bounds are numbers, not {low!r:.40} and {high!r:.40}") from error
        if shape is None:
            if not any(bound.ndim for bound in bounds):
                raise UsageError("the shape of Bounded is not known", hint="Bounded(low, high, shape=...)")
            shape = torch.broadcast_shapes(*(bound.shape for bound in bounds))
        super().__init__(shape, device, dtype)
        try:
            stated = [_converted(bound, self._dtype, "bounds").expand(self._shape) for bound in bounds]
        except RuntimeError as error:
            raise UsageError(f"bounds for a spec of shape {list(self._shape)}: {error}") from error
        if not (stated[0] <= stated[1]).all():
            raise UsageError("a lower bound is above its upper bound, or a bound is NaN")
        self.low, self.high = (bound.to(self._device, copy=True) for bound in stated)

    @property
    def space(self) -> ContinuousBox:
        """The bounds."""
        return ContinuousBox(self.low, self.high)

    def rand(self, shape: Shape = ()) -> Tensor:
        full = (*_size(shape), *self._shape)
        if not self._dtype.is_floating_point:
            return _whole_numbers(self.low, self.high, full).to(self._device)
        low, high = self.low.double(), self.high.double()
        share = torch.rand(full, dtype=torch.float64, device=self._device)
        drawn = low * (1 - share) + high * share  # the difference of the bounds may be too large for the dtype
        if not drawn.isfinite().all():
            normal, distance = torch.randn_like(share), torch.empty_like(share).exponential_()
            below = torch.where(high.isfinite(), high - distance, normal)
            one_sided = torch.where(low.isfinite(), low + distance, below)
            drawn = torch.where(low.isfinite() & high.isfinite(), drawn, one_sided)
        return drawn.clamp(low, high).to(self._dtype)

    def _holds(self, value: Tensor) -> bool:
        low, high = self.low.to(value.device), self.high.to(value.device)
        return bool(((value >= low) & (value <= high)).all())

    def _project(self, value: Tensor) -> Tensor:
        return _nearest(value, self.low, self.high)


class Unbounded(_LeafSpec):
    """All numbers of a dtype, NaN and infinities included; by default `torch.get_default_dtype`, and the shape ``[1]``."""

    def __init__(self, shape: Shape = (1,), device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(shape, device, dtype)

    @property
    def space(self) -> ContinuousBox:
        """The smallest and the largest finite number of the dtype."""
        kind = torch.finfo if self._dtype.is_floating_point else torch.iinfo
        ends = (False, True) if self._dtype == torch.bool else (kind(self._dtype).min, kind(self._dtype).max)
        low, high = (torch.tensor(end, dtype=self._dtype, device=self._device).expand(self._shape) for end in ends)
        return ContinuousBox(low, high)

    def rand(self, shape: Shape = ()) -> Tensor:
        full = (*_size(shape), *self._shape)
        if self._dtype.is_floating_point:
            return torch.randn(full, dtype=self._dtype, device=self._device)
        return _whole_numbers(*self.space, full).to(self._device)

    def _holds(self, value: Tensor) -> bool:
        return True

    def _project(self, value: Tensor) -> Tensor:
        return value.to(self._dtype) if self._dtype.is_floating_point else _nearest(value, *self.space)


class Categorical(_LeafSpec):
    """One of ``n`` choices: a whole number from 0 to n - 1. The default shape is ``[]``, the default dtype int64.

    Raises UsageError for a dtype that cannot hold the numbers.
    """

    _own: tuple[str, ...] = ("n",)
    n: int

    def __init__(
        self, n: int, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.int64
    ) -> None:
        super().__init__(() if shape is None else shape, device, dtype)
        (self.n,) = _counts([n], self._dtype)

    @property
    def space(self) -> Any:
        """The number of choices, as a CategoricalBox; a tuple of them for several choices."""
        return CategoricalBox(self.n)

    def _last(self) -> Tensor:
        """The numbers of the last choices, in the shape of a value, int64."""
        return torch.tensor(self.n - 1, device="cpu").expand(self._shape)

    def rand(self, shape: Shape = ()) -> Tensor:
        last = self._last()
        drawn = _whole_numbers(torch.zeros_like(last), last, (*_size(shape), *self._shape))
        return drawn.to(self._device, self._dtype)

    def _holds(self, value: Tensor) -> bool:
        whole = not value.is_floating_point() or bool((value == value.round()).all())
        return whole and bool(((value >= 0) & (value <= self._last().to(value.device))).all())

    def _project(self, value: Tensor) -> Tensor:
        last = self._last()
        return _nearest(value, torch.zeros_like(last), last).to(self._dtype)


class MultiCategorical(Categorical):
    """A row of choices: ``nvec[i]`` of the i-th, a whole number from 0 to nvec[i] - 1. The default dtype is int64.

    The last dimension of ``shape``, which is ``[len(nvec)]`` by default, has the choices.
    """

    _own = ("nvec",)
    nvec: tuple[int, ...]

    def __init__(
        self, nvec: Sequence[int], shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.int64
    ) -> None:
        self.nvec = _counts(nvec, dtype)
        _LeafSpec.__init__(self, len(self.nvec) if shape is None else shape, device, dtype)
        _check_last(self, len(self.nvec))

    @property
    def space(self) -> tuple[CategoricalBox, ...]:
        """The numbers of choices."""
        return tuple(map(CategoricalBox, self.nvec))

    def _last(self) -> Tensor:
        return torch.tensor([n - 1 for n in self.nvec], device="cpu").expand(self._shape)


class Binary(Categorical):
    """Zeros and ones. The shape is ``[n]`` or stated; the default dtype is int8."""

    _own = ()

    def __init__(
        self, n: int | None = None, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.int8
    ) -> None:
        if n is None and shape is None:
            raise UsageError("the shape of Binary is not known", hint="Binary(n) or Binary(shape=...)")
        super().__init__(2, n if shape is None else shape, device, dtype)
        if n is not None:
            _check_last(self, n)


class OneHot(_LeafSpec):
    """One of ``n`` choices: a row of zeros with a single one. The default shape is ``[n]``, the default dtype bool."""

    _own: tuple[str, ...] = ("n",)
    n: int

    def __init__(
        self, n: int, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.bool
    ) -> None:
        (self.n,) = self._widths = _counts([n])
        self._start(shape, device, dtype)

    def _start(self, shape: Shape | None, device: Device, dtype: torch.dtype) -> None:
        size = sum(self._widths)
        super().__init__(size if shape is None else shape, device, dtype)
        _check_last(self, size)

    #: The number of values of each choice.
    _widths: tuple[int, ...]

    @property
    def space(self) -> Any:
        """The number of choices, as a CategoricalBox; a tuple of them for several choices."""
        return CategoricalBox(self.n)

    def rand(self, shape: Shape = ()) -> Tensor:
        return self._project(torch.ones((*_size(shape), *self._shape), device=self._device))

    def _holds(self, value: Tensor) -> bool:
        single = [(one.sum(-1) == 1).all() for one in value.split(self._widths, -1)]
        return bool(((value == 0) | (value == 1)).all()) and all(map(bool, single))

    def _project(self, value: Tensor) -> Tensor:
        """Rows of weights, of which one is drawn for each choice; all alike where all are zero."""
        chosen = []
        for weights in value.double().clamp(0, 1e30).split(self._widths, -1):
            rows = weights.reshape(-1, weights.shape[-1])
            drawn = torch.multinomial(rows + ~rows.any(-1, keepdim=True), 1) if len(rows) else rows[:, :1].long()
            chosen.append(torch.zeros_like(rows).scatter_(1, drawn, 1).reshape(weights.shape))
        return torch.cat(chosen, -1).to(self._dtype)


class MultiOneHot(OneHot):
    """A row of choices: for each the zeros and the single one of `OneHot`, one after the other. The default dtype is bool.

    ``nvec`` has the numbers of choices; the last dimension of ``shape`` is their sum.
    """

    _own = ("nvec",)
    nvec: tuple[int, ...]

    def __init__(
        self, nvec: Sequence[int], shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.bool
    ) -> None:
        self.nvec = self._widths = _counts(nvec)
        self._start(shape, device, dtype)

    @property
    def space(self) -> tuple[CategoricalBox, ...]:
        """The numbers of choices."""
        return tuple(map(CategoricalBox, self.nvec))


class Composite(TensorSpec):
    """Specs by key; a key may be a tuple that leads into nested ones.

    - ``shape`` (also ``batch_size``): the first dimensions of all values, which are the batch size of TensorDicts.
    - ``device``: that to which all specs are moved; None (the default) leaves it to each.

    Specs are given as one mapping, whose nested mappings become Composites, or as keywords. Of a key whose spec is None
    everything is in the spec. Raises UsageError for a spec whose shape does not begin with that of the Composite.
    """

    def __init__(
        self,
        specs: Mapping[Any, Any] | Composite | None = None,
        *,
        shape: Shape | None = None,
        batch_size: Shape | None = None,
        device: Device = None,
        **keys: TensorSpec | Mapping[Any, Any] | None,
    ) -> None:
        if shape is not None and batch_size is not None:
            raise UsageError("shape and batch_size are the same: state one")
        self._shape = _size(next((one for one in (shape, batch_size) if one is not None), ()))
        self._device = None if device is None else _device(device)
        self._specs: dict[str, Any] = {}
        if specs is not None and not isinstance(specs, (Mapping, Composite)):
            raise UsageError(f"{type(specs).__name__} is not a mapping from keys to specs")
        for key, spec in [*(specs.items() if specs is not None else ()), *keys.items()]:
            self[key] = spec

    @property
    def batch_size(self) -> torch.Size:
        """The same as ``shape``."""
        return self._shape

    # -- the specs by key ------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        found: Any = self
        for part in key if isinstance(key, tuple) else (key,):
            if not isinstance(found, Composite) or part not in found._specs:
                names = ", ".join(map(str, self.keys(True)))
                raise UnknownKeyError(f"there is no spec {key!r}", hint=f"there are {names}")
            found = found._specs[part]
        return found

    def __setitem__(self, key: Any, spec: TensorSpec | Mapping[Any, Any] | None) -> None:
        path = key if isinstance(key, tuple) else (key,)
        if not path or not all(isinstance(part, str) for part in path):
            raise UsageError(f"{key!r} is not a key: a string, or a tuple of strings")
        first, rest = path[0], path[1:]
        if rest:
            inner = self._specs.get(first, Composite(shape=self._shape, device=self._device))
            if not isinstance(inner, Composite):
                raise UsageError(f"{first!r} is the key of a spec: there cannot be others below it")
            inner[rest] = spec
            spec = inner
        elif isinstance(spec, Mapping):
            spec = Composite(spec, shape=self._shape, device=self._device)
        if spec is not None and not isinstance(spec, TensorSpec):
            raise UsageError(f"{first}: {type(spec).__name__} is not a spec of rbdata")
        if spec is not None and spec.shape[: self.ndim] != self._shape:
            raise UsageError(f"{first}: a spec of shape {list(spec.shape)} in a Composite of shape {list(self._shape)}")
        self._specs[first] = spec if spec is None else spec.to(self._device)

    def __contains__(self, key: Any) -> bool:
        return key in self.keys(True)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._specs))

    def __len__(self) -> int:
        return len(self._specs)

    def items(self, include_nested: bool = False, leaves_only: bool = False) -> list[tuple[Any, Any]]:
        """Return keys and specs; ``include_nested``: those in nested ones too, ``leaves_only`` those of no Composite."""
        found: list[tuple[Any, Any]] = []
        for key, spec in self._specs.items():
            inner = isinstance(spec, Composite)
            if not (inner and leaves_only):
                found.append((key, spec))
            if inner and include_nested:
                below = spec.items(True, leaves_only)
                found += [((key, *(one if isinstance(one, tuple) else (one,))), part) for one, part in below]
        return found

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """Return the keys of `items`: strings, and tuples of them for nested ones."""
        return [key for key, _ in self.items(include_nested, leaves_only)]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """Return the specs of `items`."""
        return [spec for _, spec in self.items(include_nested, leaves_only)]

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the spec of a key; ``default`` if there is none."""
        try:
            return self[key]
        except UnknownKeyError:
            return default

    # -- values ----------------------------------------------------------------------------------------------------------

    def rand(self, shape: Shape = ()) -> TensorDict:
        return self._made(shape, lambda spec: spec.rand(shape))

    def zero(self, shape: Shape = ()) -> TensorDict:
        return self._made(shape, lambda spec: spec.zero(shape))

    def one(self, shape: Shape = ()) -> TensorDict:
        return self._made(shape, lambda spec: spec.one(shape))

    def _made(self, shape: Shape, make: Callable[[TensorSpec], Any]) -> TensorDict:
        values = {key: make(spec) for key, spec in self._specs.items() if spec is not None}
        return TensorDict(values, batch_size=[*_size(shape), *self._shape], device=self._device)

    def project(self, value: Any) -> Any:
        """Return the value itself if it is in the spec, otherwise a shallow copy with other tensors for keys that are not."""
        if self._fault(value) is None:
            return value
        projected = value.copy()
        for key, spec in self._specs.items():
            if spec is not None and not (isinstance(spec, Composite) and spec.is_in({})):
                projected[key] = spec.project(value[key])
        return projected

    def _fault(self, value: Any) -> str | None:
        if not isinstance(value, (Mapping, TensorDictBase)):
            raise UsageError(f"{type(value).__name__} has no keys: a TensorDict or a dict is expected")
        for key, spec in self._specs.items():
            inner = value.get(key, {} if isinstance(spec, Composite) else None)
            if spec is None:
                continue
            if inner is None:
                return f"{key} is missing"
            if isinstance(spec, Composite) and isinstance(inner, Tensor):
                return f"{key} is a tensor, with no keys below it"
            fault = spec._fault(inner)
            if fault is not None:
                return f"{key}: {fault}"
        return None

    # -- the Composite itself --------------------------------------------------------------------------------------------

    def _changed(self, change: Callable[[Any], Any]) -> Self:
        changed = copy.copy(self)
        changed._specs = {key: None if spec is None else change(spec) for key, spec in self._specs.items()}
        return changed

    def expand(self, *shape: Any) -> Self:
        full = self._expanded(shape)
        changed = self._changed(lambda spec: spec.expand(*full, *spec.shape[self.ndim :]))
        changed._shape = full
        return changed

    def to(self, dest: torch.dtype | Device) -> Self:
        if dest is None:
            return self
        changed = self._changed(lambda spec: spec.to(dest))
        if not isinstance(dest, torch.dtype):
            changed._device = _device(dest)
        return changed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Composite) and super().__eq__(other) and self._specs == other._specs

    def to_torchrl(self) -> Any:
        specs = {key: None if spec is None else spec.to_torchrl() for key, spec in self._specs.items()}
        return _torchrl().Composite(specs, shape=self._shape, device=self._device)

    def __repr__(self) -> str:
        lines = [f"{key}: {spec!r}".replace("\n", "\n    ") for key, spec in self._specs.items()]
        lines += [f"device={self._device}", f"shape={self._shape}"]
        return f"{type(self).__name__}(\n    " + ",\n    ".join(lines) + ")"


# -- arguments and numbers -----------------------------------------------------------------------------------------------


def _size(shape: Shape) -> torch.Size:
    given: Any = [shape] if np.ndim(shape) == 0 else shape
    try:
        sizes = [operator.index(one) for one in given]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{shape!r} is not a shape: a whole number, or a sequence of them") from error
    if any(size < 0 for size in sizes):
        raise UsageError(f"shape {sizes}: sizes cannot be negative")
    return torch.Size(sizes)


def _device(device: Device) -> torch.device:
    found = torch.get_default_device() if device is None else torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def _counts(counts: Any, dtype: torch.dtype = torch.int64) -> tuple[int, ...]:
    """Numbers of choices. Raises UsageError where a dtype does not hold all choices."""
    try:
        found = tuple(map(operator.index, counts))
    except TypeError as error:
        raise UsageError(f"numbers of choices are whole numbers, not {counts!r:.80}") from error
    if dtype not in _DTYPES or not found or not all(1 <= count < 2**63 for count in found):
        raise UsageError(f"{found!s:.80} choices of {dtype}: each has at least 1, and fewer than 2**63")
    whole = 1 if dtype == torch.bool else None if dtype.is_floating_point else torch.iinfo(dtype).max
    most = int(2 / torch.finfo(dtype).eps) if whole is None else whole
    if max(found) - 1 > most:
        raise UsageError(f"{dtype} cannot hold {max(found) - 1:,}, the number of a choice")
    return found


def _check_last(spec: TensorSpec, size: int) -> None:
    if spec.shape[-1:] != (size,):
        message = f"a {type(spec).__name__} of shape {list(spec.shape)}: its last dimension must be {size}"
        raise UsageError(message, hint="that dimension holds the choices")


def _converted(tensor: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """A tensor of another dtype. Raises UsageError for numbers that it cannot hold; fractions of floats are rounded."""
    converted = tensor.to(dtype)
    if tensor.is_floating_point() and dtype.is_floating_point:
        lossy = converted.isinf() & tensor.isfinite()
    else:  # the way back is not enough: -1 of int8 is 255 of uint8
        lossy = (converted.to(tensor.dtype) != tensor) | ((converted < 0) != (tensor < 0))
    if lossy.any():
        raise UsageError(f"{dtype} cannot hold {what} such as {tensor[lossy][0].item()}")
    return converted


def _nearest(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The numbers nearest to those of ``value`` between ``low`` and ``high``, in the dtype of these."""
    # 64 bits: a bound, or a number beyond the bounds, may be too large for the other dtype.
    wide = value.double() if value.is_floating_point() else value.long()
    wide = wide.round() if value.is_floating_point() and not low.is_floating_point() else wide
    low, high = low.to(value.device), high.to(value.device)
    return torch.where(wide <= low, low, torch.where(wide >= high, high, wide.to(low.dtype)))


def _whole_numbers(low: Tensor, high: Tensor, shape: Sequence[int]) -> Tensor:
    """Whole numbers between ``low`` and ``high``, both included, in their dtype, uniform over up to 2**64 of them."""
    generator = np.random.default_rng(int(torch.randint(2**63 - 1, (), device="cpu")))
    first, last = (bound.cpu().numpy() for bound in (low, high))
    return torch.from_numpy(np.asarray(generator.integers(first, last, tuple(shape), first.dtype, endpoint=True)))


def _are_equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else one == other


def _shown(value: Any) -> str:
    """An attribute as `repr` has it: a tensor by its ends."""
    if not isinstance(value, Tensor) or not value.numel() or value.is_meta:
        return str(value)
    least, most = value.min().item(), value.max().item()
    return str(least) if least == most else f"{least}..{most}"


def _torchrl() -> Any:
    try:
        from torchrl.data import tensor_specs
    except ImportError as error:
        raise MissingExtraError("TorchRL's specs need torchrl", hint="pip install torchrl") from error
    return tensor_specs
