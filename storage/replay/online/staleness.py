"""Sampling by age: records of old policies are drawn less often, or never.

Each record has the version of the policy that made it; the learner sets its own version. The difference is the staleness of
a record. The probability of a record is proportional to a weight of its staleness, 1 / (staleness + 1) by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ....errors import SamplingError, UnknownKeyError, UsageError
from ..draw import Draw
from ..samplers.sampler import Sampler
from ..storages.storage import Storage, require_records
from ..timeline import as_key


class StalenessAwareSampler(Sampler):
    """Draws in proportion to freshness; batches have ``"staleness"`` (float32 ``[N]``).

    - ``max_staleness``: records with a larger staleness are not drawn; -1 for no limit.
    - ``staleness_weight_fn``: the weights of stalenesses, ``[n]`` to ``[n]``; by default 1 / (staleness + 1).
    - ``version_key``: the key of the policy version in the data, one number per record.

    ``consumer_version`` is the learner's version, to be set during training. A batch has no record twice if enough records
    may be drawn. The cost of a draw is proportional to the length of the storage.
    """

    ahead = False

    def __init__(
        self,
        max_staleness: int = -1,
        staleness_weight_fn: Callable[[torch.Tensor], torch.Tensor] | None = None,
        version_key: Any = "policy_version",
    ) -> None:
        self.max_staleness, self.version_key = max_staleness, version_key
        self.staleness_weight_fn = staleness_weight_fn or _inverse
        self.consumer_version = 0

    def increment_consumer_version(self) -> None:
        self.consumer_version += 1

    def draw(self, storage: Storage, batch_size: int, generator: torch.Generator) -> Draw:
        size = require_records(storage)
        key = as_key(self.version_key)
        versions = storage.column_as_read(key)
        if versions is None:
            message = f"the storage has no {'/'.join(key)} to tell the age of records by"
            raise UnknownKeyError(message, hint="name the version_key, or write the policy's version with the data")
        if versions.numel() != size:
            raise UsageError(f"{'/'.join(key)} has {versions.numel()} values for {size} records")
        # Subtracted in float64: versions that count steps may exceed the precision of float32.
        staleness = (self.consumer_version - versions.reshape(-1).cpu().double()).float()
        rows = torch.arange(size, device="cpu")
        if self.max_staleness >= 0:
            rows = (staleness <= self.max_staleness).nonzero().squeeze(1)
            if not len(rows):
                most, now = self.max_staleness, self.consumer_version
                message = f"all {size} records exceed max_staleness={most} at version {now}"
                raise SamplingError(message, hint="allow older ones, or collect with newer policies")
        weights = torch.as_tensor(self.staleness_weight_fn(staleness[rows]), device="cpu").double()
        if weights.shape != rows.shape:
            message = f"staleness_weight_fn gave weights of shape {list(weights.shape)} for {len(rows)} records"
            hint = "return one weight for each staleness, 0 for records that are not to be drawn"
            raise UsageError(message, hint=hint)
        drawn = rows[_weighted(weights, batch_size, generator)]
        return Draw(drawn, info={"staleness": staleness[drawn]})

    def empty(self) -> None:
        self.consumer_version = 0

    def state_dict(self) -> dict[str, Any]:
        return {"consumer_version": self.consumer_version, "max_staleness": self.max_staleness}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not {"consumer_version", "max_staleness"} <= set(state):
            raise UsageError(f"the state is not that of a {type(self).__name__}")
        self.consumer_version, self.max_staleness = int(state["consumer_version"]), int(state["max_staleness"])

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(consumer_version={self.consumer_version}, max_staleness={self.max_staleness})"


def _inverse(staleness: torch.Tensor) -> torch.Tensor:
    return 1 / (staleness.clamp(min=0) + 1)


def _weighted(weights: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """Places drawn in proportion to weights, float64 ``[n]``: without repetition if there are enough, int64 ``[count]``.

    ``torch.multinomial`` is limited to 2^24 places. The smallest values of Exp(1) / weight are distributed as successive
    draws without replacement (Efraimidis and Spirakis, 2006).
    """
    possible = int((weights > 0).sum())
    if not possible or not bool(weights.isfinite().all()) or bool((weights < 0).any()):
        raise SamplingError("the weights of records are to be finite and not negative, and not all of them zero")
    if count > possible:
        running = weights.cumsum(0)
        mass = torch.rand(count, dtype=torch.float64, generator=generator, device="cpu") * running[-1]
        return torch.searchsorted(running, mass, right=True).clamp(max=len(weights) - 1)
    waits = torch.empty(len(weights), dtype=torch.float64, device="cpu").exponential_(generator=generator) / weights
    return waits.topk(count, largest=False).indices
