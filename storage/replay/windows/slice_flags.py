"""The flags of slices: a slice ends for the learner where its last step does, whatever the episode did there.

slice [s2 s3 s4] of an episode that goes on        truncated  F F T       done = done | truncated
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .draw import Draw, Key


def mark_slices(draw: Draw, columns: dict[str, torch.Tensor]) -> None:
    """Put the flags into columns (by path, ``[steps, ...]``) that belong to nobody else."""
    flags = slice_flags(draw, lambda key: columns.get("/".join(key)))
    columns.update({"/".join(key): value for key, value in flags.items()})


def slice_flags(draw: Draw, column: Callable[[Key], torch.Tensor | None]) -> dict[Key, torch.Tensor]:
    """``truncated``, ``done`` and ``terminated`` (bool ``[steps, 1]``, or like the data's), ``is_init`` and the mask.

    Tensors that ``column`` gives are written to.
    """
    marks = draw.marks
    flags: dict[Key, torch.Tensor] = {}
    if marks is None:
        return flags
    if marks.truncated is not None:
        ends = draw.ends()
        above = marks.truncated[:-1]
        for name in (marks.truncated[-1], "done", "terminated"):
            key = (*above, name)
            flag = column(key)
            if flag is None:
                flag = torch.zeros(draw.steps, 1, dtype=torch.bool)
            if name != "terminated":
                flag.index_fill_(0, ends, True)
            flags[key] = flag
    if marks.init is not None:
        flag = column(marks.init)
        if flag is not None:  # data that do not say where episodes begin are not told either
            flags[marks.init] = flag.index_fill_(0, draw.beginnings(), True)
    if draw.padded:
        flags["collector", "mask"] = draw.mask()
    return flags
