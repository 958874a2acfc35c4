"""The tables of an HDF5 file: arrays of any names, a group per episode, and what d3rlpy and Tianshou write."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import h5py

from ....errors import CorruptSourceError, UsageError
from ...formats.hdf5 import damage_reported, unread_part
from .files import EPISODE, natural
from .roles import NAMES
from .stored import Hdf5Files, Hdf5Rows, Ring
from .tables import Table


def open_hdf5(path: Path, files: Hdf5Files) -> list[Table]:
    """The tables of a file. Raises CorruptSourceError, UsageError."""
    with damage_reported(path.name):
        top = files.open(path)["/"]
        group, members = top, _members(top)
        while len(members) == 1:  # what all lies in
            (inner,) = members.values()
            if not isinstance(inner, h5py.Group) or _is_episode(inner):
                break
            group, members = inner, _members(inner)
        if {"columns", "num_episodes"} <= set(members):
            return _d3rlpy_tables(members, files, path)
        if "_meta" in members:
            return [_tianshou_table(group.attrs, members, files, path)]
        beside: dict[str, Any] = {}
        episodes = _episodes(members)
        if not episodes and isinstance(members.get("data"), h5py.Group):  # robomimic: data/demo_0, mask/...
            inside = _members(members["data"])
            if episodes := _episodes(inside):
                beside, members = {name: item for name, item in members.items() if name != "data"}, inside
        # Arrays of the whole file may lie beside numbered groups; beside other groups, arrays have rows of their own.
        has_arrays = any(isinstance(item, h5py.Dataset) for item in members.values())
        is_numbered = all(re.search(r"\d", name) for name in episodes)
        if not episodes or (has_arrays and (not is_numbered or _is_episode(members))):
            return [_table(path.name, top, files, path)]
        beside |= {name: item for name, item in members.items() if name not in episodes}
        _check_beside(beside, episodes, path.name)
        tables = []
        for name in sorted(episodes, key=natural):
            tables.append(_table(f"{path.name}: {name}", members[name], files, path))
            tables[-1].is_episode = EPISODE.search(name) is not None
        tables[0].unreadable |= dict.fromkeys(beside, "it lies beside the episodes")
        return tables


def _d3rlpy_tables(members: Mapping[str, Any], files: Hdf5Files, path: Path) -> list[Table]:
    """The episodes that d3rlpy's ``ReplayBuffer.dump`` wrote: ``observations_0``, or several arrays ``observations_0_0`` ..."""
    tables = []
    columns = [name.decode() for name in members["columns"][()].tolist()]
    for number in range(int(members["num_episodes"][()])):
        values: dict[str, Any] = {}
        for column in columns:
            name = f"{column}_{number}"
            inner = [one for one in members if re.fullmatch(rf"{re.escape(name)}_\d+", one)]
            parts = {column: name} if name in members else {f"{column}/{one.rpartition('_')[2]}": one for one in inner}
            if not parts:
                raise CorruptSourceError(f"{path.name}: {name} is not there, and num_episodes says that it is")
            values |= {key: Hdf5Rows(files, path, members[one]) for key, one in parts.items()}
        tables.append(Table(f"{path.name}: episode {number}", values, is_episode=True))
    return tables


def _tianshou_table(attributes: Any, members: Mapping[str, Any], files: Hdf5Files, path: Path) -> Table:
    """The rows of a ring that Tianshou's ``ReplayBuffer.save_hdf5`` wrote, from the oldest one on."""
    if "_size" not in attributes:
        message = f"{path.name} is a file of Tianshou that holds a ring for each of several environments"
        raise UsageError(message, hint="save each of them: buffer.buffers[0].save_hdf5(PATH)")
    filled = int(attributes["_size"])
    begin = int(attributes.get("_insertion_idx", attributes.get("_index", 0)))
    begin = begin % filled if filled and filled == int(attributes.get("maxsize", filled)) else 0
    table = _table(path.name, members["_meta"], files, path)
    values = {f"_meta/{name}": Ring(rows, filled, begin) for name, rows in table.values.items() if rows.shape}
    return Table(path.name, values, {f"_meta/{name}": why for name, why in table.unreadable.items()})


def _members(group: Any) -> dict[str, Any]:
    """The groups and arrays of a group by name; for one that is not read, a text that says why."""
    return {name: unread_part(group, name) or group[name] for name in group}


def _check_beside(beside: Mapping[str, Any], episodes: Collection[str], where: str) -> None:
    """Raise UsageError for what is named as the episodes are, and is none: the data would lack it."""
    stems = {re.sub(r"\d+", "#", name) for name in episodes}
    for name, item in beside.items():
        if re.sub(r"\d+", "#", name) in stems:
            why = item if isinstance(item, str) else "it has no observation or no action"
            message = f"{where}: {name} is named as the episodes are, and is not read: {why}"
            raise UsageError(message, hint="rename it, or leave it out of the file")


def _episodes(members: Mapping[str, Any]) -> list[str]:
    """The groups that are an episode each, by the names of their arrays; or by their own names, where nothing else is there
    and these differ in a number alone."""
    groups = [name for name, item in members.items() if isinstance(item, h5py.Group)]
    known = [name for name in groups if _is_episode(members[name])]
    stems = {re.sub(r"\d+$", "", name) for name in members}
    is_series = len(groups) == len(members) > 1 and len(stems) == 1 and not stems & set(members)
    return known or (groups if is_series else [])


def _is_episode(group: Any) -> bool:
    """Whether a group holds the arrays of an episode."""
    names = {name.lower() for name in group}
    return bool(names & set(NAMES["action"])) and bool(names & set(NAMES["observation"]))


def _table(name: str, group: Any, files: Hdf5Files, path: Path) -> Table:
    """The arrays below a group, and those that cannot be read with the reason."""
    table = Table(name, {})

    def visit(inside: Any, prefix: str, above: Collection[Any]) -> None:
        for key, item in _members(inside).items():
            inner = prefix + key
            if isinstance(item, h5py.Group):
                if item.id not in above:
                    visit(item, inner + "/", {*above, item.id})
            elif not isinstance(item, h5py.Dataset):
                table.unreadable[inner] = item if isinstance(item, str) else f"it is a {type(item).__name__}"
            elif item.shape is None or item.dtype.hasobject or item.dtype.kind not in "biuf":
                table.unreadable[inner] = f"its dtype is {item.dtype}"
            else:
                table.values[inner] = Hdf5Rows(files, path, item)

    visit(group, "", {group.id})
    return table
