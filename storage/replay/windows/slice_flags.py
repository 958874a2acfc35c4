"""The flags of slices: a slice ends for the learner where its last step does, whatever the episode did there.

slice [s2 s3 s4] of an episode that goes on        truncated  F F T       done = done | truncated
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .draw import Draw, Key

_ENDS = ("done", "terminated")


def expand_to_records(value: torch.Tensor, tail: tuple[int, ...]) -> torch.Tensor:
    """A value for each record, ``[n, *shape]``, for all steps of records with batch dimensions: ``[n, *tail, *shape]``."""
    if not tail:
        return value
    return (
        value.view(len(value), *[1] * len(tail), *value.shape[1:])
        .expand(len(value), *tail, *value.shape[1:])
        .contiguous()
    )


def mark_slices(draw: Draw, columns: dict[str, torch.Tensor], tail: tuple[int, ...] = ()) -> None:
    """Put the flags into columns (by path, ``[steps, ...]``) that belong to nobody else."""
    flags = slice_flags(draw, lambda key: columns.get("/".join(key)), tail)
    columns.update({"/".join(key): value for key, value in flags.items()})


def flag_keys(draw: Draw) -> list[Key]:
    """The keys of what `slice_flags` may say of a draw."""
    marks = draw.marks
    if marks is None:
        return []
    keys = [] if marks.truncated is None else [(*marks.truncated[:-1], name) for name in (marks.truncated[-1], *_ENDS)]
    keys += [] if marks.init is None else [marks.init]
    return [*keys, ("collector", "mask")] if draw.padded else keys


def slice_flags(
    draw: Draw, column: Callable[[Key], torch.Tensor | None], tail: tuple[int, ...] = ()
) -> dict[Key, torch.Tensor]:
    """``truncated``, ``done`` and ``terminated`` (bool ``[steps, 1]``, or like the data's), ``is_init`` and the mask.

    Tensors that ``column`` gives are written to. ``tail`` are the batch dimensions of a record.
    """
    marks = draw.marks
    flags: dict[Key, torch.Tensor] = {}
    if marks is None:
        return flags
    if marks.truncated is not None:
        ends = draw.ends()
        above = marks.truncated[:-1]
        for name in (marks.truncated[-1], *_ENDS):
            key = (*above, name)
            flag = column(key)
            if flag is None:
                flag = torch.zeros(draw.steps, *tail, 1, dtype=torch.bool)
            if name != "terminated":
                flag.index_fill_(0, ends, True)
            flags[key] = flag
    if marks.init is not None:
        flag = column(marks.init)
        if flag is not None:  # data that do not say where episodes begin are not told either
            flags[marks.init] = flag.index_fill_(0, draw.beginnings(), True)
    if draw.padded:
        flags["collector", "mask"] = expand_to_records(draw.mask(), tail)
    return flags
