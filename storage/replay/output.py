"""The form in which a batch is handed over, made when its transforms are done (with ``prefetch``: in the thread that made it).

    TensorDict -> NumPy arrays by path -> flat names -> nested dictionary -> JAX arrays on a device, or sharded over several

Where nothing between reading and this asks for a TensorDict, the first two are done to the small leaves of all batches that
were read together (`batches.BatchReader`): a call for each array of each batch would cost a quarter of a small batch.

``output`` is what the leaves are, ``form`` what they are called. "ted" keeps the keys of TED, one dictionary in another, and
all shapes. "flat" has the names of D4RL, OGBench and JAX-CORL, for ``batch["observations"]`` and ``Transition(**batch)``:

    observation, next/observation            observations, next_observations     nested where the observation is
    action                                   actions
    next/reward                              rewards        float32 [*batch]
    next/terminated, next/truncated          terminals, truncations    bool [*batch]
    1 - next/terminated                      masks          float32 [*batch]
    goal, actor_goal                         value_goals, actor_goals

Other leaves keep their names (below ``next``: ``next_name``); of leaves that are one number for each step the last dimension
is dropped, and ``done`` and the flags of the state before a step are left out.

The arrays are views of a batch's own memory, so that NumPy costs nothing; they may be written to. JAX takes them without a
copy where its device is the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensor_collection

from ...errors import MissingExtraError, UsageError, reason
from ..keywords import goes_with
from ..window import nest_dictionary
from .storages.trees import tree_map
from .timeline import path_of

#: New names of keys of TED, and of those below ``next``; None: left out.
_NAMES: dict[str, str | None] = {
    "observation": "observations",
    "action": "actions",
    "goal": "value_goals",
    "actor_goal": "actor_goals",
    **dict.fromkeys(("done", "terminated", "truncated", "next")),
}
_NEXT: dict[str, str | None] = {
    "observation": "next_observations",
    "reward": "rewards",
    "terminated": "terminals",
    "truncated": "truncations",
    "done": None,
}
#: Leaves ``[*batch, 1]`` that become ``[*batch]``.
_NUMBERS = {
    *("rewards", "terminals", "truncations", "next_original_reward"),
    *("is_first", "step", "return_to_go", "discount"),
}


def choose_output(
    output: Any,
    form: Any,
    names: Iterable[str],
    *,
    device: Any,
    sharding: Any,
    pin_memory: bool,
    collate_fn: Any,
    batch_size: int | None,
    short_batches: bool,
) -> Output | None:
    """Return the `Output` for options of `load`; None for TensorDicts. ``names``: the leaves that are read, as paths.

    ``short_batches``: whether the last batch of a pass may be smaller than ``batch_size``. Raises UsageError for options that
    do not go together, for leaves that would get the same flat name, for devices that JAX does not have, and for batches that
    a sharding does not divide; MissingExtraError without JAX.
    """
    if output not in ("torch", "numpy", "jax"):
        raise UsageError(f"output is {output!r}, not 'torch', 'numpy' or 'jax'")
    if form not in ("ted", "flat"):
        raise UsageError(f"form is {form!r}, not 'ted' or 'flat'")
    if output != "jax":
        goes_with("output='jax'", sharding=sharding is not None)
    if output != "torch":
        goes_with("output='torch'", pin_memory=pin_memory)
    if output == "numpy" and device is not None:
        raise UsageError("NumPy arrays are in main memory: leave out device", hint="or take output='torch' or 'jax'")
    if form == "flat":
        if collate_fn is not None:
            raise UsageError("form='flat' names the leaves of records, and collate_fn makes something else of them")
        _check_names(names)
    if output == "jax":
        if device is not None and sharding is not None:
            raise UsageError("a sharding says which devices: leave out device")
        return Output(output, form, _jax_place(device, sharding, batch_size, short_batches))
    return None if (output, form) == ("torch", "ted") else Output(output, form)


def _check_names(paths: Iterable[str]) -> None:
    """Raise UsageError for leaves that would be called like another one, or like the leaves below one."""
    taken: dict[str, str] = {}
    for path in sorted(paths):
        name = flat_name(path)
        new = "" if name is None else name.partition("/")[0]
        old = "/".join(path.split("/")[: 2 if path.startswith("next/") else 1])
        if new and taken.setdefault(new, old) != old:
            message = f"form='flat' would call both {taken[new]} and {old} {new}"
            raise UsageError(message, hint="leave one of them out: keys=[...]")


def _jax_place(device: Any, sharding: Any, batch_size: int | None, short_batches: bool) -> Any:
    """A device, or a sharding, of JAX; None: its default device."""
    try:
        import jax
    except ImportError as error:
        raise MissingExtraError("output='jax' needs jax", hint="pip install 'rbdata[jax]'") from error
    if sharding is not None:
        if not isinstance(sharding, jax.sharding.Sharding):
            raise UsageError(f"{sharding!r:.60} is no jax.sharding.Sharding", hint="see docs/jax.md")
        if short_batches:
            message = "the last batch of a pass may be shorter than the others, and a sharding divides all alike"
            raise UsageError(message, hint="drop_last=True leaves it out")
        try:
            if batch_size is not None:
                sharding.shard_shape((batch_size * jax.process_count(),))
        except ValueError as error:
            raise UsageError(f"batches of {batch_size} do not fit the sharding: {reason(error)}") from error
        return sharding
    if not isinstance(device, str):
        if device is not None and not isinstance(device, jax.Device):
            raise UsageError(f"{device!r:.60} is no device of JAX", hint='for example "gpu:1", or jax.devices()[1]')
        return device
    kind, _, number = device.partition(":")
    try:
        return jax.devices(kind)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        there = ", ".join(f"{one.platform}:{one.id}" for one in jax.devices())
        raise UsageError(f"JAX has no device {device!r}", hint=f"there are {there}") from error


@dataclass(frozen=True)
class Output:
    """``kind`` "torch", "numpy" or "jax"; ``form`` "ted" or "flat"; ``place``: a device or sharding of JAX, None: its default.

    A copy in another process makes NumPy arrays instead of JAX arrays: the devices are those of one process.
    """

    kind: str
    form: str
    place: Any = None

    @property
    def keeps(self) -> bool:
        """Whether arrays may stay in the memory of the batch, unseen, and are not expected to change: those of JAX."""
        return self.kind == "jax"

    def __call__(self, batch: Any) -> Any:
        return self.placed(self.on_host(batch))

    def placed(self, made: Any) -> Any:
        """Return what `on_host` made, on the devices of JAX."""
        return to_jax(made, self.place) if self.kind == "jax" else made

    def on_host(self, batch: Any) -> Any:
        """Return the batch in main memory: NumPy arrays for JAX as well."""
        if isinstance(batch, TensorDictBase):
            return nest_dictionary(self.columns(_leaves(batch)))
        if self.form == "flat":
            message = f"a transform made a {type(batch).__name__} of the batch, and form='flat' renames keys"
            raise UsageError(message, hint="leave out form, or return a TensorDict")
        return tree_map(self._leaf, batch)

    def columns(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The leaves of a batch, or of several that were read together, by path: as they are handed over, on the host."""
        made = {path: self._leaf(leaf) for path, leaf in columns.items()}
        return flat(made) if self.form == "flat" else made

    def _leaf(self, leaf: Any) -> Any:
        if is_tensor_collection(leaf):
            return nest_dictionary({path: self._leaf(below) for path, below in _leaves(leaf).items()})
        # It copies only what lies on a GPU, or is part of a graph.
        return leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) and self.kind != "torch" else leaf

    def __reduce__(self) -> tuple[Any, ...]:
        return Output, ("numpy" if self.kind == "jax" else self.kind, self.form)


def _leaves(batch: Any) -> dict[str, Any]:
    return {path_of(key): leaf for key, leaf in batch.items(True, True)}


def flat(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors or arrays by path, under their flat names."""
    found: dict[str, Any] = {}
    for path, leaf in columns.items():
        name = flat_name(path)
        if name in _NUMBERS and leaf.shape[-1:] == (1,):
            leaf = leaf.reshape(leaf.shape[:-1])
        if name is not None:
            found[name] = leaf
    ended = found.get("terminals")
    if ended is not None:
        is_tensor = isinstance(ended, torch.Tensor)
        found["masks"] = 1 - ended.float() if is_tensor else np.subtract(1, ended, dtype=np.float32)
    return found


@lru_cache(1024)
def flat_name(path: str) -> str | None:
    """Return the flat name of a leaf, ``observations/position`` of one below the observation; None: it is left out."""
    root, _, below = path.partition("/")
    if root == "mask" and below:  # which rows of a window are padding
        return f"mask/{flat_name(below)}"
    if root == "next":
        key, _, below = below.partition("/")
        name = _NEXT.get(key, f"next_{key}")
    else:
        name = _NAMES.get(root, root)
    return f"{name}/{below}" if name and below else name


def record(batch: Any, number: int) -> Any:
    """Return one record of a batch: what each leaf has at this place of the first dimension."""
    if isinstance(batch, dict):
        return {key: record(value, number) for key, value in batch.items()}
    return batch[number, ...]


def to_jax(batch: Any, place: Any) -> Any:
    """NumPy arrays as JAX arrays; copies go on while the caller computes."""
    import jax

    if isinstance(place, jax.sharding.Sharding):
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(place, leaf), batch)
    return jax.device_put(batch, place)
