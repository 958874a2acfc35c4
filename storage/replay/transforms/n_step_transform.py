"""n-step returns of batches that are at hand, ``[*batch, time]``: what collectors and slice samplers give.

Read from a storage, n-step returns come from `n_step` and end where the episode does. Here nothing beyond the batch is
known: they also end with the batch, where the last state takes the place of the n-th.
"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from ....errors import SchemaError, UsageError
from ...schema import FLAGS


class MultiStep(torch.nn.Module):
    """Rewards become discounted sums over up to ``n_steps``, and all of ``next`` but the flags that of the last of them.

    The batch must be ``[*batch, time]`` and have ``("next", "reward")`` and ``("next", "done")``; a new TensorDict is returned.
    Where done is ``[*batch, time, *group]`` (one for each of several agents), all leaves must begin with these dimensions.
    Added: ``steps_to_next_obs`` (int64), ``gamma`` (gamma^steps, float32), ``nonterminal`` (bool, whether more than one step
    was taken; False where a ``("collector", "mask")`` is), all of the batch's shape, and ``("next", "original_reward")``.
    ``n_steps=1`` changes nothing but adds these. Raises UsageError for n below 1 and gamma outside (0, 1].
    """

    def __init__(self, gamma: float, n_steps: int) -> None:
        super().__init__()
        if not isinstance(n_steps, int) or n_steps < 1:
            raise UsageError(f"n_steps must be a whole number of at least 1, not {n_steps!r}")
        if not 0 < gamma <= 1:
            raise UsageError(f"gamma must lie in (0, 1], and is {gamma!r}")
        self.gamma, self.n_steps = gamma, n_steps

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
        nonterminal = taken > 1
        mask = out.get(("collector", "mask"), None)
        if mask is not None:
            nonterminal &= mask.reshape(out.batch_size)
        out.set("nonterminal", nonterminal)
        return out

    def _of_groups(self, data: TensorDictBase, shape: torch.Size) -> TensorDictBase:
        """The same for a batch whose members each have a done of their own, ``[*batch, time, *group]``: so has every leaf."""
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
        # The nearest end at or after each step: running minimum from the back.
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
        return total.to(reward.dtype)
