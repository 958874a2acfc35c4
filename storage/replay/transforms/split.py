"""From a batch in which trajectories follow each other to one trajectory a row.

flat        a0 a1 a2 b0 b1          ->       a0 a1 a2        mask  T T T
                                             b0 b1 --              T T F
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase

from ....errors import SchemaError
from ..windows.edges import as_key


def split_trajectories(
    rollout_tensordict: TensorDictBase,
    *,
    prefix: Any = None,
    trajectory_key: Any = None,
    done_key: Any = None,
    as_nested: bool | torch.layout = False,
) -> TensorDictBase:
    """Split a batch ``[*batch, time]`` into ``[trajectories, longest]``, filled up with zeros.

    Trajectories are told apart by ``trajectory_key`` (default ``traj_ids``, under ``prefix``, which is ``collector`` where the
    batch has one), or where that is missing by ``("next", done_key)``; ids are then added. Added in any case: ``mask``
    beside the ids, bool ``[trajectories, longest]``, True where there is data. Takes one gather for each key, however many
    trajectories there are. With ``as_nested`` (True, or a layout such as ``torch.jagged``) nothing is filled up: leaves
    are nested tensors, the batch is ``[trajectories, -1]`` (jagged: ``[trajectories]``) without a mask, unless all have the
    same length.
    Raises SchemaError when neither ids nor done are there.
    """
    if trajectory_key is not None:
        ids_key = as_key(trajectory_key)
    else:
        if prefix is None and "collector" in rollout_tensordict.keys():  # noqa: SIM118
            prefix = "collector"
        ids_key = ("traj_ids",) if prefix in (None, ()) else (*as_key(prefix), "traj_ids")
    mask_key = (*ids_key[:-1], "mask")
    data = rollout_tensordict.copy()
    ids = data.get(_key(ids_key), None)
    if ids is None:
        ids = _ids_from_done(data, ("next", *as_key(done_key or "done")))
        data.set(_key(ids_key), ids)
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
    out.set(_key(mask_key), mask)
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


def _key(key: tuple[str, ...]) -> Any:
    return key if len(key) > 1 else key[0]
