"""Random crops in time."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from ....errors import SamplingError, UsageError


class RandomCropTensorDict(torch.nn.Module):
    """A random contiguous piece of ``sub_seq_len`` steps along ``sample_dim`` of every sequence.

    Every start is as likely, the last one included. With ``mask_key`` (bool, of the batch's shape) only steps that are
    there count, which must come first. Draws from ``generator``, or from torch's global one. Raises SamplingError for
    sequences that are too short.
    """

    def __init__(
        self,
        sub_seq_len: int,
        sample_dim: int = -1,
        mask_key: Any = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(sub_seq_len, int) or sub_seq_len < 1:
            raise UsageError(f"sub_seq_len must be a whole number of at least 1, not {sub_seq_len!r}")
        self.sub_seq_len, self.sample_dim, self.mask_key = sub_seq_len, sample_dim, mask_key
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tensordict.batch_size
        if not -len(shape) <= self.sample_dim < len(shape):
            raise SamplingError(f"a batch of shape {tuple(shape)} has no dimension {self.sample_dim} to crop")
        dim = self.sample_dim % len(shape)
        mask = None if self.mask_key is None else tensordict.get(self.mask_key, None)
        one = torch.Size([*shape[:dim], 1, *shape[dim + 1 :]])
        if mask is None:
            lengths = torch.full(one, shape[dim])
        else:
            if mask.shape != shape:
                raise SamplingError(f"the mask has shape {tuple(mask.shape)}, the batch {tuple(shape)}")
            lengths = mask.sum(dim, keepdim=True).cpu()
        if lengths.numel() and int(lengths.min()) < self.sub_seq_len:
            message = f"a sequence of {int(lengths.min())} steps has no piece of {self.sub_seq_len}"
            raise SamplingError(message, hint="reduce sub_seq_len, or sample longer slices")
        places = lengths - self.sub_seq_len + 1
        start = (torch.rand(one, dtype=torch.float64, generator=self.generator) * places).long()
        steps = torch.arange(self.sub_seq_len).view(*[-1 if d == dim else 1 for d in range(len(shape))])
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
