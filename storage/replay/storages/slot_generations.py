"""How often every row was written, so that whoever kept a row's number can tell whether its record is still there."""

from __future__ import annotations

import torch


class SlotGenerations:
    """A stamp for each row along a storage's first dimension, int64: the writes it got, less one; -1 where there were none.

    It belongs to the storage, as buffers that share one overwrite each other's rows. Each process counts for itself.
    """

    def __init__(self, stamps: torch.Tensor | None = None) -> None:
        self.stamps = torch.zeros(0, dtype=torch.int64) if stamps is None else stamps.detach().cpu().long().clone()

    def count(self, rows: torch.Tensor) -> None:
        """One write more for every row in ``rows`` (int64 ``[n]``), as often as it is in there."""
        if not rows.numel():
            return
        missing = int(rows.max()) + 1 - len(self.stamps)
        if missing > 0:
            room = torch.full((max(missing, len(self.stamps)),), -1)
            self.stamps = torch.cat([self.stamps, room])
        self.stamps.index_put_((rows,), torch.ones_like(rows), accumulate=True)

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """The stamps of rows, -1 also for rows that there are none of; shaped like ``rows`` and on their device."""
        if not len(self.stamps):
            return torch.full_like(rows, -1)
        known = rows.to(self.stamps.device)
        stamps = self.stamps[known.clamp(0, len(self.stamps) - 1)]
        return torch.where((known >= 0) & (known < len(self.stamps)), stamps, -1).to(rows.device)

    def retire(self) -> None:
        """No record is there any more: stamps that were given out are valid no longer."""
        self.stamps[self.stamps >= 0] += 1
