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
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn.functional import one_hot

from ..errors import MissingExtraError, RbdataError, SchemaError, UnknownKeyError, UsageError

__all__ = ["Binary", "Bounded", "Categorical", "Composite", "MultiCategorical", "MultiOneHot", "OneHot", "TensorSpec"]
__all__ += ["Unbounded"]

Shape: TypeAlias = int | Sequence[int]
Device: TypeAlias = torch.device | str | int | None
#: A bound: a number, a list, an array or a tensor.
Numbers: TypeAlias = Any


class ContinuousBox(NamedTuple):
    """The ``space`` of Bounded and Unbounded: the smallest and the largest values."""

    low: Tensor
    high: Tensor


class CategoricalBox(NamedTuple):
    """The ``space`` of Categorical and OneHot: the number of choices; MultiCategorical and MultiOneHot have a tuple of them."""

    n: int


class TensorSpec:
    """Base of all specs. Methods return another spec; only the keys of a Composite can be set."""

    #: The last dimensions of the values; of a Composite, the first dimensions of all its values.
    shape: torch.Size
    #: Where values are made; those on other devices are checked all the same. None for a Composite that leaves it open.
    device: torch.device | None
    #: The dtype of the values; None for a Composite.
    dtype: torch.dtype | None = None

    @property
    def domain(self) -> str:
        """Either "continuous" (Bounded and Unbounded of floating-point numbers), "discrete" or "composite"."""
        is_real = isinstance(self, (Bounded, Unbounded)) and self.dtype.is_floating_point
        return "composite" if isinstance(self, Composite) else "continuous" if is_real else "discrete"

    def rand(self, shape: Shape = ()) -> Any:
        """Return a random value of ``[*shape, *spec.shape]``, by torch's global generator.

        Uniform between two finite bounds, and of whole numbers; otherwise normal, limited by a finite bound.
        """
        raise NotImplementedError

    def zero(self, shape: Shape = ()) -> Any:
        """Return zeros of ``[*shape, *spec.shape]``, whether or not they are in the spec."""
        return torch.zeros((*_size(shape), *self.shape), dtype=self.dtype, device=self.device)

    def one(self, shape: Shape = ()) -> Any:
        """Return ones of ``[*shape, *spec.shape]``, whether or not they are in the spec."""
        return torch.ones((*_size(shape), *self.shape), dtype=self.dtype, device=self.device)

    def is_in(self, value: Any) -> bool:
        """Return whether dtype, last dimensions and numbers of ``value`` are those of the spec; NaN is outside any bounds.

        A Composite takes TensorDicts and dicts, and ignores further keys. Raises UsageError for other types.
        """
        raise NotImplementedError

    def assert_is_in(self, value: Any) -> None:
        """Raise SchemaError for a value outside the spec."""
        if not self.is_in(value):
            raise SchemaError(f"the value is not in {self}", hint="spec.project(value) is")

    def project(self, value: Any) -> Any:
        """Return ``value`` itself if it is in the spec, otherwise a value near it that is; ``value`` is not changed.

        Numbers are rounded and limited; the largest number of a row of OneHot becomes the one. Raises UsageError for a shape
        that does not fit, SchemaError for NaN.
        """
        raise NotImplementedError

    def expand(self, *shape: Any) -> Self:
        """Return the spec of values that are expanded, as `torch.Tensor.expand`. Raises UsageError if they cannot be."""
        try:
            return self._expand(torch.empty(self.shape, device="meta").expand(*shape).shape)
        except (RuntimeError, TypeError) as error:
            raise UsageError(f"{type(self).__name__} of shape {list(self.shape)}: {error}") from error

    def _expand(self, shape: torch.Size) -> Self:
        raise NotImplementedError

    def to(self, dest: torch.dtype | Device) -> Self:
        """Return the spec of another dtype or device. Raises UsageError for a dtype that cannot hold the values."""
        raise NotImplementedError

    def clone(self) -> Self:
        """Return a copy that shares nothing with the spec."""
        return copy.deepcopy(self)

    def to_torchrl(self) -> Any:
        """Return the same as one of TorchRL's specs. Raises MissingExtraError without torchrl."""
        raise NotImplementedError


class _LeafSpec(TensorSpec):
    """The spec of one tensor. A derived class says which numbers it holds, and makes such."""

    device: torch.device
    dtype: torch.dtype
    #: The arguments of the constructor beside shape, device and dtype.
    _own: tuple[str, ...] = ()

    def __init__(self, shape: Shape, device: Device, dtype: torch.dtype | None) -> None:
        self.shape, self.device = _size(shape), _device(device)
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        if not isinstance(self.dtype, torch.dtype) or self.dtype.is_complex:
            raise UsageError(f"there are no specs of dtype {dtype}")

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("shape", *self._own, "device", "dtype")}

    def _changed(self, **change: Any) -> Self:
        return type(self)(**{**self._arguments(), **change})

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, _LeafSpec):
            return False
        pairs = zip(self._arguments().values(), other._arguments().values())
        return all(torch.equal(one, two) if isinstance(one, Tensor) else one == two for one, two in pairs)

    def is_in(self, value: Any) -> bool:
        if not isinstance(value, Tensor):
            raise UsageError(f"{type(value).__name__} is not a tensor", hint="torch.as_tensor(value) makes one of it")
        return value.dtype == self.dtype and self._fits(value) and self._holds(value)

    def _fits(self, value: Tensor) -> bool:
        return value.ndim >= len(self.shape) and value.shape[value.ndim - len(self.shape) :] == self.shape

    def project(self, value: Tensor) -> Tensor:
        if self.is_in(value):
            return value
        if not self._fits(value) or value.is_complex():
            raise UsageError(f"{value.dtype} {list(value.shape)} cannot become {self.dtype} [..., {list(self.shape)}]")
        if value.is_floating_point() and value.isnan().any():
            raise SchemaError("no value of the spec is near NaN")
        return self._project(value).to(self.dtype)

    def _holds(self, value: Tensor) -> bool:
        """Whether the numbers of a value of the right dtype and shape are allowed."""
        raise NotImplementedError

    def _project(self, value: Tensor) -> Tensor:
        """A value of the right shape that is not in the spec, made one that is, of any dtype."""
        raise NotImplementedError

    def _expand(self, shape: torch.Size) -> Self:
        return self._changed(shape=shape)

    def to(self, dest: torch.dtype | Device) -> Self:
        if dest is None:
            return self
        return self._changed(dtype=dest) if isinstance(dest, torch.dtype) else self._changed(device=dest)

    def to_torchrl(self) -> Any:
        return getattr(_torchrl(), type(self).__name__)(**self._arguments())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(one)}' for name, one in self._arguments().items())})"


class _Numbers(_LeafSpec):
    """Numbers between two bounds, both included; only whole ones where the bounds have a dtype of whole numbers."""

    #: The bounds, ``[*shape]``.
    low: Tensor
    high: Tensor

    @property
    def space(self) -> Any:
        """The bounds as a ContinuousBox; for choices how many there are, as a CategoricalBox, or a tuple of them."""
        return ContinuousBox(self.low, self.high)

    def rand(self, shape: Shape = ()) -> Tensor:
        full = (*_size(shape), *self.shape)
        if not self.low.is_floating_point():
            generator = np.random.default_rng(int(torch.randint(2**63 - 1, (), device="cpu")))
            first, last = (bound.cpu().numpy() for bound in (self.low, self.high))
            whole = generator.integers(first, last, full, first.dtype, endpoint=True)  # up to 2**64 numbers
            return torch.from_numpy(np.asarray(whole)).to(self.device, self.dtype)
        low, high = self.low.double(), self.high.double()
        share = torch.rand(full, dtype=torch.float64, device=self.device)
        uniform = low * (1 - share) + high * share  # the difference of the bounds may be too large for the dtype
        drawn = torch.where(low.isfinite() & high.isfinite(), uniform, torch.randn_like(share))
        return drawn.clamp(low, high).to(self.dtype)

    def _holds(self, value: Tensor) -> bool:
        low, high = self.low.to(value.device), self.high.to(value.device)
        whole = low.is_floating_point() or not value.is_floating_point() or bool((value == value.round()).all())
        return whole and bool(((value >= low) & (value <= high)).all())

    def _project(self, value: Tensor) -> Tensor:
        low, high = self.low.to(value.device), self.high.to(value.device)
        # 64 bits: a bound, or a number beyond the bounds, may be too large for the other dtype.
        wide = value.double() if value.is_floating_point() else value.long()
        wide = wide.round() if value.is_floating_point() and not low.is_floating_point() else wide
        return torch.where(wide <= low, low, torch.where(wide >= high, high, wide.to(low.dtype)))


class Bounded(_Numbers):
    """Numbers between ``low`` and ``high``, both included; the default dtype is `torch.get_default_dtype`.

    The bounds are numbers, arrays or tensors, broadcast to ``shape``, by default the shape that both have together.
    Raises UsageError for bounds that the dtype cannot hold, NaN, and a low above its high.
    """

    _own = ("low", "high")

    def __init__(
        self,
        low: Numbers,
        high: Numbers,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        try:
            bounds = [torch.as_tensor(one) for one in (low, high)]
            shape = torch.broadcast_shapes(*(bound.shape for bound in bounds)) if shape is None else shape
            super().__init__(shape, device, dtype)
            low, high = (_converted(bound, self.dtype).expand(self.shape) for bound in bounds)
        except RbdataError:
            raise
        except (ValueError, TypeError, RuntimeError) as error:
            raise UsageError(f"bounds {low!r:.40} and {high!r:.40} of a spec of shape {shape}: {error}") from error
        if not (low <= high).all():
            raise UsageError("a lower bound is above its upper bound, or a bound is NaN")
        self.low, self.high = (bound.to(self.device, copy=True) for bound in (low, high))


class Unbounded(_Numbers):
    """All numbers of a dtype, NaN and infinities included; by default `torch.get_default_dtype`, and the shape ``[1]``."""

    def __init__(self, shape: Shape = (1,), device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(shape, device, dtype)
        ends = (-math.inf, math.inf) if self.dtype.is_floating_point else (False, True)
        if ends[0] == 0 and self.dtype != torch.bool:
            ends = torch.iinfo(self.dtype).min, torch.iinfo(self.dtype).max
        one, other = (torch.tensor(end, dtype=self.dtype, device=self.device) for end in ends)
        self.low, self.high = one.expand(self.shape), other.expand(self.shape)

    def _holds(self, value: Tensor) -> bool:
        return True


class Categorical(_Numbers):
    """One of ``n`` choices: a whole number from 0 to n - 1. The default shape is ``[]``, the default dtype int64.

    Raises UsageError for a dtype that cannot hold the numbers.
    """

    _own: tuple[str, ...] = ("n",)
    n: int

    def __init__(
        self, n: int, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.int64
    ) -> None:
        (self.n,) = _counts([n])
        self._start(self.n, () if shape is None else shape, device, dtype)

    def _start(self, counts: int | Sequence[int], shape: Shape, device: Device, dtype: torch.dtype) -> None:
        _LeafSpec.__init__(self, shape, device, dtype)
        last = torch.tensor(counts, device="cpu") - 1
        _converted(last, self.dtype)
        self.high = last.to(self.device).expand(self.shape)
        self.low = torch.zeros_like(self.high)

    @property
    def space(self) -> Any:
        return CategoricalBox(self.n)


class MultiCategorical(Categorical):
    """A row of choices: ``nvec[i]`` of the i-th, a whole number from 0 to nvec[i] - 1. The default dtype is int64.

    The last dimension of ``shape``, which is ``[len(nvec)]`` by default, has the choices.
    """

    _own = ("nvec",)
    nvec: tuple[int, ...]

    def __init__(
        self, nvec: Sequence[int], shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.int64
    ) -> None:
        self.nvec = _counts(nvec)
        self._start(self.nvec, _checked_shape(shape, len(self.nvec)), device, dtype)

    @property
    def space(self) -> Any:
        return tuple(map(CategoricalBox, self.nvec))


class Binary(Categorical):
    """Zeros and ones. The shape is ``[n]`` or stated; the default dtype is int8."""

    _own = ()

    def __init__(
        self, n: int | None = None, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.int8
    ) -> None:
        if n is None and shape is None:
            raise UsageError("the shape of Binary is not known", hint="Binary(n) or Binary(shape=...)")
        super().__init__(2, _size(shape or ()) if n is None else _checked_shape(shape, n), device, dtype)


class OneHot(_LeafSpec):
    """One of ``n`` choices: a row of zeros with a single one. The default shape is ``[n]``, the default dtype bool."""

    _own: tuple[str, ...] = ("n",)
    n: int
    #: The number of values of each choice.
    _widths: tuple[int, ...]

    def __init__(
        self, n: int, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.bool
    ) -> None:
        (self.n,) = self._widths = _counts([n])
        super().__init__(_checked_shape(shape, self.n), device, dtype)

    @property
    def space(self) -> Any:
        """The number of choices, as a CategoricalBox; a tuple of them for several choices."""
        return CategoricalBox(self.n)

    def rand(self, shape: Shape = ()) -> Tensor:
        return self._project(torch.rand((*_size(shape), *self.shape), device=self.device)).to(self.dtype)

    def _holds(self, value: Tensor) -> bool:
        single = [(one.sum(-1) == 1).all() for one in value.split(self._widths, -1)]
        return bool(((value == 0) | (value == 1)).all()) and all(map(bool, single))

    def _project(self, value: Tensor) -> Tensor:
        return torch.cat([one_hot(one.argmax(-1), one.shape[-1]) for one in value.double().split(self._widths, -1)], -1)


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
        _LeafSpec.__init__(self, _checked_shape(shape, sum(self.nvec)), device, dtype)

    @property
    def space(self) -> Any:
        return tuple(map(CategoricalBox, self.nvec))


class Composite(TensorSpec):
    """Specs by key; a key may be a tuple that leads into nested ones.

    - ``shape``: the first dimensions of all values, which are the batch size of TensorDicts.
    - ``device``: that to which all specs are moved; None (the default) leaves it to each.

    Specs are given as one mapping, whose nested mappings become Composites, or as keywords. Raises UsageError for a spec whose
    shape does not begin with that of the Composite.
    """

    def __init__(
        self,
        specs: Mapping[Any, Any] | None = None,
        *,
        shape: Shape = (),
        device: Device = None,
        **keys: TensorSpec | Mapping[Any, Any],
    ) -> None:
        self.shape = _size(shape)
        self.device = None if device is None else _device(device)
        self._specs: dict[str, TensorSpec] = {}
        for key, spec in {**(specs or {}), **keys}.items():
            self[key] = spec

    # -- the specs by key ------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        found: Any = self
        for part in key if isinstance(key, tuple) else (key,):
            if not isinstance(found, Composite) or part not in found._specs:
                names = ", ".join(map(str, self.keys(True)))
                raise UnknownKeyError(f"there is no spec {key!r}", hint=f"there are {names}")
            found = found._specs[part]
        return found

    def __setitem__(self, key: Any, spec: TensorSpec | Mapping[Any, Any]) -> None:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if not isinstance(first, str):
            raise UsageError(f"{key!r} is not a key: a string, or a tuple of strings")
        if isinstance(spec, Mapping):
            spec = Composite(spec, shape=self.shape, device=self.device)
        if rest:
            inner = self._specs.get(first, Composite(shape=self.shape, device=self.device))
            if not isinstance(inner, Composite):
                raise UsageError(f"{first!r} is the key of a spec: there cannot be others below it")
            inner[tuple(rest)] = spec
            spec = inner
        if not isinstance(spec, TensorSpec):
            raise UsageError(f"{first}: {type(spec).__name__} is not a spec of rbdata")
        if spec.shape[: len(self.shape)] != self.shape:
            raise UsageError(f"{first}: a spec of shape {list(spec.shape)} in a Composite of shape {list(self.shape)}")
        self._specs[first] = spec.to(self.device)

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
            if isinstance(spec, Composite) and include_nested:
                below = spec.items(True, leaves_only)
                found += [((key, *(one if isinstance(one, tuple) else (one,))), part) for one, part in below]
        return found

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """Return the keys of `items`: strings, and tuples of them for nested ones."""
        return [key for key, _ in self.items(include_nested, leaves_only)]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """Return the specs of `items`."""
        return [spec for _, spec in self.items(include_nested, leaves_only)]

    # -- values ----------------------------------------------------------------------------------------------------------

    def rand(self, shape: Shape = ()) -> TensorDict:
        return self._made(shape, lambda spec: spec.rand(shape))

    def zero(self, shape: Shape = ()) -> TensorDict:
        return self._made(shape, lambda spec: spec.zero(shape))

    def one(self, shape: Shape = ()) -> TensorDict:
        return self._made(shape, lambda spec: spec.one(shape))

    def _made(self, shape: Shape, make: Callable[[TensorSpec], Any]) -> TensorDict:
        values = {key: make(spec) for key, spec in self._specs.items()}
        return TensorDict(values, batch_size=[*_size(shape), *self.shape], device=self.device)

    def is_in(self, value: Any) -> bool:
        if not isinstance(value, (Mapping, TensorDictBase)):
            raise UsageError(f"{type(value).__name__} has no keys: a TensorDict or a dict is expected")
        for key, spec in self._specs.items():
            is_nested = isinstance(spec, Composite)
            inner = value.get(key, {} if is_nested else None)
            if not isinstance(inner, (Mapping, TensorDictBase) if is_nested else Tensor) or not spec.is_in(inner):
                return False
        return True

    def project(self, value: Any) -> Any:
        """Return the value itself if it is in the spec, otherwise a shallow copy with other tensors for keys that are not."""
        if self.is_in(value):
            return value
        projected = value.copy()
        for key, spec in self._specs.items():
            projected[key] = spec.project(value[key])
        return projected

    # -- the Composite itself --------------------------------------------------------------------------------------------

    def _changed(self, change: Callable[[TensorSpec], TensorSpec]) -> Self:
        changed = copy.copy(self)
        changed._specs = {key: change(spec) for key, spec in self._specs.items()}
        return changed

    def _expand(self, shape: torch.Size) -> Self:
        changed = self._changed(lambda spec: spec.expand(*shape, *spec.shape[len(self.shape) :]))
        changed.shape = shape
        return changed

    def to(self, dest: torch.dtype | Device) -> Self:
        if dest is None:
            return self
        changed = self._changed(lambda spec: spec.to(dest))
        if not isinstance(dest, torch.dtype):
            changed.device = _device(dest)
        return changed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Composite) and vars(self) == vars(other)

    def to_torchrl(self) -> Any:
        specs = {key: spec.to_torchrl() for key, spec in self._specs.items()}
        return _torchrl().Composite(specs, shape=self.shape, device=self.device)

    def __repr__(self) -> str:
        lines = [f"{key}: {spec!r}".replace("\n", "\n    ") for key, spec in self._specs.items()]
        lines += [f"device={self.device}", f"shape={self.shape}"]
        return f"{type(self).__name__}(\n    " + ",\n    ".join(lines) + ")"


# -- arguments and numbers -----------------------------------------------------------------------------------------------


def _size(shape: Shape) -> torch.Size:
    try:
        return torch.empty(tuple(shape) if np.ndim(shape) else (shape,), device="meta").shape  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{shape!r} is not a shape: a whole number, or a sequence of them, none negative") from error


def _device(device: Device) -> torch.device:
    """A device with its index, as tensors name it."""
    return torch.empty(0, device=device).device


def _counts(counts: Any) -> tuple[int, ...]:
    """Numbers of choices, each at least 1."""
    try:
        found = tuple(map(operator.index, counts))
    except TypeError as error:
        raise UsageError(f"numbers of choices are whole numbers, not {counts!r:.80}") from error
    if min(found, default=0) < 1:
        raise UsageError(f"{found!s:.80} choices: there is at least 1")
    return found


def _checked_shape(shape: Shape | None, choices: int) -> Shape:
    """A shape whose last dimension holds these choices, by default the only one."""
    if shape is not None and _size(shape)[-1:] != (choices,):
        raise UsageError(f"shape {shape}: its last dimension holds the choices, and must be {choices}")
    return choices if shape is None else shape


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of another dtype. Raises UsageError for numbers that it cannot hold; fractions of floats are rounded."""
    converted = tensor.to(dtype)
    if tensor.is_floating_point() and dtype.is_floating_point:
        lossy = converted.isinf() & tensor.isfinite()
    else:
        lossy = converted.double() != tensor.double()
    if lossy.any():
        raise UsageError(f"{dtype} cannot hold a bound or the number of a choice, {tensor[lossy][0].item()}")
    return converted


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
