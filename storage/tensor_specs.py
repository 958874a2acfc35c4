"""Specs: the allowed values of the tensors of a key. The classes have the names of TorchRL's, and do not need TorchRL.

    Bounded                       numbers between two bounds, both included
    Unbounded                     every number of the dtype
    Categorical, OneHot           one of n choices: its number, or a row of n zeros with a single one
    MultiCategorical, MultiOneHot a row of several such choices
    Binary                        zeros and ones
    Composite                     specs by key, as a TensorDict has tensors

A value has the dtype of its spec, and its last dimensions are the shape of the spec; there may be others before them. A
spec is changed by `Composite`'s methods and by ``update_mask`` alone: everything else returns another spec. `specs` makes
those of a dataset.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from typing_extensions import Self

from ..errors import ArgumentTypeError, MissingExtraError, SpecError, UnknownKeyError, UsageError

__all__ = [
    "Binary",
    "BinaryDiscreteTensorSpec",
    "Bounded",
    "BoundedTensorSpec",
    "Categorical",
    "Composite",
    "CompositeSpec",
    "DiscreteTensorSpec",
    "MultiCategorical",
    "MultiDiscreteTensorSpec",
    "MultiOneHot",
    "MultiOneHotDiscreteTensorSpec",
    "OneHot",
    "OneHotDiscreteTensorSpec",
    "TensorSpec",
    "Unbounded",
    "UnboundedContinuous",
    "UnboundedContinuousTensorSpec",
    "UnboundedDiscrete",
    "UnboundedDiscreteTensorSpec",
]

Shape: TypeAlias = int | Sequence[int]
Device: TypeAlias = torch.device | str | int | None
Key: TypeAlias = str | tuple[Any, ...]
Domain: TypeAlias = Literal["continuous", "discrete"]
#: The types of a bound, a mask or a value to be encoded.
Numbers: TypeAlias = Any

_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = (*_WHOLE, torch.float16, torch.bfloat16, torch.float32, torch.float64)


class ContinuousBox(NamedTuple):
    """The ``space`` of Bounded and Unbounded: the smallest and the largest values."""

    low: Tensor
    high: Tensor


class CategoricalBox(NamedTuple):
    """The ``space`` of Categorical and OneHot: the number of choices; MultiCategorical and MultiOneHot have a tuple of them."""

    n: int


class TensorSpec:
    """Base of all specs. ``domain`` is "continuous", "discrete" or "composite"; a Composite has no ``dtype``.

    ``expand``, ``reshape``, ``squeeze``, ``[...]`` and so on do to a spec what they do to its values, except that the last
    dimension of OneHot, MultiOneHot and MultiCategorical stays as it is. `torch.stack` takes specs whose bounds and masks
    differ, nothing else. Raises UsageError for shapes that do not fit.
    """

    _shape: torch.Size
    _device: torch.device | None
    _dtype: torch.dtype | None = None
    _domain: str
    #: How many of the last dimensions hold one value together.
    _kept = 0

    @property
    def shape(self) -> torch.Size:
        """The last dimensions of the values; of a Composite, the first dimensions of all its values."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the values; None for a Composite."""
        return self._dtype

    @property
    def device(self) -> torch.device | None:
        """Where values are made; those on other devices are checked all the same."""
        return self._device

    @property
    def domain(self) -> str:
        """Either "continuous", "discrete" or "composite"."""
        return self._domain

    @property
    def ndim(self) -> int:
        """The number of dimensions of the shape."""
        return len(self._shape)

    # -- values ----------------------------------------------------------------------------------------------------------

    def rand(self, shape: Shape = ()) -> Any:
        """A random value of ``[*shape, *spec.shape]``, by torch's global generator.

        Uniform between bounds; normal without, and exponential from the one bound where there is no other. Whole numbers
        without bounds are uniform over the dtype.
        """
        raise NotImplementedError

    def zero(self, shape: Shape = ()) -> Any:
        """Zeros of ``[*shape, *spec.shape]``, whether or not they are in the spec."""
        raise NotImplementedError

    def zeros(self, shape: Shape = ()) -> Any:
        """The same as `zero`."""
        return self.zero(shape)

    def one(self, shape: Shape = ()) -> Any:
        """Ones of ``[*shape, *spec.shape]``, whether or not they are in the spec."""
        raise NotImplementedError

    def ones(self, shape: Shape = ()) -> Any:
        """The same as `one`."""
        return self.one(shape)

    def is_in(self, value: Any) -> bool:
        """Whether dtype, last dimensions and numbers of ``value`` are those of the spec; NaN is outside any bounds.

        A Composite takes TensorDicts and dicts, and ignores further keys. Raises ArgumentTypeError for other types.
        """
        return self._fault(value) is None

    def assert_is_in(self, value: Any) -> None:
        """Raise SpecError, which is an AssertionError, for a value outside the spec; its message states the fault."""
        fault = self._fault(value)
        if fault is not None:
            raise SpecError(f"the value is not in the spec: {fault}", hint="spec.project(value) is in it")

    def project(self, value: Any) -> Any:
        """``value`` itself if it is in the spec, otherwise a value near it that is; ``value`` is not changed.

        Numbers are rounded and limited. If a mask forbids a choice, another choice is drawn. Rows of OneHot are drawn by
        their weights. Raises UsageError for a shape that does not fit, SpecError for NaN.
        """
        raise NotImplementedError

    def encode(self, value: Any, *, ignore_device: bool = False) -> Any:
        """A number, list, array or tensor (a Composite: a dict of them) as a tensor that is in the spec.

        OneHot and MultiOneHot take the numbers of the choices. The shape is that of the spec, but for sizes of 1, or it ends
        with that. Tensors of the right dtype are returned as they are, arrays copied. Raises SpecError for values that the
        dtype cannot hold or that are outside the spec, UsageError for shapes that do not fit.
        """
        raise NotImplementedError

    def to_numpy(self, value: Any, safe: bool = True) -> Any:
        """The array from which `encode` makes such a value; a Composite returns a dict of arrays.

        Raises SpecError for values outside the spec, unless ``safe=False``.
        """
        raise NotImplementedError

    def index(self, index: Any, tensor: Tensor) -> Tensor:
        """The entries of the last dimension of ``tensor``, as many as there are choices, that the value ``index`` chooses.

        The other dimensions of both are broadcast. Of several choices (MultiCategorical, MultiOneHot) each has entries of
        its own, one after the other; the result has one for each. Raises UsageError where a spec has no choices.
        """
        raise UsageError(f"{type(self).__name__} has no choices that could index a tensor")

    def _fault(self, value: Any) -> str | None:
        """Why a value is not in the spec; None if it is."""
        raise NotImplementedError

    # -- shapes ----------------------------------------------------------------------------------------------------------

    def expand(self, *shape: Any) -> Self:
        """The spec of values that are expanded, as `torch.Tensor.expand`."""
        return self._reshaped(lambda values: values.expand(*shape), torch.Tensor.expand)

    def reshape(self, *shape: Any) -> Self:
        """The spec of values that are reshaped, as `torch.Tensor.reshape`."""
        return self._reshaped(lambda values: values.reshape(*shape))

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The spec of values that are flattened, as `torch.flatten`."""
        return self._reshaped(lambda values: values.flatten(start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """The spec of values one of whose dimensions is divided, as `torch.unflatten`."""
        return self._reshaped(lambda values: values.unflatten(dim, sizes))

    def squeeze(self, dim: int | None = None) -> Self:
        """The spec of values without dimensions of size 1, as `torch.squeeze`."""
        return self._reshaped(lambda values: values.squeeze() if dim is None else values.squeeze(dim))

    def unsqueeze(self, dim: int) -> Self:
        """The spec of values with one more dimension of size 1, as `torch.unsqueeze`."""
        return self._reshaped(lambda values: values.unsqueeze(dim))

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The specs of the parts of values along one dimension, as `torch.unbind`."""
        dim = _dimension(dim, self.ndim - self._kept, self.ndim)
        return tuple(self[(slice(None),) * dim + (place,)] for place in range(self._shape[dim]))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, range):
            index = list(index)
        depth = self.ndim - self._kept
        size = math.prod(self._shape[:depth])
        chosen = torch.arange(size, device="cpu").reshape(self._shape[:depth])[index]
        return self._arranged(
            depth, chosen.shape, lambda values: values.reshape(size, *values.shape[depth:])[chosen.to(values.device)]
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
        return self._arranged(depth, first, lambda values: how(values, (*first, *values.shape[depth:])))

    def _arranged(self, depth: int, first: torch.Size, change: Callable[[Tensor], Tensor]) -> Self:
        """The spec with ``first`` in place of its first ``depth`` dimensions; ``change`` does that to a tensor."""
        changed = self._with(
            lambda _, part: change(part) if isinstance(part, Tensor) else part._arranged(depth, first, change)
        )
        changed._shape = torch.Size([*first, *self._shape[depth:]])
        return changed

    def _stacked(self, specs: Sequence[Any], dim: int) -> Self:
        """``specs``, of which this is the first, as one with a further dimension at ``dim``."""
        for other in specs:
            if self._description() != other._description():
                message = f"specs {self._unlike} are not stacked: {self} and {other}"
                raise UsageError(message, hint="keep them under keys of their own in a Composite")
        every = [spec._parts() for spec in specs]
        stacked = self._with(lambda name, _: torch.stack([parts[name] for parts in every], dim))
        stacked._shape = torch.Size([*self._shape[:dim], len(specs), *self._shape[dim:]])
        return stacked

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        handler = _FUNCTIONS.get(func)
        return NotImplemented if handler is None else handler(*args, **(kwargs or {}))

    # -- the spec itself -------------------------------------------------------------------------------------------------

    def to(self, dest: torch.dtype | Device) -> Self:
        """The spec of another dtype or device; itself where nothing changes.

        A Composite passes a dtype on to all its specs. Raises UsageError for a dtype that cannot hold the values.
        """
        raise NotImplementedError

    def cpu(self) -> Self:
        """The spec of the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Self:
        """The spec of a GPU."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def clone(self) -> Self:
        """A copy that shares nothing with the spec."""
        return self._with(lambda _, part: part.clone())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return NotImplemented
        if self._description() != other._description():
            return False
        theirs = other._parts()
        return all(
            torch.equal(part, theirs[name]) if isinstance(part, Tensor) else part == theirs[name]
            for name, part in self._parts().items()
        )

    # -- parts: the tensors (bounds, masks) of a leaf's spec, the specs of a Composite -------------------------------------

    #: For messages: how specs differ that cannot be stacked.
    _unlike = "that differ in more than their bounds and masks"

    def _parts(self) -> dict[str, Any]:
        """The parts by name; None for one that is not stated."""
        raise NotImplementedError

    def _set_parts(self, parts: dict[str, Any]) -> None:
        raise NotImplementedError

    def _description(self) -> tuple[Any, ...]:
        """All attributes that distinguish specs, except their parts."""
        raise NotImplementedError

    def _with(self, change: Callable[[str, Any], Any]) -> Self:
        """A copy with ``change`` applied to its parts, by name."""
        changed, parts = copy.copy(self), self._parts().items()
        changed._set_parts({name: None if part is None else change(name, part) for name, part in parts})
        return changed

    def to_torchrl(self) -> Any:
        """The same as one of TorchRL's specs. Raises MissingExtraError without torchrl."""
        raise NotImplementedError

    @staticmethod
    def from_torchrl(spec: Any) -> Any:
        """One of TorchRL's specs as ours; stacks of specs whose bounds and masks alone differ become one.

        Raises UsageError for what there is no class for (NonTensor, Choice), and for what ours do not have: sizes of -1,
        numbers of choices that are not known, registers, names of dimensions, ``data_cls`` and ``step_mdp_static``.
        """
        return _from_torchrl(spec)


class _LeafSpec(TensorSpec):
    """The spec of one tensor."""

    _device: torch.device
    _dtype: torch.dtype
    _domain = "discrete"
    #: The attributes that tell specs of one class apart: plain ones, and tensors whose first dimensions are those of the
    #: shape (without the dimensions that are kept).
    _plain: tuple[str, ...] = ()
    _tensors: tuple[str, ...] = ()

    def __init__(self, shape: Shape, device: Device, dtype: torch.dtype) -> None:
        if not isinstance(dtype, torch.dtype):
            raise ArgumentTypeError(f"dtype={dtype!r} is not a torch.dtype")
        if dtype not in _DTYPES:
            raise UsageError(f"there are no specs of {dtype}", hint=f"there are {', '.join(map(str, _DTYPES))}")
        self._shape, self._device, self._dtype = _size(shape), _device(device), dtype

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Where values are made; those on other devices are checked all the same."""
        return self._device

    def zero(self, shape: Shape = ()) -> Tensor:
        return torch.zeros(self._full(shape), dtype=self._dtype, device=self._device)

    def one(self, shape: Shape = ()) -> Tensor:
        return torch.ones(self._full(shape), dtype=self._dtype, device=self._device)

    def project(self, value: Tensor) -> Tensor:
        if self._fault(value) is None:
            return value
        if not self._fits(value.shape):
            raise UsageError(f"a value of shape {list(value.shape)} does not end with {list(self._shape)}")
        return self._project(_tensor(value))

    def encode(self, value: Numbers, *, ignore_device: bool = False) -> Tensor:
        tensor = _converted(_tensor(value), self._dtype)
        if not (isinstance(value, Tensor) and self._fits(tensor.shape)):
            given, wanted = ([size for size in shape if size != 1] for shape in (tensor.shape, self._shape))
            tensor = tensor.reshape(self._shape) if given == wanted else tensor
        if not self._fits(tensor.shape):
            raise UsageError(f"a value of shape {list(tensor.shape)} for a spec of shape {list(self._shape)}")
        self.assert_is_in(tensor)
        return tensor if ignore_device else tensor.to(self._device)

    def to_numpy(self, value: Tensor, safe: bool = True) -> np.ndarray[Any, Any]:
        if safe:
            self.assert_is_in(value)
        return value.detach().cpu().numpy()

    def _fault(self, value: Any) -> str | None:
        if not isinstance(value, Tensor):
            message = f"{type(value).__name__} is not a tensor"
            raise ArgumentTypeError(message, hint="spec.encode(value) makes one of it")
        if value.dtype != self._dtype:
            return f"its dtype is {value.dtype}, not {self._dtype}"
        if not self._fits(value.shape):
            return f"its shape {list(value.shape)} does not end with {list(self._shape)}"
        return None if self._holds(value) else f"a number of it is outside {self}"

    def _fits(self, shape: torch.Size) -> bool:
        return len(shape) >= self.ndim and shape[len(shape) - self.ndim :] == self._shape

    def _full(self, shape: Shape) -> torch.Size:
        return torch.Size([*_size(shape), *self._shape])

    def _holds(self, value: Tensor) -> bool:
        """Whether the numbers of a value of the right dtype and shape are allowed."""
        raise NotImplementedError

    def _project(self, value: Tensor) -> Tensor:
        """A value of the right shape that is not in the spec, made one that is."""
        raise NotImplementedError

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._tensors}

    def _set_parts(self, parts: dict[str, Any]) -> None:
        vars(self).update(parts)

    def to(self, dest: torch.dtype | Device) -> Self:
        if dest is None or dest == self._dtype:
            return self
        if isinstance(dest, torch.dtype):
            changed = copy.copy(self)
            changed._to_dtype(dest)
            return changed
        device = _device(dest)
        if device == self._device:
            return self
        changed = self._with(lambda _, tensor: tensor.to(device))
        changed._device = device
        return changed

    def _to_dtype(self, dtype: torch.dtype) -> None:
        _LeafSpec.__init__(self, self._shape, self._device, dtype)

    def to_torchrl(self) -> Any:
        theirs, own = _torchrl(), self.clone()
        kind = next(kind.__name__ for kind in type(self).__mro__ if kind in _LEAVES)
        arguments = {name: getattr(own, name) for name in (*self._plain, *self._tensors)}
        return getattr(theirs, kind)(shape=self._shape, device=self._device, dtype=self._dtype, **arguments)

    def _description(self) -> tuple[Any, ...]:
        there = [part is not None for part in self._parts().values()]
        return type(self), self._shape, self._dtype, self._device, there, *(getattr(self, name) for name in self._plain)

    def __repr__(self) -> str:
        named = [(name, getattr(self, name)) for name in (*self._plain, *self._tensors)]
        own = [f"{name}={_shown(value)}" for name, value in named if value is not None]
        facts = [f"shape={self._shape}", *own, f"device={self._device}", f"dtype={self._dtype}"]
        return f"{type(self).__name__}({', '.join(facts)})"


class Bounded(_LeafSpec):
    """Numbers between ``low`` and ``high``, both included; the default dtype is `torch.get_default_dtype`.

    The bounds are numbers, arrays or tensors, broadcast to ``shape``; where they have dimensions, the shape may be left out.
    Raises UsageError for bounds that the dtype cannot hold, NaN, and a low above its high.
    """

    _plain, _tensors = ("domain",), ("low", "high")
    low: Tensor
    high: Tensor

    def __init__(
        self,
        low: Numbers,
        high: Numbers,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        domain: Domain | None = None,
    ) -> None:
        bounds = [_tensor(low), _tensor(high)]
        if shape is None:
            if not any(bound.ndim for bound in bounds):
                raise UsageError("the shape of Bounded is not known", hint="Bounded(low, high, shape=...)")
            shape = torch.broadcast_shapes(*(bound.shape for bound in bounds))
        super().__init__(shape, device, torch.get_default_dtype() if dtype is None else dtype)
        self._domain = _domain(domain, self._dtype)
        self._bound(*bounds)

    def _bound(self, low: Tensor, high: Tensor) -> None:
        try:
            self.low, self.high = (
                _converted(bound, self._dtype, "bounds").to(self._device).clone().expand(self._shape)
                for bound in (low, high)
            )
        except (SpecError, RuntimeError) as error:
            raise UsageError(f"bounds for a spec of shape {list(self._shape)}: {error}") from error
        if not (self.low <= self.high).all():
            raise UsageError("a lower bound is above its upper bound, or a bound is NaN")

    @property
    def space(self) -> ContinuousBox:
        """The bounds."""
        return ContinuousBox(self.low, self.high)

    def rand(self, shape: Shape = ()) -> Tensor:
        full = self._full(shape)
        if not self._dtype.is_floating_point:
            return _whole_numbers(self.low, self.high, full).to(self._device, self._dtype)
        low, high = self.low.double(), self.high.double()
        share = torch.rand(full, dtype=torch.float64, device=self._device)
        drawn = low * (1 - share) + high * share  # the difference of the bounds may be too large for the dtype
        if not drawn.isfinite().all():
            normal, distance = torch.randn_like(share), torch.empty_like(share).exponential_()
            one_sided = torch.where(
                low.isfinite(), low + distance, torch.where(high.isfinite(), high - distance, normal)
            )
            drawn = torch.where(low.isfinite() & high.isfinite(), drawn, one_sided)
        return drawn.clamp(low, high).to(self._dtype)

    def _holds(self, value: Tensor) -> bool:
        low, high = self.low.to(value.device), self.high.to(value.device)
        return bool((value >= low).all()) and bool((value <= high).all())

    def _project(self, value: Tensor) -> Tensor:
        return _nearest(value, self.low, self.high)

    def _to_dtype(self, dtype: torch.dtype) -> None:
        super()._to_dtype(dtype)
        self._domain = _domain(None, dtype)
        self._bound(self.low, self.high)


class Unbounded(_LeafSpec):
    """All numbers of a dtype, NaN and infinities included; the default dtype is `torch.get_default_dtype`.

    Instances are UnboundedContinuous where ``domain`` is "continuous", which it is for floating-point dtypes, and
    UnboundedDiscrete otherwise. The default shape is ``[1]``.
    """

    _plain = ("domain",)

    def __init__(
        self, shape: Shape = (1,), device: Device = None, dtype: torch.dtype | None = None, domain: Domain | None = None
    ) -> None:
        super().__init__(shape, device, torch.get_default_dtype() if dtype is None else dtype)
        self._of_domain(domain)

    def _of_domain(self, domain: str | None) -> None:
        self._domain = _domain(domain, self._dtype)
        if type(self) in (Unbounded, UnboundedContinuous, UnboundedDiscrete):
            self.__class__ = UnboundedContinuous if self._domain == "continuous" else UnboundedDiscrete

    @property
    def space(self) -> ContinuousBox:
        """The smallest and the largest finite number of the dtype."""
        kind = torch.finfo if self._dtype.is_floating_point else torch.iinfo
        ends = (False, True) if self._dtype == torch.bool else (kind(self._dtype).min, kind(self._dtype).max)
        low, high = (torch.tensor(end, dtype=self._dtype, device=self._device).expand(self._shape) for end in ends)
        return ContinuousBox(low, high)

    def rand(self, shape: Shape = ()) -> Tensor:
        full = self._full(shape)
        if self._dtype.is_floating_point:
            return torch.randn(full, dtype=self._dtype, device=self._device)
        return _whole_numbers(*self.space, full).to(self._device, self._dtype)

    def _holds(self, value: Tensor) -> bool:
        return True

    def _project(self, value: Tensor) -> Tensor:
        return value.to(self._dtype) if self._dtype.is_floating_point else _nearest(value, *self.space)

    def _to_dtype(self, dtype: torch.dtype) -> None:
        super()._to_dtype(dtype)
        self._of_domain(None)


class UnboundedContinuous(Unbounded):
    """An `Unbounded` of the domain "continuous"."""


class UnboundedDiscrete(Unbounded):
    """An `Unbounded` of the domain "discrete"; the default dtype is int64."""

    def __init__(
        self,
        shape: Shape = (1,),
        device: Device = None,
        dtype: torch.dtype | None = torch.int64,
        domain: Domain | None = None,
    ) -> None:
        super().__init__(shape, device, dtype, domain)


class _Choices(_LeafSpec):
    """Base of specs of one choice (``n``) and of several choices (``nvec``).

    ``mask`` is False where a choice is not allowed: it is not drawn, and not in the spec. Its last dimension has the choices;
    of several, those of the first, then those of the second.
    """

    _plain: tuple[str, ...] = ("n",)
    _tensors: tuple[str, ...] = ("mask",)
    #: Whether the last dimension of the numbers has several choices.
    _several = False
    n: int
    mask: Tensor | None

    @property
    def space(self) -> Any:
        """The number of choices, as a CategoricalBox; a tuple of them for several choices."""
        boxes = tuple(map(CategoricalBox, self._widths))
        return boxes if self._several else boxes[0]

    @property
    def _widths(self) -> tuple[int, ...]:
        """The number of values of each choice."""
        return (self.n,)

    def _together(self, numbers: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(numbers), -1) if self._several else numbers[0]

    def update_mask(self, mask: Numbers | None) -> None:
        """Allow only the choices for which ``mask`` is True; None allows all.

        Raises UsageError for a mask that cannot be expanded to ``[*shape, n]`` (OneHot: ``shape``; of several choices,
        their sum in place of the last dimension), and for one of other numbers than 0 and 1.
        """
        if mask is None:
            self.mask = None
            return
        given = _tensor(mask)
        shape = (*self._shape[: self.ndim - self._kept], sum(self._widths))
        if given.dtype != torch.bool and not ((given == 0) | (given == 1)).all():
            raise UsageError("a mask is True where a choice is allowed: it has no other values than those of bool")
        if given.numel() == shape[-1]:
            given = given.reshape(-1)
        try:
            self.mask = given.to(self._device, torch.bool, copy=True).expand(shape)
        except RuntimeError as error:
            raise UsageError(f"a mask of shape {list(given.shape)} for one of {list(shape)}") from error


class Categorical(_Choices):
    """One of ``n`` choices: a whole number from 0 to n - 1. The default shape is ``[]``, the default dtype int64.

    ``mask`` (bool, broadcast to ``[*shape, n]``): see `update_mask`. Raises UsageError for a dtype that cannot hold the
    numbers.
    """

    def __init__(
        self,
        n: int,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.int64,
        mask: Numbers | None = None,
    ) -> None:
        super().__init__(() if shape is None else shape, device, dtype)
        self.n = _counts([n])[0]
        self._check_dtype()
        self.update_mask(mask)

    def _last(self) -> Tensor:
        return torch.tensor(self.n - 1, device=self._device)

    def _apart(self, value: Tensor) -> tuple[Tensor, ...]:
        return value.unbind(-1) if self._several else (value,)

    def _check_dtype(self) -> None:
        last = self._last()
        if last.numel() and last.max() > _largest(self._dtype):
            raise UsageError(f"{self._dtype} cannot hold {int(last.max()):,}, the number of a choice")

    def _to_dtype(self, dtype: torch.dtype) -> None:
        super()._to_dtype(dtype)
        self._check_dtype()

    def rand(self, shape: Shape = ()) -> Tensor:
        if self.mask is not None:
            allowed = self.mask.expand(*_size(shape), *self.mask.shape).split(self._widths, -1)
            drawn = self._together([_drawn(one) for one in allowed])
        elif self._several:
            drawn = _whole_numbers(torch.zeros_like(self._last()), self._last(), self._full(shape))
        else:
            drawn = torch.randint(self.n, self._full(shape), device=self._device)
        return drawn.to(self._device, self._dtype)

    def _holds(self, value: Tensor) -> bool:
        if value.is_floating_point() and not (value == value.round()).all():
            return False
        if not ((value >= 0) & (value <= self._last().to(value.device))).all():
            return False
        return self.mask is None or bool(self._allowed(value, self.mask).all())

    def _allowed(self, value: Tensor, mask: Tensor) -> Tensor:
        pairs = zip(mask.to(value.device).split(self._widths, -1), self._apart(value))
        return self._together([_picked(one, numbers) for one, numbers in pairs])

    def _project(self, value: Tensor) -> Tensor:
        last = self._last().to(self._dtype)
        nearest = _nearest(value.round() if value.is_floating_point() else value, torch.zeros_like(last), last)
        if self.mask is None:
            return nearest
        others = self.rand(value.shape[: value.ndim - self.ndim]).to(value.device)
        return torch.where(self._allowed(nearest, self.mask), nearest, others)

    def index(self, index: Any, tensor: Tensor) -> Tensor:
        entries, numbers = self._entries(tensor)[0], self.encode(index)
        return _picked(entries.unsqueeze(-2) if self.ndim else entries, numbers)

    def _entries(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """The entries of a tensor to be indexed that each choice has."""
        if tensor.shape[-1:] != (sum(self._widths),):
            raise UsageError(f"a tensor of shape {list(tensor.shape)}: its last dimension must be {sum(self._widths)}")
        return tensor.split(self._widths, -1)

    def to_one_hot(self, value: Tensor, safe: bool = True) -> Tensor:
        """The choices as rows of zeros with a single one, bool ``[..., n]``. Raises SpecError for values outside the spec."""
        if safe:
            self.assert_is_in(value)
        return torch.cat([_one_hot(*pair) for pair in zip(self._apart(value), self._widths)], -1)

    def to_one_hot_spec(self) -> OneHot:
        """The spec of the result of `to_one_hot`."""
        return OneHot(self.n, (*self._shape, self.n), self._device, mask=self.mask)

    def to_categorical(self, value: Tensor, safe: bool = True) -> Tensor:
        """The value itself."""
        return value

    def to_categorical_spec(self) -> Categorical:
        """The spec itself."""
        return self


class MultiCategorical(Categorical):
    """A row of choices: ``nvec[i]`` of the i-th, a whole number from 0 to nvec[i] - 1. The default dtype is int64.

    ``nvec`` is broadcast to ``shape``, whose default is its own. ``mask`` has the shape ``[*shape[:-1], sum(nvec)]``, see
    `update_mask`; it needs an ``nvec`` that is the same everywhere.
    """

    _plain, _tensors = (), ("nvec", "mask")
    _kept, _several = 1, True
    nvec: Tensor

    def __init__(
        self,
        nvec: Numbers,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.int64,
        mask: Numbers | None = None,
    ) -> None:
        counts = _tensor(nvec)
        counts = counts.reshape(-1) if counts.ndim < 1 else counts
        _LeafSpec.__init__(self, counts.shape if shape is None else shape, device, dtype)
        _counts(counts.reshape(-1).tolist())
        if not counts.numel() or self._shape[-1:] != counts.shape[-1:]:
            raise UsageError(f"a spec of shape {list(self._shape)} for {counts.shape[-1]} choices")
        try:
            self.nvec = counts.to(self._device, torch.int64, copy=True).expand(self._shape)
        except RuntimeError as error:
            raise UsageError(f"nvec of shape {list(counts.shape)} for a spec of shape {list(self._shape)}") from error
        self._check_dtype()
        self.update_mask(mask)

    @property
    def _widths(self) -> tuple[int, ...]:
        rows = self.nvec.reshape(-1, self._shape[-1])
        if not len(rows) or (rows != rows[0]).any():
            raise UsageError("this takes a MultiCategorical whose numbers of choices are the same everywhere")
        return tuple(rows[0].tolist())

    def _last(self) -> Tensor:
        return self.nvec - 1

    def index(self, index: Any, tensor: Tensor) -> Tensor:
        pairs = zip(self._entries(tensor), self._apart(self.encode(index)))
        return self._together([_picked(entries, numbers) for entries, numbers in pairs])

    def to_one_hot_spec(self) -> MultiOneHot:
        widths = self._widths
        return MultiOneHot(widths, (*self._shape[:-1], sum(widths)), self._device, mask=self.mask)


class Binary(Categorical):
    """Zeros and ones. The shape is ``[n]`` or stated; the default dtype is int8. There are no masks."""

    _plain, _tensors = (), ()

    def __init__(
        self,
        n: int | None = None,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.int8,
    ) -> None:
        if n is None and shape is None:
            raise UsageError("the shape of Binary is not known", hint="Binary(n) or Binary(shape=...)")
        super().__init__(2, n if shape is None else shape, device, dtype)
        if n is not None and (self._shape[-1] if self._shape else 0) != n:
            raise UsageError(f"Binary of n={n} and shape {list(self._shape)}: the last dimension must be n")

    def update_mask(self, mask: Numbers | None) -> None:
        if mask is not None:
            raise UsageError("Binary has no choices that a mask could forbid")
        self.mask = None


class OneHot(_Choices):
    """One of ``n`` choices: a row of zeros with a single one. The default shape is ``[n]``, the default dtype bool.

    ``mask`` (bool, broadcast to ``shape``): see `update_mask`.
    """

    _kept = 1

    def __init__(
        self,
        n: int,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.bool,
        *,
        mask: Numbers | None = None,
    ) -> None:
        self.n = _counts([n])[0]
        self._start(shape, device, dtype, mask)

    def _start(self, shape: Shape | None, device: Device, dtype: torch.dtype, mask: Numbers | None) -> None:
        size = sum(self._widths)
        super().__init__(size if shape is None else shape, device, dtype)
        if self._shape[-1:] != (size,):
            raise UsageError(f"a {type(self).__name__} of shape {list(self._shape)}: its last dimension must be {size}")
        self.update_mask(mask)

    def _weights(self, value: Tensor) -> Tensor:
        """``value`` with zeros where the mask forbids a choice."""
        return value if self.mask is None else torch.where(self.mask.to(value.device), value, torch.zeros_like(value))

    def rand(self, shape: Shape = ()) -> Tensor:
        choices = self.to_categorical_spec()
        return choices.to_one_hot(choices.rand(shape), safe=False).to(self._dtype)

    def _holds(self, value: Tensor) -> bool:
        if not ((value == 0) | (value == 1)).all() or not (value == self._weights(value)).all():
            return False
        return all(bool((one.sum(-1) == 1).all()) for one in value.split(self._widths, -1))

    def _project(self, value: Tensor) -> Tensor:
        if value.is_floating_point() and value.isnan().any():
            raise SpecError("no value of the spec is near NaN")
        weights = self._weights(value.double().clamp(0, 1e30)).split(self._widths, -1)
        others = self._weights(torch.ones_like(value, dtype=torch.float64)).split(self._widths, -1)
        drawn = [_drawn(torch.where(one.any(-1, True), one, other)) for one, other in zip(weights, others)]
        return torch.cat([_one_hot(*pair) for pair in zip(drawn, self._widths)], -1).to(self._dtype)

    def encode(self, value: Numbers, *, ignore_device: bool = False) -> Tensor:
        given, choices = _tensor(value), self.to_categorical_spec()
        if given.dtype == torch.bool and given.ndim:
            raise UsageError("encode takes the numbers of the choices, not rows of zeros and ones")
        numbers = choices.encode(value, ignore_device=ignore_device)
        return choices.to_one_hot(numbers, safe=False).to(self._dtype)

    def to_numpy(self, value: Tensor, safe: bool = True) -> np.ndarray[Any, Any]:
        return self.to_categorical(value, safe).cpu().numpy()

    def index(self, index: Any, tensor: Tensor) -> Tensor:
        return self.to_categorical_spec().index(self.to_categorical(index), tensor)

    def to_categorical(self, value: Tensor, safe: bool = True) -> Tensor:
        """The numbers of the choices, int64 ``[...]``. Raises SpecError for values outside the spec."""
        if safe:
            self.assert_is_in(value)
        return self._together([one.long().argmax(-1) for one in value.split(self._widths, -1)])

    def to_categorical_spec(self) -> Categorical:
        """The spec of the result of `to_categorical`."""
        return Categorical(self.n, self._shape[:-1], self._device, mask=self.mask)

    def to_one_hot(self, value: Tensor, safe: bool = True) -> Tensor:
        """The value itself."""
        return value

    def to_one_hot_spec(self) -> OneHot:
        """The spec itself."""
        return self


class MultiOneHot(OneHot):
    """A row of choices: for each the zeros and the single one of `OneHot`, one after the other. The default dtype is bool.

    ``nvec`` has the numbers of choices; the last dimension of ``shape`` and of ``mask`` is their sum.
    """

    _plain, _several = ("nvec",), True
    nvec: tuple[int, ...]

    def __init__(
        self,
        nvec: Sequence[int],
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.bool,
        *,
        mask: Numbers | None = None,
    ) -> None:
        self.nvec = _counts(_tensor(nvec).reshape(-1).tolist())
        self._start(shape, device, dtype, mask)

    @property
    def _widths(self) -> tuple[int, ...]:
        return self.nvec

    def to_categorical_spec(self) -> MultiCategorical:
        return MultiCategorical(self.nvec, (*self._shape[:-1], len(self.nvec)), self._device, mask=self.mask)


class Composite(TensorSpec):
    """Specs by key; a key may be a tuple that leads into nested ones.

    - ``shape`` (also ``batch_size``): the first dimensions of all values, which are the batch size of TensorDicts.
    - ``device``: that of all specs; None (the default) leaves it to each.

    Specs are given as one mapping, whose nested mappings become Composites, or as keywords. Of a key whose spec is None
    everything is in the spec. Raises UsageError for a spec whose shape does not begin with that of the Composite, or of
    another device.
    """

    _domain = "composite"

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
            raise ArgumentTypeError(f"{type(specs).__name__} is not a mapping from keys to specs")
        for key, spec in [*(specs.items() if specs is not None else ()), *keys.items()]:
            self[key] = spec

    @property
    def shape(self) -> torch.Size:
        """The first dimensions of all values; can be set to another beginning of their shapes."""
        return self._shape

    @shape.setter
    def shape(self, shape: Shape) -> None:
        size = _size(shape)
        self._specs = {key: _below(size, self._device, key, spec) for key, spec in self._specs.items()}
        self._shape = size

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
                hint = f"there are {', '.join(map(str, self.keys(True)))}"
                raise UnknownKeyError(f"there is no spec {key!r}", hint=hint)
            found = found._specs[part]
        return found

    def __setitem__(self, key: Key, spec: TensorSpec | Mapping[Any, Any] | None) -> None:
        path = _path(key)
        if path is None:
            raise ArgumentTypeError(f"{key!r} is not a key: a string, or a tuple of strings")
        first, rest = path[0], path[1:]
        if rest:
            inner = self._specs[first] if first in self._specs else self.empty()
            if not isinstance(inner, Composite):
                raise UsageError(f"{first!r} is the key of a spec: there cannot be others below it")
            inner[rest] = spec
            spec = inner
        elif isinstance(spec, Mapping):
            spec = Composite(spec, shape=self._shape, device=self._device)
        self._specs[first] = _below(self._shape, self._device, first, spec)

    def __delitem__(self, key: Key) -> None:
        path = _path(key)
        self[key]  # raises for a missing key
        assert path is not None
        del (self[path[:-1]] if path[1:] else self)._specs[path[-1]]

    def __contains__(self, key: Any) -> bool:
        missing = object()
        return _path(key) is not None and self.get(key, missing) is not missing

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
        """The keys of `items`: strings, and tuples of them for nested ones."""
        return [key for key, _ in self.items(include_nested, leaves_only)]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """The specs of `items`."""
        return [spec for _, spec in self.items(include_nested, leaves_only)]

    def get(self, key: Key, default: Any = None) -> Any:
        """The spec of a key; ``default`` if there is none."""
        try:
            return self[key]
        except UnknownKeyError:
            return default

    def set(self, key: Key, spec: TensorSpec | Mapping[Any, Any] | None) -> Self:
        """Set the spec of a key; returns the Composite."""
        self[key] = spec
        return self

    def update(self, specs: Mapping[Any, Any] | Composite) -> Self:
        """Set several specs, also of nested ones; they are moved to the Composite's device, if it has one."""
        for key, spec in specs.items():
            if isinstance(self.get(key), Composite) and isinstance(spec, (Mapping, Composite)):
                self[key].update(spec)
            else:
                self[key] = spec.to(self._device) if isinstance(spec, TensorSpec) else spec
        return self

    def pop(self, key: Key, *default: Any) -> Any:
        """Remove a key and return its spec; ``default``, if given, where there is none. Raises UnknownKeyError without."""
        if default and key not in self:
            return default[0]
        spec = self[key]
        del self[key]
        return spec

    def empty(self) -> Composite:
        """A Composite of the same shape and device without specs."""
        return Composite(shape=self._shape, device=self._device)

    def is_empty(self, recurse: bool = False) -> bool:
        """Whether there are no specs; with ``recurse``, none but empty Composites and None."""
        return not (self._stated() if recurse else self._specs)

    def _stated(self) -> list[tuple[str, Any]]:
        """The keys whose spec is not None, and their specs."""
        empty = (spec is None or (isinstance(spec, Composite) and spec.is_empty(True)) for spec in self._specs.values())
        return [item for item, nothing in zip(self._specs.items(), empty) if not nothing]

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
        """The value itself where it is in the spec, otherwise a shallow copy with other tensors for keys that are not."""
        before = {key: value[key] for key, _ in self._stated()}
        after = {key: self._specs[key].project(one) for key, one in before.items()}
        if all(after[key] is before[key] for key in before):
            return value
        projected = value.copy()
        for key, one in after.items():
            projected[key] = one
        return projected

    def encode(self, value: Any, *, ignore_device: bool = False) -> TensorDict:
        shape = value.batch_size if isinstance(value, TensorDictBase) else self._shape
        device = None if ignore_device else self._device
        encoded = self._each(value, lambda spec, one: spec.encode(one, ignore_device=ignore_device))
        return TensorDict(encoded, batch_size=shape, device=device)

    def to_numpy(self, value: Any, safe: bool = True) -> dict[str, Any]:
        return self._each(value, lambda spec, one: spec.to_numpy(one, safe))

    def _each(self, value: Any, change: Callable[[TensorSpec, Any], Any]) -> dict[str, Any]:
        """The results of ``change`` for the values of each key; SpecError names the key."""
        changed = {}
        for key, one in _with_keys(value).items():
            spec = self[key]
            if spec is None:
                raise UsageError(f"the spec of {key!r} is None: its values cannot be converted")
            try:
                changed[key] = change(spec, one)
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

    _unlike = "of other keys, shapes or devices"

    def _parts(self) -> dict[str, Any]:
        return self._specs

    def _set_parts(self, parts: dict[str, Any]) -> None:
        self._specs = parts

    def _description(self) -> tuple[Any, ...]:
        return type(self), self._shape, self._device, {key: spec is None for key, spec in self._specs.items()}

    def to(self, dest: torch.dtype | Device) -> Self:
        if dest is None:
            return self
        changed = self._with(lambda _, spec: spec.to(dest))
        if not isinstance(dest, torch.dtype):
            changed._device = _device(dest)
        same = all(changed._specs[key] is spec for key, spec in self._specs.items())
        return self if same and changed._device == self._device else changed

    def __repr__(self) -> str:
        lines = [f"{key}: {spec!r}".replace("\n", "\n    ") for key, spec in self._specs.items()]
        lines += [f"device={self._device}", f"shape={self._shape}"]
        return f"{type(self).__name__}(\n    " + ",\n    ".join(lines) + ")"

    def to_torchrl(self) -> Any:
        specs = {key: None if spec is None else spec.to_torchrl() for key, spec in self._specs.items()}
        return _torchrl().Composite(specs, shape=self._shape, device=self._device)


# -- names of TorchRL before 0.6 -----------------------------------------------------------------------------------------

BinaryDiscreteTensorSpec = Binary
BoundedTensorSpec = Bounded
CompositeSpec = Composite
DiscreteTensorSpec = Categorical
MultiDiscreteTensorSpec = MultiCategorical
MultiOneHotDiscreteTensorSpec = MultiOneHot
OneHotDiscreteTensorSpec = OneHot
UnboundedContinuousTensorSpec = UnboundedContinuous
UnboundedDiscreteTensorSpec = UnboundedDiscrete


# -- arguments -----------------------------------------------------------------------------------------------------------


def _size(shape: Shape) -> torch.Size:
    listed = shape.tolist() if isinstance(shape, (np.ndarray, Tensor)) else shape
    try:
        sizes = [operator.index(one) for one in (listed if isinstance(listed, Sequence) else [listed])]
    except TypeError as error:
        raise ArgumentTypeError(f"{shape!r} is not a shape: a whole number, or a sequence of them") from error
    if any(size < 0 for size in sizes):
        raise UsageError(f"shape {sizes}: sizes cannot be negative")
    return torch.Size(sizes)


def _device(device: Device) -> torch.device:
    found = torch.get_default_device() if device is None else torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def _domain(domain: str | None, dtype: torch.dtype) -> str:
    if domain is None:
        return "continuous" if dtype.is_floating_point else "discrete"
    if domain not in ("continuous", "discrete"):
        raise UsageError(f"domain={domain!r}: it is 'continuous' or 'discrete'")
    return domain


def _dimension(dim: int, most: int, ndim: int) -> int:
    """``dim`` counted from the front; it must be below ``most``."""
    found = dim + ndim if dim < 0 else dim
    if not 0 <= found < most:
        raise UsageError(f"dim={dim} of a spec with {ndim} dimensions", hint=f"from 0 to {most - 1}" if most else None)
    return found


def _counts(counts: Sequence[Any]) -> tuple[int, ...]:
    try:
        found = tuple(map(operator.index, counts))
    except TypeError as error:
        raise ArgumentTypeError(f"numbers of choices are whole numbers, not {str(counts)[:80]}") from error
    for count in found:
        if not 1 <= count < 2**63:
            raise UsageError(f"{count} choices: there must be at least 1, and fewer than 2**63")
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
    if not isinstance(key, tuple) or not key:
        return None
    parts = [_path(part) for part in key]
    return None if None in parts else tuple(name for part in parts for name in part or ())


def _with_keys(value: Any) -> Any:
    if not isinstance(value, (Mapping, TensorDictBase)):
        raise ArgumentTypeError(f"{type(value).__name__} has no keys: a TensorDict or a dict is expected")
    return value


def _below(shape: torch.Size, device: torch.device | None, key: str, spec: Any) -> Any:
    """A spec as a Composite of this shape and device holds it under ``key``."""
    if spec is None:
        return None
    if not isinstance(spec, TensorSpec):
        hint = "TensorSpec.from_torchrl(spec)" if hasattr(spec, "is_in") else None
        raise ArgumentTypeError(f"{key}: {type(spec).__name__} is not a spec", hint=hint)
    if isinstance(spec, Composite) and spec.ndim < len(shape) and shape[: spec.ndim] == spec.shape:
        spec = spec.clone()
        spec.shape = shape
    if spec.shape[: len(shape)] != shape or spec.ndim - spec._kept < len(shape):
        raise UsageError(f"{key}: a spec of shape {list(spec.shape)} in a Composite of shape {list(shape)}")
    if device is not None and spec.device is None:
        return spec.to(device)
    if device is not None and spec.device != device:
        raise UsageError(f"{key}: a spec of {spec.device} in a Composite of {device}", hint=f"spec.to({str(device)!r})")
    return spec


# -- numbers -------------------------------------------------------------------------------------------------------------


def _tensor(value: Numbers) -> Tensor:
    """A tensor as it is, everything else copied into one: an environment may reuse its arrays."""
    if isinstance(value, Tensor):
        if value.dtype not in _DTYPES:
            raise ArgumentTypeError(f"specs have no values of {value.dtype}")
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty((), object)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ArgumentTypeError(f"{str(value)[:80]} is not an array of numbers")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # of these PyTorch calculates with uint8 only
        if (array > np.iinfo(np.int64).max).any():
            raise SpecError(f"{array.max()} is too large for int64")
        array = array.astype(np.int64)
    return torch.tensor(array.astype(array.dtype.newbyteorder("=")), device="cpu")


def _converted(tensor: Tensor, dtype: torch.dtype, what: str = "values") -> Tensor:
    """A tensor of another dtype. Raises SpecError for numbers that it cannot hold; fractions of floats are rounded."""
    if tensor.dtype == dtype:
        return tensor
    converted = tensor.to(dtype)
    if tensor.is_floating_point() and dtype.is_floating_point:
        wrong = converted.isinf() & tensor.isfinite()
    else:  # the way back is not enough: -1 of int8 is 255 of uint8
        wrong = (converted.to(tensor.dtype) != tensor) | ((converted < 0) != (tensor < 0))
    if wrong.any():
        raise SpecError(f"{dtype} cannot hold {what} such as {tensor[wrong][0].item()}")
    return converted


def _nearest(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The numbers nearest to those of ``value`` between ``low`` and ``high``, in the dtype of these."""
    # 64 bits: a bound, or a number beyond the bounds, may be too large for the other dtype.
    wide = value.double() if value.is_floating_point() else value.long()
    if value.is_floating_point():
        if wide.isnan().any():
            raise SpecError("no value of the spec is near NaN")
        wide = wide if low.is_floating_point() else wide.round()
    low, high = low.to(value.device), high.to(value.device)
    return torch.where(wide <= low, low, torch.where(wide >= high, high, wide.to(low.dtype)))


def _whole_numbers(low: Tensor, high: Tensor, shape: Sequence[int]) -> Tensor:
    """Whole numbers between ``low`` and ``high``, both included, in their dtype, uniform over up to 2**64 of them."""
    generator = np.random.default_rng(int(torch.randint(2**63 - 1, (), device="cpu")))
    first, last = (bound.cpu().numpy() for bound in (low, high))
    return torch.from_numpy(np.asarray(generator.integers(first, last, tuple(shape), first.dtype, endpoint=True)))


def _drawn(weights: Tensor) -> Tensor:
    """For each row of weights ``[..., n]`` the number of an entry, drawn with these weights, int64 ``[...]``."""
    rows = weights.reshape(-1, weights.shape[-1]).double()
    if not rows.any(-1).all():
        raise SpecError("the mask of the spec allows no choice")
    return torch.multinomial(rows, 1).reshape(weights.shape[:-1])


def _picked(entries: Tensor, numbers: Tensor) -> Tensor:
    """For each row of ``entries`` ``[..., n]``, the entry with the number in ``numbers`` ``[...]``, both broadcast."""
    try:
        shape = torch.broadcast_shapes(entries.shape[:-1], numbers.shape)
    except RuntimeError as error:
        raise UsageError(f"numbers of shape {list(numbers.shape)} for rows of {list(entries.shape[:-1])}") from error
    places = numbers.to(entries.device, torch.int64).expand(shape).unsqueeze(-1)
    return entries.expand(*shape, entries.shape[-1]).gather(-1, places).squeeze(-1)


def _one_hot(numbers: Tensor, width: int) -> Tensor:
    return numbers.unsqueeze(-1) == torch.arange(width, device=numbers.device)


def _shown(value: Any) -> str:
    """An attribute as `repr` has it: a tensor by its number, if it has only one, otherwise by its shape."""
    if not isinstance(value, Tensor):
        return str(value)
    if not value.numel() or value.is_meta:
        return f"Tensor(shape={list(value.shape)})"
    least, most = value.min().item(), value.max().item()
    if least == most:
        return str(least)
    return str(value.tolist()) if value.numel() <= 8 else f"Tensor({least}..{most}, shape={list(value.shape)})"


# -- stacks --------------------------------------------------------------------------------------------------------------


def _stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    specs = list(tensors)
    if not all(isinstance(spec, TensorSpec) for spec in specs):
        raise ArgumentTypeError("specs are stacked with specs alone")
    first = specs[0]
    return first._stacked(specs, _dimension(dim, first.ndim - first._kept + 1, first.ndim + 1))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.stack: _stack,
    torch.squeeze: lambda input, dim=None: input.squeeze(dim),
    torch.unsqueeze: lambda input, dim: input.unsqueeze(dim),
}


# -- TorchRL -------------------------------------------------------------------------------------------------------------


def _torchrl() -> Any:
    try:
        from torchrl.data import tensor_specs
    except ImportError as error:
        raise MissingExtraError("TorchRL's specs need torchrl", hint="pip install torchrl") from error
    return tensor_specs


#: In the order in which TorchRL's classes must be tested, because some derive from others.
_LEAVES: tuple[type[_LeafSpec], ...] = (MultiOneHot, OneHot, Binary, MultiCategorical, Categorical, Bounded, Unbounded)


def _from_torchrl(spec: Any) -> Any:
    theirs = _torchrl()
    if spec is None or isinstance(spec, TensorSpec):
        return spec
    if isinstance(spec, (theirs.Stacked, theirs.StackedComposite)):
        return _stack([_from_torchrl(one) for one in spec._specs], spec.stack_dim)
    if isinstance(spec, theirs.Composite):
        if spec.data_cls is not None or spec.step_mdp_static or spec._has_names():
            raise UsageError("a Composite with data_cls, step_mdp_static or names has no equal here")
        specs = {key: _from_torchrl(one) for key, one in spec.items()}
        return Composite(specs, shape=spec.shape, device=spec.device)
    kind = next((kind for kind in _LEAVES if isinstance(spec, getattr(theirs, kind.__name__))), None)
    if kind is None:
        raise UsageError(f"{type(spec).__name__} has no equal here")
    if getattr(spec, "use_register", False):
        raise UsageError(f"a {type(spec).__name__} with a register has no equal here")
    try:
        own = {name: getattr(spec, name) for name in (*kind._plain, *kind._tensors)}
    except RuntimeError as error:  # Categorical(-1)
        raise UsageError(f"a {type(spec).__name__} without a number of choices has no equal here") from error
    return kind(shape=spec.shape, device=spec.device, dtype=spec.dtype, **own)
