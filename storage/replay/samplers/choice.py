"""The sampler for the options of `load`."""

from __future__ import annotations

from typing import Any

from ....errors import UsageError
from ...dataset import Dataset
from ...keywords import goes_with
from .sampler import RandomSampler, Sampler, SamplerWithoutReplacement


def choose_sampler(
    dataset: Dataset,
    given: Sampler | None = None,
    *,
    slice_len: int | None = None,
    num_slices: int | None = None,
    strict_length: bool = True,
    pad_output: bool = False,
    span: Any = False,
    uniform_over: Any = "trajectories",
    end_key: Any = None,
    traj_key: Any = None,
    replacement: bool = True,
    drop_last: bool = False,
    shuffle: bool | str = True,
    alpha: float | None = None,
    beta: float | None = None,
    weights: Any = None,
    shares: Any = "random",
) -> Sampler:
    """Return the sampler of these options, which `load` describes; or the one that is ``given``, without any of them.

    Raises UsageError for options that make no sense together.
    """
    sliced, blocks = slice_len is not None or num_slices is not None, shuffle == "blocks"
    if shuffle not in (True, False, "global", "blocks"):
        raise UsageError(f"shuffle is {shuffle!r}, not True, False, 'global' or 'blocks'")
    if not sliced:
        given_of_slices = {
            "strict_length": not strict_length,
            "pad_output": bool(pad_output),
            "span": span is not False,
        }
        goes_with("slice_len or num_slices", **given_of_slices, uniform_over=uniform_over != "trajectories")
    if replacement and not blocks:
        goes_with("replacement=False", drop_last=bool(drop_last), shuffle=not shuffle)
    if alpha is None:
        goes_with("alpha", beta=beta is not None)
    if weights is None:
        goes_with("weights", shares=shares != "random")
    if given is not None:
        chosen = {"slice_len": slice_len, "num_slices": num_slices, "alpha": alpha, "weights": weights}
        _check_is_alone({**chosen, "replacement": None if replacement else False, "shuffle": blocks or None})
        return given
    if weights is not None:
        if sliced or alpha is not None or not replacement or blocks:
            raise UsageError("weights draw single steps with replacement: no slices, no priorities, no passes")
        return _mixture(dataset, weights, shares)
    if blocks:
        if sliced or alpha is not None:
            raise UsageError("shuffle='blocks' draws steps, every one once a pass: no slices, no priorities")
        from .blocks import BlockSampler

        return BlockSampler(dataset.group_steps, drop_last=bool(drop_last))
    if alpha is None and not sliced:
        return RandomSampler() if replacement else SamplerWithoutReplacement(drop_last, bool(shuffle))
    slices: dict[str, Any] = {
        "slice_len": slice_len,
        "num_slices": num_slices,
        "strict_length": strict_length,
        "pad_output": pad_output,
        "span": span,
        "uniform_over": uniform_over,
        "end_key": end_key,
        "traj_key": traj_key,
    }
    if alpha is not None:
        if not replacement:
            raise UsageError("priorities are sampled with replacement")
        return _prioritized(max(1, len(dataset)), alpha, 1.0 if beta is None else beta, slices if sliced else None)
    from .slices import SliceSampler, SliceSamplerWithoutReplacement

    if replacement:
        return SliceSampler(**slices)
    return SliceSamplerWithoutReplacement(drop_last=drop_last, shuffle=bool(shuffle), **slices)


def _check_is_alone(drawing: dict[str, Any]) -> None:
    names = [name for name, value in drawing.items() if value is not None]
    if names:
        raise UsageError(f"sampler decides what is drawn: leave out {', '.join(names)}")


def _mixture(dataset: Dataset, weights: Any, shares: Any) -> Sampler:
    from .mixture import MixtureSampler

    members = getattr(dataset, "members", None)
    if members is None:
        hint = 'for example rbdata.load(["A", "B"], weights=[0.9, 0.1])'
        raise UsageError("weights go with several datasets", hint=hint)
    return MixtureSampler([len(one) for one in members], weights, shares)


def _prioritized(size: int, alpha: float, beta: float, slices: dict[str, Any] | None) -> Sampler:
    from .prioritized import PrioritizedSampler, PrioritizedSliceSampler

    if slices is None:
        return PrioritizedSampler(size, alpha, beta)
    return PrioritizedSliceSampler(size, alpha, beta, **slices)
