"""Leaves selected by key."""

from __future__ import annotations

from tensordict import TensorDictBase

from ...errors import UsageError
from ...storage.schema import FLAGS
from .checks import key_list
from .leaves import below, paths
from .traits import Traits

#: Leaves of every dataset.
_REQUIRED = (*FLAGS, *(f"next/{flag}" for flag in FLAGS), "next/reward")


def _check(keys: object, drop: object) -> None:
    if (keys is None) == (drop is None):
        raise UsageError("select_keys needs either keys or drop", hint="for example --args keys=observation,action")
    key_list("keys", keys)
    required = [key for key in key_list("drop", drop) or [] if key in (*FLAGS, "reward")]
    if required:
        raise UsageError(f"{', '.join(required)} cannot be dropped: every dataset has flags and rewards")


@Traits("batch", validate=_check)
def select_keys(
    td: TensorDictBase, *, keys: str | list[str] | None = None, drop: str | list[str] | None = None
) -> TensorDictBase:
    """Keep only ``keys``, or all leaves except ``drop``; flags and the reward always stay.

    A key selects the leaves below it and their successors: ``keys=["observation", "action"]`` keeps ``next/observation``.
    Leaves that exist under ``next`` only are named without ``next/``. Raises UsageError for missing keys.
    """
    present = paths(td)
    roots = list(dict.fromkeys(path.removeprefix("next/") for path in present))
    given = key_list("keys", keys if keys is not None else drop) or []
    selected = {path for key in given for path in below(roots, key)}
    kept = [
        path for path in present if path in _REQUIRED or (path.removeprefix("next/") in selected) == (keys is not None)
    ]
    return td.select(*(tuple(path.split("/")) for path in kept))
