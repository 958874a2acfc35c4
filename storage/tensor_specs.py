"""Specs: the allowed values of the tensors of a key. The classes have the names of TorchRL's, and do not need TorchRL.

    Bounded                       numbers between two bounds, both included
    Unbounded                     every number of the dtype
    Categorical, OneHot           one of n choices: its number, or a row of n zeros with a single one
    MultiCategorical, MultiOneHot a row of several such choices
    Binary                        zeros and ones
    Composite                     specs by key, as a TensorDict has tensors

A value has the dtype of its spec, and its last dimensions are the shape of the spec; there may be others before them. All
methods return another spec, except those that set a key of a Composite. `specs` makes those of a dataset. What they leave
out (masks, registers, values that are not tensors) is TorchRL's: ``spec.to_torchrl()``.
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

from ..errors import MissingExtraError, SpecError, UnknownKeyError, UsageError

__all__ = ["Binary", "Bounded", "Categorical", "Composite", "MultiCategorical", "MultiOneHot", "OneHot", "TensorSpec"]
__all__ += ["Unbounded"]

Shape: TypeAlias = int | Sequence[int]
Device: TypeAlias = torch.device | str | int | None
#: A bound, or a value to be encoded: a number, a list, an array or a tensor.
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
    """Base of all specs.

    ``expand``, ``reshape``, ``squeeze``, ``[...]`` and so on do to a spec what they do to its values, except that the last
    dimension of OneHot, MultiOneHot and MultiCategorical stays as it is. Raises UsageError for shapes that do not fit.
    """

    _shape: torch.Size
    _device: torch.device | None
    _dtype: torch.dtype | None = None
    #: How many of the last dimensions hold one value together.
    _kept = 0
    #: The attributes that are tensors of the shape: bounds.
    _tensors: tuple[str, ...] = ()

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

    # -- values ----------------------------------------------------------------------------------------------------------

    def rand(self, shape: Shape = ()) -> Any:
        """Return a random value of ``[*shape, *spec.shape]``, by torch's global generator.

        Uniform between bounds; normal without, and exponential from the one bound where there is no other. Whole numbers
        without bounds are uniform over the dtype.
        """
        raise NotImplementedError

    def zero(self, shape: Shape = ()) -> Any:
        """Zeros of ``[*shape, *spec.shape]``, whether or not they are in the spec."""
        return self._filled(shape, torch.zeros)

    def one(self, shape: Shape = ()) -> Any:
        """Ones of ``[*shape, *spec.shape]``, whether or not they are in the spec."""
        return self._filled(shape, torch.ones)

    def _filled(self, shape: Shape, make: Callable[..., Tensor]) -> Any:
        return make((*_size(shape), *self._shape), dtype=self._dtype, device=self._device)

    zeros, ones = zero, one

    def is_in(self, value: Any) -> bool:
        """Return whether dtype, last dimensions and numbers of ``value`` are those of the spec; NaN is outside any bounds.

        A Composite takes TensorDicts and dicts, and ignores further keys. Raises UsageError for other types.
        """
        return self._fault(value) is None

    def assert_is_in(self, value: Any) -> None:
        """Raise SpecError, which is an AssertionError, for a value outside the spec; its message states the fault."""
        fault = self._fault(value)
        if fault is not None:
            raise SpecError(f"the value is not in the spec: {fault}", hint="spec.project(value) is in it")

    def _fault(self, value: Any) -> str | None:
        """Why a value is not in the spec; None if it is."""
        raise NotImplementedError

    def project(self, value: Any) -> Any:
        """``value`` itself if it is in the spec, otherwise a value near it that is; ``value`` is not changed.

        Numbers are rounded and limited; rows of OneHot are drawn by their weights. Raises UsageError for a shape that does not
        fit, SpecError for NaN.
        """
        raise NotImplementedError

    def encode(self, value: Any) -> Any:
        """Return a number, list, array or tensor (a Composite: a dict of them) as a tensor that is in the spec.

        OneHot and MultiOneHot take the numbers of the choices. The shape is that of the spec, but for sizes of 1, or it ends
        with that. Tensors of the right dtype are returned as they are, arrays copied. Raises SpecError for values that the
        dtype cannot hold or that are outside the spec, UsageError for shapes that do not fit.
        """
        raise NotImplementedError

    def to_numpy(self, value: Any, safe: bool = True) -> Any:
        """Return the array from which `encode` makes such a value; a Composite returns a dict of arrays.

        Raises SpecError for values outside the spec, unless ``safe=False``.
        """
        raise NotImplementedError

    # -- shapes ----------------------------------------------------------------------------------------------------------

    def expand(self, *shape: Any) -> Self:
        """Return the spec of values that are expanded, as `torch.Tensor.expand`."""
        return self._reshaped(lambda values: values.expand(*shape), torch.Tensor.expand)

    def reshape(self, *shape: Any) -> Self:
        """Return the spec of values that are reshaped, as `torch.Tensor.reshape`."""
        return self._reshaped(lambda values: values.reshape(*shape))

    view = reshape

    def squeeze(self, dim: int | None = None) -> Self:
        """Return the spec of values without dimensions of size 1, as `torch.squeeze`."""
        return self._reshaped(lambda values: values.squeeze() if dim is None else values.squeeze(dim))

    def unsqueeze(self, dim: int) -> Self:
        """Return the spec of values with one more dimension of size 1, as `torch.unsqueeze`."""
        return self._reshaped(lambda values: values.unsqueeze(dim))

    def __getitem__(self, index: Any) -> Any:
        depth = self.ndim - self._kept
        size = math.prod(self._shape[:depth])
        chosen = torch.arange(size, device="cpu").reshape(self._shape[:depth])[index]
        return self._with(
            depth, chosen.shape, lambda part: part.reshape(size, *part.shape[depth:])[chosen.to(part.device)]
        )

    def _reshaped(
        self, move: Callable[[Tensor], Tensor], how: Callable[[Tensor, Any], Tensor] = torch.Tensor.reshape
    ) -> Self:
        """The spec of values that ``move`` gives another shape; ``how``, called with that shape, does the same."""
        try:
            full = move(torch.empty(self._shape, device="meta")).shape
        except (RuntimeError, IndexError, TypeError) as error:
            raise UsageError(f"{type(self).__name__} of shape {list(self._shape)}: {error}") from error
        depth, kept = self.ndim - self._kept, len(full) - self._kept
        if kept < 0 or full[kept:] != self._shape[depth:]:
            message = f"{list(full)} changes the last dimension of {type(self).__name__} of shape {list(self._shape)}"
            raise UsageError(message, hint="that dimension holds the choices")
        first = full[:kept]
        return self._with(depth, first, lambda part: how(part, (*first, *part.shape[depth:])))

    def _with(self, depth: int, first: Sequence[int], change: Callable[[Tensor], Tensor]) -> Self:
        """A copy with ``first`` in place of its first ``depth`` dimensions; ``change`` does that to a tensor."""
        changed = copy.copy(self)
        changed._shape = torch.Size([*first, *self._shape[depth:]])
        for name in self._tensors:
            setattr(changed, name, change(getattr(self, name)))
        return changed

    # -- the spec itself -------------------------------------------------------------------------------------------------

    def to(self, dest: torch.dtype | Device) -> Self:
        """Return the spec of another dtype or device. Raises UsageError for a dtype that cannot hold the values."""
        raise NotImplementedError

    def cpu(self) -> Self:
        """Return the spec of the CPU."""
        return self.to("cpu")

    def clone(self) -> Self:
        """Return a copy that shares nothing with the spec."""
        return copy.deepcopy(self)

    def _facts(self) -> tuple[Any, ...]:
        """All that distinguishes specs, except bounds and the specs of a Composite."""
        return type(self), self._shape, self._dtype, self._device

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec) or self._facts() != other._facts():
            return False
        return all(torch.equal(getattr(self, name), getattr(other, name)) for name in self._tensors)

    def to_torchrl(self) -> Any:
        """Return the same as one of TorchRL's specs. Raises MissingExtraError without torchrl."""
        raise NotImplementedError


class _LeafSpec(TensorSpec):
    """The spec of one tensor."""

    _device: torch.device
    _dtype: torch.dtype
    #: The arguments of the constructor beside shape, device and dtype.
    _own: tuple[str, ...] = ()

    def __init__(self, shape: Shape, device: Device, dtype: torch.dtype | None) -> None:
        self._shape, self._device = _size(shape), _device(device)
        self._dtype = torch.get_default_dtype() if dtype is None else dtype
        if self._dtype not in _DTYPES:
            raise UsageError(f"there are no specs of dtype {dtype}", hint=f"there are {', '.join(map(str, _DTYPES))}")

    def project(self, value: Tensor) -> Tensor:
        if self._fault(value) is None:
            return value
        if not self._fits(value.shape):
            raise UsageError(f"a value of shape {list(value.shape)} does not end with {list(self._shape)}")
        if value.is_floating_point() and value.isnan().any():
            raise SpecError("no value of the spec is near NaN")
        return self._project(_tensor(value))

    def encode(self, value: Numbers) -> Tensor:
        tensor = _converted(_tensor(value), self._dtype)
        if not (isinstance(value, Tensor) and self._fits(tensor.shape)):
            given, wanted = ([size for size in shape if size != 1] for shape in (tensor.shape, self._shape))
            tensor = tensor.reshape(self._shape) if given == wanted else tensor
        if not self._fits(tensor.shape):
            raise UsageError(f"a value of shape {list(tensor.shape)} for a spec of shape {list(self._shape)}")
        self.assert_is_in(tensor)
        return tensor.to(self._device)

    def to_numpy(self, value: Tensor, safe: bool = True) -> np.ndarray[Any, Any]:
        if safe:
            self.assert_is_in(value)
        return value.detach().cpu().numpy()

    def _fault(self, value: Any) -> str | None:
        if not isinstance(value, Tensor):
            raise UsageError(f"{type(value).__name__} is not a tensor", hint="spec.encode(value) makes one of it")
        if value.dtype != self._dtype:
            return f"its dtype is {value.dtype}, not {self._dtype}"
        if not self._fits(value.shape):
            return f"its shape {list(value.shape)} does not end with {list(self._shape)}"
        return None if self._holds(value) else f"a number of it is outside {self}"

    def _fits(self, shape: torch.Size) -> bool:
        return len(shape) >= self.ndim and shape[len(shape) - self.ndim :] == self._shape

    def _holds(self, value: Tensor) -> bool:
        """Whether the numbers of a value of the right dtype and shape are allowed."""
        raise NotImplementedError

    def _project(self, value: Tensor) -> Tensor:
        """A value of the right shape that is not in the spec, made one that is."""
        raise NotImplementedError

    def to(self, dest: torch.dtype | Device) -> Self:
        if dest is None or dest == self._dtype:
            return self
        changes = {"dtype": dest} if isinstance(dest, torch.dtype) else {"device": _device(dest)}
        given = {"shape": self._shape, "device": self._device, "dtype": self._dtype, **self._arguments(), **changes}
        return self if changes.get("device") == self._device else type(self)(**given)

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._own}

    def _facts(self) -> tuple[Any, ...]:
        return (*super()._facts(), *(getattr(self, name) for name in self._own if name not in self._tensors))

    def to_torchrl(self) -> Any:
        made = getattr(_torchrl(), type(self).__name__)
        return made(shape=self._shape, device=self._device, dtype=self._dtype, **self.clone()._arguments())

    def __repr__(self) -> str:
        own = "".join(f"{name}={_shown(value)}, " for name, value in self._arguments().items())
        return f"{type(self).__name__}(shape={self._shape}, {own}device={self._device}, dtype={self._dtype})"


class Bounded(_LeafSpec):
    """Numbers between ``low`` and ``high``, both included; the default dtype is `torch.get_default_dtype`.

    The bounds are numbers, arrays or tensors, broadcast to ``shape``; where they have dimensions, the shape may be left out.
    Raises UsageError for bounds that the dtype cannot hold, NaN, and a low above its high.
    """

    _own = _tensors = ("low", "high")
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
        bounds = [_tensor(low), _tensor(high)]
        if shape is None:
            if not any(bound.ndim for bound in bounds):
                raise UsageError("the shape of Bounded is not known", hint="Bounded(low, high, shape=...)")
            shape = torch.broadcast_shapes(*(bound.shape for bound in bounds))
        super().__init__(shape, device, dtype)
        try:
            stated = [_converted(bound, self._dtype, "bounds").expand(self._shape) for bound in bounds]
        except (SpecError, RuntimeError) as error:
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
        (self.n,) = self._counted([n])

    def _counted(self, counts: Sequence[Any]) -> tuple[int, ...]:
        found = _counts(counts)
        if max(found) - 1 > _largest(self._dtype):
            raise UsageError(f"{self._dtype} cannot hold {max(found) - 1:,}, the number of a choice")
        return found

    @property
    def space(self) -> Any:
        """The number of choices, as a CategoricalBox; a tuple of them for several choices."""
        return CategoricalBox(self.n)

    def _last(self, device: torch.device) -> Tensor:
        """The numbers of the last choices, in the shape of a value."""
        return torch.tensor(self.n - 1, dtype=self._dtype, device=device).expand(self._shape)

    def rand(self, shape: Shape = ()) -> Tensor:
        last = self._last(torch.device("cpu")).long()
        drawn = _whole_numbers(torch.zeros_like(last), last, (*_size(shape), *self._shape))
        return drawn.to(self._device, self._dtype)

    def _holds(self, value: Tensor) -> bool:
        whole = not value.is_floating_point() or bool((value == value.round()).all())
        return whole and bool(((value >= 0) & (value <= self._last(value.device))).all())

    def _project(self, value: Tensor) -> Tensor:
        last = self._last(value.device)
        rounded = value.double().round() if value.is_floating_point() else value
        return _nearest(rounded, torch.zeros_like(last), last)


class MultiCategorical(Categorical):
    """A row of choices: ``nvec[i]`` of the i-th, a whole number from 0 to nvec[i] - 1. The default dtype is int64.

    The last dimension of ``shape``, which is ``[len(nvec)]`` by default, has the choices.
    """

    _own = ("nvec",)
    _kept = 1
    nvec: tuple[int, ...]

    def __init__(
        self, nvec: Sequence[int], shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.int64
    ) -> None:
        counts = _tensor(nvec)
        if counts.ndim > 1 or not counts.numel():
            raise UsageError(f"nvec of shape {list(counts.shape)}", hint="a number for each choice")
        _LeafSpec.__init__(self, counts.numel() if shape is None else shape, device, dtype)
        self.nvec = self._counted(counts.reshape(-1).tolist())
        if self._shape[-1:] != (len(self.nvec),):
            raise UsageError(f"a spec of shape {list(self._shape)} for {len(self.nvec)} choices")

    @property
    def space(self) -> tuple[CategoricalBox, ...]:
        """The numbers of choices."""
        return tuple(map(CategoricalBox, self.nvec))

    def _last(self, device: torch.device) -> Tensor:
        return torch.tensor([n - 1 for n in self.nvec], device=device).to(self._dtype).expand(self._shape)


class Binary(Categorical):
    """Zeros and ones. The shape is ``[n]`` or stated; the default dtype is int8."""

    _own = ()

    def __init__(
        self, n: int | None = None, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.int8
    ) -> None:
        if n is None and shape is None:
            raise UsageError("the shape of Binary is not known", hint="Binary(n) or Binary(shape=...)")
        super().__init__(2, n if shape is None else shape, device, dtype)
        if n is not None and self._shape[-1:] != (n,):
            raise UsageError(f"Binary of n={n} and shape {list(self._shape)}: the last dimension must be n")


class OneHot(_LeafSpec):
    """One of ``n`` choices: a row of zeros with a single one. The default shape is ``[n]``, the default dtype bool."""

    _own: tuple[str, ...] = ("n",)
    _kept = 1
    n: int

    def __init__(
        self, n: int, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.bool
    ) -> None:
        (self.n,) = _counts([n])
        self._start(shape, device, dtype)

    def _start(self, shape: Shape | None, device: Device, dtype: torch.dtype) -> None:
        size = sum(self._widths)
        super().__init__(size if shape is None else shape, device, dtype)
        if self._shape[-1:] != (size,):
            raise UsageError(f"a {type(self).__name__} of shape {list(self._shape)}: its last dimension must be {size}")

    @property
    def _widths(self) -> tuple[int, ...]:
        """The number of values of each choice."""
        return (self.n,)

    @property
    def _choices(self) -> Categorical:
        """The spec of the numbers of the choices."""
        return Categorical(self.n, self._shape[:-1], self._device)

    @property
    def space(self) -> Any:
        """The number of choices, as a CategoricalBox; a tuple of them for several choices."""
        return self._choices.space

    def _rows(self, numbers: Tensor) -> Tensor:
        """Numbers of choices as rows of zeros and ones."""
        columns = numbers.unbind(-1) if self._choices._kept else (numbers,)
        rows = [one.unsqueeze(-1) == torch.arange(n, device=one.device) for one, n in zip(columns, self._widths)]
        return torch.cat(rows, -1).to(self._dtype)

    def rand(self, shape: Shape = ()) -> Tensor:
        return self._rows(self._choices.rand(shape))

    def _holds(self, value: Tensor) -> bool:
        single = [(one.sum(-1) == 1).all() for one in value.split(self._widths, -1)]
        return bool(((value == 0) | (value == 1)).all()) and all(map(bool, single))

    def _project(self, value: Tensor) -> Tensor:
        drawn = [_drawn(one) for one in value.double().clamp(0, 1e30).split(self._widths, -1)]
        return self._rows(torch.stack(drawn, -1) if self._choices._kept else drawn[0])

    def encode(self, value: Numbers) -> Tensor:
        given = _tensor(value)
        if given.dtype == torch.bool and given.ndim:
            raise UsageError("encode takes the numbers of the choices, not rows of zeros and ones")
        return self._rows(self._choices.encode(value))

    def to_numpy(self, value: Tensor, safe: bool = True) -> np.ndarray[Any, Any]:
        if safe:
            self.assert_is_in(value)
        numbers = [one.long().argmax(-1) for one in value.split(self._widths, -1)]
        return (torch.stack(numbers, -1) if self._choices._kept else numbers[0]).cpu().numpy()


class MultiOneHot(OneHot):
    """A row of choices: for each the zeros and the single one of `OneHot`, one after the other. The default dtype is bool.

    ``nvec`` has the numbers of choices; the last dimension of ``shape`` is their sum.
    """

    _own = ("nvec",)
    nvec: tuple[int, ...]

    def __init__(
        self, nvec: Sequence[int], shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.bool
    ) -> None:
        self.nvec = _counts(_tensor(nvec).reshape(-1).tolist())
        self._start(shape, device, dtype)

    @property
    def _widths(self) -> tuple[int, ...]:
        return self.nvec

    @property
    def _choices(self) -> Categorical:
        return MultiCategorical(self.nvec, (*self._shape[:-1], len(self.nvec)), self._device)


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
        path = _path(key)
        if path is None:
            return super().__getitem__(key)
        found: Any = self
        for part in path:
            if not isinstance(found, Composite) or part not in found._specs:
                names = ", ".join(map(str, self.keys(True)))
                raise UnknownKeyError(f"there is no spec {key!r}", hint=f"there are {names}")
            found = found._specs[part]
        return found

    def __setitem__(self, key: Any, spec: TensorSpec | Mapping[Any, Any] | None) -> None:
        path = _path(key)
        if path is None:
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
        self._specs[first] = None if spec is None else self._checked(first, spec)

    def _checked(self, key: str, spec: Any) -> TensorSpec:
        """A spec as this Composite holds it: of its shape and device."""
        if not isinstance(spec, TensorSpec):
            raise UsageError(f"{key}: {type(spec).__name__} is not a spec of rbdata")
        if isinstance(spec, Composite) and spec.ndim < self.ndim and self._shape[: spec.ndim] == spec.shape:
            spec = Composite(spec, shape=self._shape, device=spec.device)
        if spec.shape[: self.ndim] != self._shape or spec.ndim - spec._kept < self.ndim:
            raise UsageError(f"{key}: a spec of shape {list(spec.shape)} in a Composite of shape {list(self._shape)}")
        return spec.to(self._device)

    def __delitem__(self, key: Any) -> None:
        self[key]  # raises for a missing key
        path = _path(key) or ()
        del (self[path[:-1]] if path[1:] else self)._specs[path[-1]]

    def __contains__(self, key: Any) -> bool:
        return _path(key) in map(_path, self.keys(True))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._specs))

    def __len__(self) -> int:
        return len(self._specs)

    def items(self, include_nested: bool = False, leaves_only: bool = False) -> list[tuple[Any, Any]]:
        """Keys and specs; with ``include_nested`` those in nested ones too, with ``leaves_only`` those of no Composite."""
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

    def set(self, key: Any, spec: TensorSpec | Mapping[Any, Any] | None) -> Self:
        """Set the spec of a key; returns the Composite."""
        self[key] = spec
        return self

    def update(self, specs: Mapping[Any, Any] | Composite) -> Self:
        """Set several specs, also of nested ones."""
        for key, spec in specs.items():
            if isinstance(self.get(key), Composite) and isinstance(spec, (Mapping, Composite)):
                self[key].update(spec)
            else:
                self[key] = spec
        return self

    def _stated(self) -> list[tuple[str, Any]]:
        """The keys whose spec is not None or empty, and their specs."""
        items = self._specs.items()
        return [(key, one) for key, one in items if (one._stated() if isinstance(one, Composite) else one is not None)]

    # -- values ----------------------------------------------------------------------------------------------------------

    def rand(self, shape: Shape = ()) -> TensorDict:
        return self._made(shape, lambda spec: spec.rand(shape))

    def _filled(self, shape: Shape, make: Callable[..., Tensor]) -> TensorDict:
        return self._made(shape, lambda spec: spec._filled(shape, make))

    def _made(self, shape: Shape, make: Callable[[TensorSpec], Any]) -> TensorDict:
        values = {key: make(spec) for key, spec in self._specs.items() if spec is not None}
        return TensorDict(values, batch_size=[*_size(shape), *self._shape], device=self._device)

    def project(self, value: Any) -> Any:
        """Return the value itself if it is in the spec, otherwise a shallow copy with other tensors for keys that are not."""
        after = {key: one for key, spec in self._stated() if (one := spec.project(value[key])) is not value[key]}
        if not after:
            return value
        projected = value.copy()
        for key, one in after.items():
            projected[key] = one
        return projected

    def encode(self, value: Any) -> TensorDict:
        shape = value.batch_size if isinstance(value, TensorDictBase) else self._shape
        return TensorDict(self._each(value, lambda spec, one: spec.encode(one)), batch_size=shape, device=self._device)

    def to_numpy(self, value: Any, safe: bool = True) -> dict[str, Any]:
        return self._each(value, lambda spec, one: spec.to_numpy(one, safe))

    def _each(self, value: Any, change: Callable[[TensorSpec, Any], Any]) -> dict[str, Any]:
        """The results of ``change`` for the values of each key; SpecError names the key."""
        changed = {}
        for key, one in _with_keys(value).items():
            if self[key] is None:
                raise UsageError(f"the spec of {key!r} is None: its values cannot be converted")
            try:
                changed[key] = change(self[key], one)
            except SpecError as error:
                leaf = f"{key}/{error.leaf}" if error.leaf else key
                raise SpecError(f"{key}: {error.message}", leaf=leaf, hint=error.hint) from error
        return changed

    def _fault(self, value: Any) -> str | None:
        value = _with_keys(value)
        for key, spec in self._stated():
            inner = value.get(key, None)
            if inner is None:
                return f"{key} is missing"
            if isinstance(spec, Composite) and isinstance(inner, Tensor):
                return f"{key} is a tensor, with no keys below it"
            fault = spec._fault(inner)
            if fault is not None:
                return f"{key}: {fault}"
        return None

    # -- the Composite itself --------------------------------------------------------------------------------------------

    def _each_spec(self, change: Callable[[Any], Any]) -> Self:
        changed = copy.copy(self)
        changed._specs = {key: None if spec is None else change(spec) for key, spec in self._specs.items()}
        return changed

    def _with(self, depth: int, first: Sequence[int], change: Callable[[Tensor], Tensor]) -> Self:
        changed = self._each_spec(lambda spec: spec._with(depth, first, change))
        changed._shape = torch.Size([*first, *self._shape[depth:]])
        return changed

    def _facts(self) -> tuple[Any, ...]:
        return (*super()._facts(), {key: spec is None for key, spec in self._specs.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Composite) and super().__eq__(other) and self._specs == other._specs

    def to(self, dest: torch.dtype | Device) -> Self:
        if dest is None:
            return self
        changed = self._each_spec(lambda spec: spec.to(dest))
        if not isinstance(dest, torch.dtype):
            changed._device = _device(dest)
        return changed

    def __repr__(self) -> str:
        lines = [f"{key}: {spec!r}".replace("\n", "\n    ") for key, spec in self._specs.items()]
        lines += [f"device={self._device}", f"shape={self._shape}"]
        return f"{type(self).__name__}(\n    " + ",\n    ".join(lines) + ")"

    def to_torchrl(self) -> Any:
        specs = {key: None if spec is None else spec.to_torchrl() for key, spec in self._specs.items()}
        return _torchrl().Composite(specs, shape=self._shape, device=self._device)


# -- arguments -----------------------------------------------------------------------------------------------------------


def _size(shape: Shape) -> torch.Size:
    listed = shape.tolist() if isinstance(shape, (np.ndarray, Tensor)) else shape
    try:
        sizes = [operator.index(one) for one in (listed if isinstance(listed, Sequence) else [listed])]
    except TypeError as error:
        raise UsageError(f"{shape!r} is not a shape: a whole number, or a sequence of them") from error
    if any(size < 0 for size in sizes):
        raise UsageError(f"shape {sizes}: sizes cannot be negative")
    return torch.Size(sizes)


def _device(device: Device) -> torch.device:
    found = torch.get_default_device() if device is None else torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def _counts(counts: Sequence[Any]) -> tuple[int, ...]:
    try:
        found = tuple(map(operator.index, counts))
    except TypeError as error:
        raise UsageError(f"numbers of choices are whole numbers, not {str(counts)[:80]}") from error
    if not all(1 <= count < 2**63 for count in found):
        raise UsageError(f"{str(found)[:80]} choices: there must be at least 1, and fewer than 2**63")
    return found


def _largest(dtype: torch.dtype) -> int:
    """The largest number up to which a dtype holds all integers."""
    if dtype == torch.bool:
        return 1
    return int(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max


def _path(key: Any) -> tuple[str, ...] | None:
    """A key as a tuple of strings; None for an index."""
    if isinstance(key, str):
        return (key,)
    return key if isinstance(key, tuple) and key and all(isinstance(part, str) for part in key) else None


def _with_keys(value: Any) -> Any:
    if not isinstance(value, (Mapping, TensorDictBase)):
        raise UsageError(f"{type(value).__name__} has no keys: a TensorDict or a dict is expected")
    return value


# -- numbers -------------------------------------------------------------------------------------------------------------


def _tensor(value: Numbers) -> Tensor:
    """A tensor as it is, everything else copied into one: an environment may reuse its arrays."""
    if isinstance(value, Tensor):
        if value.dtype not in _DTYPES:
            raise UsageError(f"specs have no values of {value.dtype}")
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty((), object)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise UsageError(f"{str(value)[:80]} is not an array of numbers")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # of these PyTorch calculates with uint8 only
        array = array.astype(np.int64)
        if (array < 0).any():
            raise SpecError("a number is too large for int64")
    return torch.tensor(array.astype(array.dtype.newbyteorder("=")), device="cpu")


def _converted(tensor: Tensor, dtype: torch.dtype, what: str = "values") -> Tensor:
    """A tensor of another dtype. Raises SpecError for numbers that it cannot hold; fractions of floats are rounded."""
    if tensor.dtype == dtype:
        return tensor
    converted = tensor.to(dtype)
    if tensor.is_floating_point() and dtype.is_floating_point:
        lossy = converted.isinf() & tensor.isfinite()
    else:  # the way back is not enough: -1 of int8 is 255 of uint8
        lossy = (converted.to(tensor.dtype) != tensor) | ((converted < 0) != (tensor < 0))
    if lossy.any():
        raise SpecError(f"{dtype} cannot hold {what} such as {tensor[lossy][0].item()}")
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


def _drawn(weights: Tensor) -> Tensor:
    """For each row of weights ``[..., n]`` the number of an entry, int64 ``[...]``; all alike where all are zero."""
    rows = weights.reshape(-1, weights.shape[-1])
    return torch.multinomial(rows + ~rows.any(-1, keepdim=True), 1).reshape(weights.shape[:-1])


def _shown(value: Any) -> str:
    """An attribute as `repr` has it: a tensor by its ends."""
    if not isinstance(value, Tensor) or not value.numel() or value.is_meta:
        return str(value)
    least, most = value.min().item(), value.max().item()
    return str(least) if least == most else f"{least}..{most}"


# -- TorchRL -------------------------------------------------------------------------------------------------------------


def _torchrl() -> Any:
    try:
        from torchrl.data import tensor_specs
    except ImportError as error:
        raise MissingExtraError("TorchRL's specs need torchrl", hint="pip install torchrl") from error
    return tensor_specs
