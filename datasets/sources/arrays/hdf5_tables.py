"""The tables of an HDF5 file: arrays of any names, a group per episode, and what d3rlpy and Tianshou write."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ....errors import CorruptSourceError, UsageError
from ...formats.hdf5 import damage_reported, unread_part
from .files import NUMBERED, SPLITS, choose, natural
from .roles import NAMES
from .stored import Hdf5Files, Hdf5Rows, Ring
from .tables import Table

#: Names of groups that may hold several episodes.
_SEVERAL = re.compile(
    r"(?:^|[^a-z])(?:env|worker|actor|agent|process|proc|rank|thread|seed|run|rollout|batch|buffer|chunk|shard|part|fold)s?"
    r"(?:[^a-z]|$)",
    re.IGNORECASE,
)


def open_hdf5(path: Path, files: Hdf5Files, split: str | None) -> list[Table]:
    with damage_reported(path.name):
        group, place = files.open(path)["/"], ""
        while len(group) == 1:
            ((name, inner),) = _members(group).items()
            if not isinstance(inner, h5py.Group) or _is_episode(inner) or name.lower() == split:
                break
            group, place = inner, f"{place}{name}/"
        members, others = _members(group), dict[str, str]()
        splits = {name.lower(): name for name, item in members.items() if isinstance(item, h5py.Group)}
        splits = {name: theirs for name, theirs in splits.items() if name in SPLITS}
        if splits and (len(splits) > 1 or split is not None):
            chosen = splits[choose(path.name, splits, split)]
            members, place, split = _members(group := members[chosen]), f"{place}{chosen}/", None
        elif split is not None:
            choose(path.name, splits, split)
        if {"columns", "num_episodes"} <= set(members):
            return _d3rlpy_tables(members, files, path, place)
        if "_meta" in members and ("_size" in group.attrs or "_lengths" in members):
            return _tianshou_tables(group, members, files, path, place)
        episodes = _episodes(members)
        # robomimic: data/demo_0, mask/...
        if not episodes and isinstance(members.get("data"), h5py.Group):
            inside = _members(members["data"])
            episodes = _episodes(inside)
            if episodes:
                others = _beside_data(members, path.name)
                members, place = inside, f"{place}data/"
        # Arrays of the whole file may lie beside numbered groups; beside other groups, arrays have rows of their own.
        has_arrays = any(isinstance(item, h5py.Dataset) for item in members.values())
        if episodes and (not has_arrays or (all(map(_is_numbered, episodes)) and not _is_episode(members))):
            others |= _other_groups(members, set(episodes), path.name)
            tables = []
            for name in sorted(episodes, key=natural):
                table = _hdf5_table(f"{path.name}: {name}", members[name], files, path, f"{place}{name}/")
                table.kind = "episode" if _is_numbered(name) else "group"
                tables.append(table)
            tables[0].unreadable.update(others)
            return tables
        if not splits:
            group, place = files.open(path)["/"], ""
        return [_hdf5_table(path.name, group, files, path, place)]


def _is_numbered(name: str) -> bool:
    """Whether a group is named as an episode is: with a number that is not one of an environment, a worker, a part."""
    return bool(re.search(r"\d", name)) and not _SEVERAL.search(name)


def _d3rlpy_tables(members: Mapping[str, Any], files: Hdf5Files, path: Path, place: str) -> list[Table]:
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
            values |= {key: Hdf5Rows(files, path, place + one, members[one]) for key, one in parts.items()}
        tables.append(Table(f"{path.name}: episode {number}", values, kind="episode"))
    return tables


def _tianshou_tables(group: Any, members: Mapping[str, Any], files: Hdf5Files, path: Path, place: str) -> list[Table]:
    """The rows of a ring that Tianshou's ``ReplayBuffer.save_hdf5`` wrote, in order; a table for each of several rings."""
    whole = _hdf5_table(path.name, members["_meta"], files, path, f"{place}_meta/")
    values = {f"_meta/{name}": rows for name, rows in whole.values.items()}
    unreadable = {f"_meta/{name}": why for name, why in whole.unreadable.items()}
    if "_lengths" in members:  # of a buffer for each environment, one after the other in the arrays
        first, filled, last = (members[name][()].tolist() for name in ("_offset", "_lengths", "last_index"))
        sizes = np.diff([*first, max((rows.shape[0] for rows in values.values() if rows.shape), default=0)]).tolist()
        rings = [(a, n, (b + 1 - a) if n == size else 0) for a, n, b, size in zip(first, filled, last, sizes)]
    else:
        filled = int(group.attrs["_size"])
        begin = int(group.attrs.get("_insertion_idx", group.attrs.get("_index", 0)))
        rings = [(0, filled, begin if filled == int(group.attrs.get("maxsize", filled)) else 0)]
    return [
        Table(
            path.name if len(rings) == 1 else f"{path.name}: buffer {number}",
            {name: Ring(rows, filled, begin % filled, first) for name, rows in values.items() if rows.shape},
            dict(unreadable),
        )
        for number, (first, filled, begin) in enumerate(rings)
        if filled
    ]


def _members(group: Any) -> dict[str, Any]:
    """The groups and arrays of a group by name; for one that is not read, a text that says why."""
    return {name: unread_part(group, name) or group[name] for name in group}


def _beside_data(members: Mapping[str, Any], where: str) -> dict[str, str]:
    """What lies beside a group ``data`` of episodes, and why it is not read.

    Raises UsageError for another group of episodes: the data would lack them.
    """
    others = {name: item for name, item in members.items() if name != "data"}
    for name, item in others.items():
        if isinstance(item, h5py.Group) and _episodes(_members(item)):
            message = f"{where}: data and {name} both hold a group per episode"
            raise UsageError(message, hint="copy each of them to a file, and convert these one by one")
    return dict.fromkeys(others, "it lies beside the episodes, which are in data")


def _other_groups(members: Mapping[str, Any], episodes: Collection[str], where: str) -> dict[str, str]:
    """What lies beside the groups of the episodes, and why it is not read.

    Raises UsageError for what is named as the episodes are, CorruptSourceError where that is a link that leads nowhere:
    without it the data would lack an episode.
    """
    stems = {re.sub(r"\d+", "#", name) for name in episodes}
    others = [name for name in members if name not in episodes]
    for name in sorted(others, key=natural):
        if re.sub(r"\d+", "#", name) not in stems:
            continue
        if isinstance(members[name], str):
            raise CorruptSourceError(f"{where}: {name} is not there: {members[name]}")
        there = ", ".join(_datasets(members[name])[0]) or "no arrays"
        message = f"{where}: {name} is named as the episodes are, and has no observation or no action"
        raise UsageError(message, hint=f"it has {there}; rename it, or leave it out of the file")
    return dict.fromkeys(others, "it lies beside the episodes")


def _episodes(members: Mapping[str, Any]) -> list[str]:
    """The groups that are an episode each, by the names of their arrays; or by their own names, where nothing else is there
    and these differ in a number alone."""
    groups = [name for name, item in members.items() if isinstance(item, h5py.Group)]
    known = [name for name in groups if _is_episode(members[name])]
    is_numbered = len(members) > 1 and all(map(NUMBERED.fullmatch, members))
    is_series = is_numbered and len({re.sub(r"\d+", "#", name) for name in members}) == 1
    is_all = all(isinstance(item, (h5py.Group, str)) for item in members.values())
    return known or (groups if is_series and is_all else [])


def _is_episode(group: Any) -> bool:
    """Whether a group holds the arrays of an episode."""
    names = {name.lower() for name in group}
    return bool(names & set(NAMES["action"])) and bool(names & set(NAMES["observation"]))


def _hdf5_table(name: str, group: Any, files: Hdf5Files, path: Path, place: str) -> Table:
    """The table of a group, which is at ``place`` in a file."""
    arrays, unreadable = _datasets(group)
    return Table(name, {key: Hdf5Rows(files, path, place + key, array) for key, array in arrays.items()}, unreadable)


def _datasets(group: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays below a group, and those that cannot be read with the reason."""
    values: dict[str, Any] = {}
    unreadable: dict[str, str] = {}

    def visit(inside: Any, prefix: str, above: Collection[Any]) -> None:
        for key, item in _members(inside).items():
            name = prefix + key
            if isinstance(item, h5py.Group):
                if item.id not in above:
                    visit(item, name + "/", {*above, item.id})
            elif not isinstance(item, h5py.Dataset):
                unreadable[name] = item if isinstance(item, str) else f"it is a {type(item).__name__}"
            elif item.shape is None or item.dtype.hasobject or item.dtype.kind not in "biuf":
                unreadable[name] = f"its dtype is {item.dtype}"
            else:
                values[name] = item

    visit(group, "", {group.id})
    return values, unreadable


def named_groups(path: Path, array: str) -> tuple[list[str] | None, list[str]]:
    """The names that an array of a file holds (None without it), and the arrays of names that robomimic's files have."""
    with Hdf5Files() as files, damage_reported(path.name):
        file = files.open(path)
        names = [name.decode() for name in file[array][()].tolist()] if array in file else None
        return names, [f"mask/{name}" for name in file.get("mask", ())]
