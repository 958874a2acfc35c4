"""Fewer keys."""

from __future__ import annotations

from tensordict import TensorDictBase

from ...errors import UsageError
from ...storage.schema import FLAGS
from .checks import key_list
from .leaves import paths
from .traits import ready

#: A dataset must have them.
_NEEDED = (*FLAGS, *(f"next/{flag}" for flag in FLAGS), "next/reward")


def _check(keys: object = None, drop: object = None) -> None:
    if (keys is None) == (drop is None):
        raise UsageError("select_keys needs either keys or drop", hint="for example --args keys=observation,action")
    key_list("keys", keys)
    dropped = key_list("drop", drop) or []
    needed = [key for key in dropped if key in (*FLAGS, "reward")]
    if needed:
        raise UsageError(f"{', '.join(needed)} cannot be dropped: every dataset has flags and rewards")


@ready("batch", check=_check)
def select_keys(
    td: TensorDictBase, *, keys: str | list[str] | None = None, drop: str | list[str] | None = None
) -> TensorDictBase:
    """Keep ``keys`` alone, or all but ``drop``; flags and the reward stay in any case.

    A key stands for what is under it and for its successor: ``keys=["observation", "action"]`` keeps ``next/observation``.
    Leaves that are under ``next`` only are named by what follows ``next/``. Raises UsageError for keys that are not there.
    """
    _check(keys, drop)
    wanted, unwanted = key_list("keys", keys), key_list("drop", drop)
    present = paths(td)
    # Under one name: what is at the root, and what is only under next.
    roots = list(dict.fromkeys(path.removeprefix("next/") for path in present))
    meant = _meant(roots, wanted if wanted is not None else unwanted or [])
    kept = [
        path for path in present if path in _NEEDED or (path.removeprefix("next/") in meant) == (wanted is not None)
    ]
    return td.select(*(tuple(path.split("/")) for path in kept))


def _meant(roots: list[str], keys: list[str]) -> set[str]:
    found: set[str] = set()
    for key in keys:
        under = {name for name in roots if name == key or name.startswith(key + "/")}
        if not under:
            raise UsageError(f"there is no key {key!r}", hint=f"there are {', '.join(roots)}")
        found |= under
    return found
