"""Transforms of time: crops, n-step returns of batches in memory, one row for each trajectory.

`RandomCropTensorDict` crops in time. `MultiStep` makes n-step returns of batches in memory, ``[*batch, time]``. Unlike those
of the option ``n_step``, which are read from the storage, they also end with the batch, where the last state replaces the n-th.
`split_trajectories` turns a flat batch of trajectories into a batch with one row per trajectory.

flat        a0 a1 a2 b0 b1          ->       a0 a1 a2        mask  T T T
                                             b0 b1 --              T T F
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase

from ...errors import SamplingError, SchemaError
from ..keywords import whole_number
from ..schema import FLAGS
from .around import NStep
from .order import batch_generator
from .timeline import as_key, entry_key


class RandomCropTensorDict(torch.nn.Module):
    """A random contiguous piece of ``sub_seq_len`` steps along ``sample_dim`` of every sequence.

    Every start is equally likely, including the last one. With ``mask_key`` (bool, of the batch's shape) only real steps
    count, which must come first. In a buffer draws are those of the batch, else of torch's global generator. Raises
    SamplingError for sequences that are too short.
    """

    def __init__(self, sub_seq_len: int, sample_dim: int = -1, mask_key: Any = None) -> None:
        super().__init__()
        self.sub_seq_len = whole_number("sub_seq_len", sub_seq_len, 1)
        self.sample_dim, self.mask_key = sample_dim, mask_key

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
        share = torch.rand(one, dtype=torch.float64, generator=batch_generator(), device="cpu")
        start = (share * places).long()
        steps = torch.arange(self.sub_seq_len, device="cpu").view(*[-1 if d == dim else 1 for d in range(len(shape))])
        index = start + steps
        return tensordict.gather(dim, index.to(tensordict.device) if tensordict.device else index)


class MultiStep(torch.nn.Module):
    """Rewards become discounted sums over up to ``n_steps``; other leaves of ``next``, except flags, come from the last step.

    The batch must be ``[*batch, time]`` and have ``("next", "reward")`` and ``("next", "done")``; a new TensorDict is returned.
    Added: ``steps_to_next_obs`` (int64), ``gamma`` (gamma^steps, float32), ``nonterminal`` (bool, whether more than one step
    was taken; False where a ``("collector", "mask")`` is), all of the batch's shape, and ``("next", "original_reward")``.
    ``n_steps=1`` changes nothing but adds these. Raises UsageError for n below 1 and gamma outside (0, 1].
    """

    def __init__(self, gamma: float, n_steps: int) -> None:
        super().__init__()
        returns = NStep(n_steps, gamma)
        self.gamma, self.n_steps = returns.gamma, returns.steps

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = tensordict.clone(False)
        done, reward = (out.get(("next", name), None) for name in ("done", "reward"))
        if done is None or reward is None:
            raise SchemaError("n-step returns need next/done and next/reward in the batch")
        if done.shape != out.shape and done.shape != (*out.shape, 1):
            raise SchemaError(f"next/done of shape {tuple(done.shape)} is not one flag for each of {tuple(out.shape)}")
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
