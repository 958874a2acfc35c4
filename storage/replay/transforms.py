"""Transforms of batches that are sampled from a buffer, and of data that are written to it.

A transform is any callable that takes a batch and returns one (or changes it in place and returns None), a
``torch.nn.Module``, or an object with an ``inv`` method as well, such as TorchRL's transforms: ``forward`` when sampling,
``inv`` when writing, in the reverse order. Inverted, it is the other way round:

    sampling     storage -> a -> b -> batch
    writing      storage <- a.inv <- b.inv <- data

`RandomCropTensorDict` crops in time. `MultiStep` makes n-step returns of batches in memory, ``[*batch, time]``. Unlike those
of the option `n_step`, which are read from the storage, they also end with the batch, where the last state replaces the n-th.
`split_trajectories` turns a flat batch of trajectories into a batch with one row per trajectory.

flat        a0 a1 a2 b0 b1          ->       a0 a1 a2        mask  T T T
                                             b0 b1 --              T T F
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ...errors import SamplingError, SchemaError, UsageError, reason
from ..keywords import whole_number
from ..schema import FLAGS
from .overrides import is_own_code
from .storages.trees import as_dense, copy_of
from .timeline import as_key, entry_key


class Inverted:
    """A transform the other way round: its forward when writing, its inverse when sampling."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, data: Any) -> Any:
        return _inverse(self.transform, data)

    def inv(self, data: Any) -> Any:
        return _forward(self.transform, data)

    def __repr__(self) -> str:
        return f"Inverted({self.transform!r})"


class Transforms:
    """A chain of transforms."""

    def __init__(self, *transforms: Any) -> None:
        self._chain: list[Any] = []
        for transform in transforms:
            self.append(transform)

    def append(self, transform: Any, *, invert: bool = False) -> None:
        """Add at the end: applied last when sampling, first when writing."""
        self.insert(len(self._chain), transform, invert=invert)

    def insert(self, place: int, transform: Any, *, invert: bool = False) -> None:
        """Add before the transform at ``place``. Raises UsageError for objects that cannot be called, and invalid places."""
        if not callable(transform):
            raise UsageError(f"a transform is something to be called with a batch, not a {type(transform).__name__}")
        if not -len(self._chain) <= place <= len(self._chain):
            raise UsageError(f"there is no place {place} among {len(self._chain)} transforms")
        if isinstance(transform, torch.nn.Module):
            transform.eval()
        chain = self._chain.copy()  # batches that are being made keep the old chain
        chain.insert(place, Inverted(transform) if invert else transform)
        self._chain = chain

    def __call__(self, batch: Any) -> Any:
        batch = as_dense(batch) if self._chain else batch
        for transform in self._chain:
            batch = _forward(transform, batch)
        return batch

    def apply_to_stored(self, records: Any) -> Any:
        """Apply to records of the storage, without changing them there; of transforms only users' change tensors in place."""
        if not self._chain:
            return records
        if self.are_own_code:
            return self(copy_of(records))
        return self(records.copy() if is_tensor_collection(records) else records)

    def apply_beside(self, batch: Any, info: Iterable[str], flags: Mapping[Any, Any] | None = None) -> Any:
        """Apply to a batch whose keys ``info`` hold the sampler's information about its records.

        As in TorchRL, ``half()`` or ``select(...)`` must not affect these keys: they are restored, and ``flags`` (values by
        key) are restored if a transform removed them or changed their dtype. If the number of records changed, the info does
        not apply. If a transform selected among the drawn records, which ``index`` shows, the batch is returned unchanged: the
        keys moved with the records. Raises SamplingError if only some of the records with weights are drawn records.
        """
        if not self._chain or not isinstance(batch, TensorDictBase):
            return self(batch)
        batch = as_dense(batch)
        found = {key: batch.get(key, None) for key in info}
        said = {key: (value, value.clone(), _version(value)) for key, value in found.items() if value is not None}
        size = batch.batch_size
        batch = self(batch)
        if not isinstance(batch, TensorDictBase) or batch.batch_size != size:
            return batch
        now = {key: batch.get(key, None) for key in said}
        copies = {key: copy for key, (_, copy, _) in said.items()}
        in_place = {key for key, (value, _, version) in said.items() if _version(value) != version}
        changed = in_place | {key for key, (value, _, _) in said.items() if now[key] is not value}
        if "index" in changed and _chosen(copies, now, in_place=now["index"] is said["index"][0]):
            return batch
        for key in in_place:
            said[key][0].copy_(copies[key])  # the info shares this tensor
        lost = {key: copies[key] for key in changed}
        for key, value in (flags or {}).items():
            found_now = batch.get(key, None)
            if value is not None and (found_now is None or found_now.dtype != value.dtype):
                lost[key] = value
        if lost:
            batch = batch.copy() if batch.is_locked else batch
            for key, value in lost.items():
                batch.set(key, value if batch.device is None else value.to(batch.device))
        return batch

    def inv(self, data: Any) -> Any:
        """The data to write; None if a transform withholds them."""
        for transform in reversed(self._chain):
            data = _inverse(transform, data)
            if data is None:
                return None
        return data

    @property
    def are_own_code(self) -> bool:
        """Whether a transform comes from outside of this package."""
        return any(is_own_code(part.transform if isinstance(part, Inverted) else part) for part in self._chain)

    def __len__(self) -> int:
        return len(self._chain)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._chain)

    def __getitem__(self, place: int) -> Any:
        return self._chain[place]

    def state_dict(self) -> dict[str, Any]:
        """Copied states of the transforms that are modules, by ``place.name``: tensors, and results of ``get_extra_state``."""
        return {
            f"{place}.{name}": copied_state(value)
            for place, module in self._modules()
            for name, value in module.state_dict().items()
        }

    def changed_by_use(self) -> dict[str, Any]:
        """What a call may change of `state_dict`: without the parameters, which a learner changes meanwhile."""
        found: dict[str, Any] = {}
        for place, module in self._modules():
            parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
            state = {name: value for name, value in module.state_dict().items() if name not in parameters}
            found |= {f"{place}.{name}": copied_state(value) for name, value in state.items()}
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from ``state_dict``, here or of TorchRL's ``Compose``; all of it or, with UsageError, nothing."""
        before = self.state_dict()
        try:
            self._load(state)
        except BaseException:
            self._load(before)
            raise

    def _load(self, state: dict[str, Any]) -> None:
        # A module may keep the extra state that it is given, and change it.
        state = {name.removeprefix("transforms."): copied_state(value) for name, value in state.items()}
        for place, module in self._modules():
            prefix = f"{place}."
            own = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
            try:
                module.load_state_dict(own)
            except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise UsageError(f"the state does not fit transform {place}: {reason(error)}") from error

    def _modules(self) -> Iterator[tuple[int, torch.nn.Module]]:
        for place, transform in enumerate(self._chain):
            if isinstance(transform, Inverted):
                transform = transform.transform
            if isinstance(transform, torch.nn.Module):
                yield place, transform

    def __repr__(self) -> str:
        return f"Transforms({', '.join(map(repr, self._chain))})"


def _version(value: Any) -> Any:
    """A value that differs after an in-place change of a tensor, or of a tensor in a TensorDict."""
    if not isinstance(value, torch.Tensor):
        return [_version(leaf) for leaf in value.values(True, True)]
    return float("nan") if value.is_inference() else value._version  # inference mode does not count: always another one


def _chosen(said: dict[Any, Any], found: dict[Any, Any], *, in_place: bool) -> bool:
    """Whether the records of a batch are some of the drawn ones, in any order, judged by ``index`` and the other info.

    ``said``: the info of the drawn records, ``found``: the info in the batch. Raises SamplingError if only some records are.
    """
    drawn, now = _rows(said["index"]), _rows(found["index"])
    if drawn is None or now is None or now.dtype != drawn.dtype or now.shape != drawn.shape:
        return False
    count = len(drawn)
    numbers = torch.unique(torch.cat([drawn, now.to(drawn.device)]), dim=0, return_inverse=True)[1]
    of_drawn, of_now = numbers[:count], numbers[count:]
    source = torch.full((int(numbers.max()) + 1 if count else 0,), -1, device=numbers.device)
    source[of_drawn] = torch.arange(count, device=numbers.device)
    source = source[of_now]
    others = [(value, found[key]) for key, value in said.items() if key != "index"]

    def agree(places: torch.Tensor) -> bool:
        """Whether the info of the records at these places belongs to their rows."""
        return all(_is_said(value, other, count, source[places], places) for value, other in others)

    if bool((source >= 0).all()):
        moved = not in_place or torch.equal(of_drawn.sort().values, of_now.sort().values)
        return moved and not torch.equal(of_drawn, of_now) and agree(torch.arange(count, device=source.device))
    kept = (of_drawn == of_now).nonzero().squeeze(1)
    if in_place or not others or not len(kept) or not agree(kept):
        return False
    message = "a transform put records among those drawn of which the sampler has neither weights nor priorities"
    raise SamplingError(message, hint="sample from both buffers, and join the batches afterwards")


def _is_said(value: Any, found: Any, count: int, source: torch.Tensor, places: torch.Tensor) -> bool:
    """Whether ``found`` at ``places`` (of ``count`` records) equals ``value`` at ``source``, or is missing."""
    if not isinstance(value, torch.Tensor) or found is None:
        return True
    is_alike = isinstance(found, torch.Tensor) and found.shape == value.shape and found.dtype == value.dtype
    if not is_alike or value.numel() % count:
        return False
    flat, now = value.reshape(count, -1), found.reshape(count, -1)
    return torch.equal(flat[source.to(flat.device)], now[places.to(now.device)])


def _rows(index: Any) -> torch.Tensor | None:
    """The numbers that identify each record of an index, ``[n, numbers]``; for an ensemble including the member."""
    if isinstance(index, TensorDictBase):
        ids, rows = index.get("buffer_ids", None), index.get("index", None)
        are_tensors = isinstance(ids, torch.Tensor) and isinstance(rows, torch.Tensor)
        if not are_tensors or rows.numel() % max(1, ids.numel()):
            return None
        return torch.cat([ids.reshape(-1, 1), rows.reshape(ids.numel(), -1)], 1)
    return index.reshape(len(index), -1) if isinstance(index, torch.Tensor) and index.ndim else None


def copied_state(state: Any) -> Any:
    """A state in new memory."""

    def copied(leaf: Any) -> Any:
        return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else deepcopy(leaf)

    return pytree.tree_map(copied, state)


def as_transforms(transform: Any) -> Transforms:
    """A new chain, from the transforms of a chain (which another buffer may use as well), from one transform, or from None."""
    if isinstance(transform, Transforms):
        return Transforms(*transform)
    return Transforms() if transform is None else Transforms(transform)


def _forward(transform: Callable[[Any], Any], batch: Any) -> Any:
    result = transform(batch)
    return batch if result is None else result


def _inverse(transform: Any, data: Any) -> Any:
    inverse = getattr(transform, "inv", None)
    return data if inverse is None else inverse(data)


def share_state(transform: Any) -> None:
    """Put the state that a transform keeps between writes in shared memory. Raises UsageError if it cannot be shared."""
    if isinstance(transform, Inverted):
        transform = transform.transform
    share = getattr(transform, "share_memory_", None)
    parts = transform if isinstance(transform, Transforms) else getattr(transform, "transforms", None)
    if parts is not None:
        for part in parts:
            share_state(part)
    elif callable(share):
        share()
    elif getattr(transform, "requires_shared_write_state", False):
        kind = type(transform).__name__
        message = f"a {kind} keeps write state that processes cannot share: it has no share_memory_()"
        raise UsageError(message, hint="write in one process, or give the transform a share_memory_()")


class RandomCropTensorDict(torch.nn.Module):
    """A random contiguous piece of ``sub_seq_len`` steps along ``sample_dim`` of every sequence.

    Every start is equally likely, including the last one. With ``mask_key`` (bool, of the batch's shape) only real steps
    count, which must come first. Draws from ``generator``, or from torch's global generator. Raises SamplingError for
    sequences that are too short.
    """

    def __init__(
        self, sub_seq_len: int, sample_dim: int = -1, mask_key: Any = None, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.sub_seq_len = whole_number("sub_seq_len", sub_seq_len, 1)
        self.sample_dim, self.mask_key, self.generator = sample_dim, mask_key, generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tensordict.batch_size
        if not -len(shape) <= self.sample_dim < len(shape):
            raise SamplingError(f"a batch of shape {tuple(shape)} has no dimension {self.sample_dim} to crop")
        dim = self.sample_dim % len(shape)
        mask = None if self.mask_key is None else tensordict.get(self.mask_key, None)
        one = torch.Size([*shape[:dim], 1, *shape[dim + 1 :]])
        if mask is None:
            lengths = torch.full(one, shape[dim], device="cpu")
        else:
            if mask.shape != shape:
                raise SamplingError(f"the mask has shape {tuple(mask.shape)}, the batch {tuple(shape)}")
            lengths = mask.sum(dim, keepdim=True).cpu()
        if lengths.numel() and int(lengths.min()) < self.sub_seq_len:
            message = f"a sequence of {int(lengths.min())} steps has no piece of {self.sub_seq_len}"
            raise SamplingError(message, hint="reduce sub_seq_len, or sample longer slices")
        places = lengths - self.sub_seq_len + 1
        start = (torch.rand(one, dtype=torch.float64, generator=self.generator, device="cpu") * places).long()
        steps = torch.arange(self.sub_seq_len, device="cpu").view(*[-1 if d == dim else 1 for d in range(len(shape))])
        index = start + steps
        return tensordict.gather(dim, index.to(tensordict.device) if tensordict.device else index)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__() if hasattr(super(), "__getstate__") else self.__dict__
        generator = state["generator"]
        return {**state, "generator": None if generator is None else bytes(generator.get_state().numpy())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state["generator"]
        super().__setstate__({**state, "generator": None})
        if kept is not None:
            self.generator = torch.Generator()
            self.generator.set_state(torch.frombuffer(bytearray(kept), dtype=torch.uint8))


class MultiStep(torch.nn.Module):
    """Rewards become discounted sums over up to ``n_steps``; other leaves of ``next``, except flags, come from the last step.

    The batch must be ``[*batch, time]`` and have ``("next", "reward")`` and ``("next", "done")``; a new TensorDict is returned.
    Where done is ``[*batch, time, *group]`` (one for each of several agents), all leaves must begin with these dimensions.
    Added: ``steps_to_next_obs`` (int64), ``gamma`` (gamma^steps, float32), ``nonterminal`` (bool, whether more than one step
    was taken; False where a ``("collector", "mask")`` is), all of the batch's shape, and ``("next", "original_reward")``.
    ``n_steps=1`` changes nothing but adds these. Raises UsageError for n below 1 and gamma outside (0, 1].
    """

    def __init__(self, gamma: float, n_steps: int) -> None:
        super().__init__()
        n_steps = whole_number("n_steps", n_steps, 1)
        if not 0 < gamma <= 1:
            raise UsageError(f"gamma must lie in (0, 1], and is {gamma!r}")
        self.gamma, self.n_steps = float(gamma), n_steps

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = tensordict.clone(False)
        done, reward = (out.get(("next", name), None) for name in ("done", "reward"))
        if done is None or reward is None:
            raise SchemaError("n-step returns need next/done and next/reward in the batch")
        if done.shape != out.shape and done.shape != (*out.shape, 1):
            return self._of_groups(out, done.shape)
        taken = self._taken(done.reshape(out.batch_size))
        summed = self._summed(reward, taken)
        last = torch.arange(out.batch_size[-1], device=taken.device) + taken - 1
        following = out.get("next").exclude("reward", *FLAGS).gather(-1, last)
        out.set(("next", "original_reward"), reward)
        out.set(("next", "reward"), summed)
        out.get("next").update(following)
        out.set("steps_to_next_obs", taken)
        out.set("gamma", (self.gamma ** taken.double()).float())
        mask = out.get(("collector", "mask"), None)
        return out.set("nonterminal", taken > 1 if mask is None else (taken > 1) & mask.reshape(out.batch_size))

    def _of_groups(self, data: TensorDictBase, shape: torch.Size) -> TensorDictBase:
        """The same for a batch whose members each have their own done, ``[*batch, time, *group]``: so has every leaf."""
        time, dims = data.ndim - 1, len(shape)
        try:
            wide = data.copy()
            wide.batch_size = shape
        except RuntimeError as error:
            message = f"next/done of shape {tuple(shape)} is not one flag for each of {tuple(data.shape)}"
            raise SchemaError(message) from error
        moved = wide.apply(lambda leaf: leaf.movedim(time, dims - 1), batch_size=wide.movedim(time, dims - 1).shape)
        return self.forward(moved).apply(lambda leaf: leaf.movedim(dims - 1, time), batch_size=data.batch_size)

    def _taken(self, done: torch.Tensor) -> torch.Tensor:
        """Steps to the first done, the end of the batch, or ``n_steps``; int64 ``[*batch, time]``."""
        time = done.shape[-1]
        place = torch.arange(time, device=done.device).expand(done.shape)
        ends = torch.where(done, place, time - 1)
        # The nearest end at or after each step is a running minimum from the back.
        nearest = ends.flip(-1).cummin(-1).values.flip(-1)
        return (nearest - place + 1).clamp(max=self.n_steps)

    def _summed(self, reward: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        """Sum of gamma^k r[t + k] for k below ``taken``; the reward's shape."""
        dim = taken.ndim - 1
        time = reward.shape[dim]
        shape = (*taken.shape, *[1] * (reward.ndim - taken.ndim))
        total = torch.zeros_like(reward, dtype=torch.float64)
        for step in range(min(self.n_steps, time)):
            shifted = reward.narrow(dim, step, time - step).double() * self.gamma**step
            total.narrow(dim, 0, time - step).add_(shifted * (taken > step).view(shape).narrow(dim, 0, time - step))
        return total.to(reward.dtype if reward.is_floating_point() else torch.float32)


def split_trajectories(
    rollout_tensordict: TensorDictBase,
    *,
    prefix: Any = None,
    trajectory_key: Any = None,
    done_key: Any = None,
    as_nested: bool | torch.layout = False,
) -> TensorDictBase:
    """Split a batch ``[*batch, time]`` into ``[trajectories, longest]``, filled up with zeros.

    Trajectories are identified by ``trajectory_key`` (default ``traj_ids``, under ``prefix``, which is ``collector`` if the
    batch has it), or if that is missing by ``("next", done_key)``; ids are then added. Always added: ``mask`` beside the ids,
    bool ``[trajectories, longest]``, True for data. With ``as_nested`` (True, or a layout such as ``torch.jagged``) leaves are
    nested tensors, the batch is ``[trajectories, -1]`` (jagged: ``[trajectories]``) without a mask, unless all trajectories
    have the same length. Raises SchemaError if both ids and done are missing.
    """
    if trajectory_key is not None:
        ids_key = as_key(trajectory_key)
    else:
        if prefix is None and "collector" in rollout_tensordict.keys():  # noqa: SIM118
            prefix = "collector"
        ids_key = ("traj_ids",) if prefix in (None, ()) else (*as_key(prefix), "traj_ids")
    mask_key = (*ids_key[:-1], "mask")
    data = rollout_tensordict.copy()
    ids = data.get(entry_key(ids_key), None)
    if ids is None:
        ids = _ids_from_done(data, ("next", *as_key(done_key or "done")))
        data.set(entry_key(ids_key), ids)
    if not data.ndim:
        raise SchemaError("a batch without dimensions has no trajectories")
    flat, ids = data.reshape(-1), ids.reshape(data.batch_size.numel(), -1)[:, 0]
    ends = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    ends[:-1] = ids[1:] != ids[:-1]
    last = ends.nonzero().squeeze(1)
    lengths = torch.diff(last, prepend=last.new_tensor([-1]))
    longest = int(lengths.max()) if len(lengths) else 0
    if as_nested is not False and not (lengths == longest).all():
        return _nested(flat, lengths.tolist(), torch.strided if as_nested is True else as_nested)
    steps = torch.arange(longest, device=ids.device)
    mask = steps < lengths[:, None]
    source = torch.where(mask, (last - lengths + 1)[:, None] + steps, 0)
    out = flat[source.reshape(-1)].reshape(len(lengths), longest)
    if not bool(mask.all()):
        padding = ~mask
        out = out.apply(lambda leaf: leaf.masked_fill(padding.view(*mask.shape, *[1] * (leaf.ndim - 2)), 0))
    out.set(entry_key(mask_key), mask)
    return out


def _nested(flat: TensorDictBase, lengths: list[int], layout: torch.layout) -> TensorDictBase:
    batch = [len(lengths), *([-1] if layout == torch.strided else [])]  # no jagged tensors for a second dimension
    nest = partial(torch.nested.as_nested_tensor, layout=layout)
    return flat.apply(lambda leaf: nest(list(leaf.split(lengths))), batch_size=batch)


def _ids_from_done(data: TensorDictBase, key: tuple[str, ...]) -> torch.Tensor:
    done = data.get(key, None)
    if done is None:
        raise SchemaError(f"there are neither trajectory ids nor {'/'.join(key)} in the batch")
    ended = done.reshape(data.batch_size).long()
    ids = ended.cumsum(-1) - ended  # a step that is done belongs to the trajectory it ends
    rows = ids.reshape(-1, ids.shape[-1])
    before = (rows[:, -1] + 1).cumsum(0) - (rows[:, -1] + 1)
    return (rows + before[:, None]).reshape(ids.shape)
