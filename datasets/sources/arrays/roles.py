"""What a user's arrays mean: which is the observation, which the action, and what says where episodes end.

A *role* is one of the names below. A map states them (``{"observation": "obs", "action": "act"}``: ours to theirs); what it
leaves open is found by the names that libraries use. Nothing is read here: names, shapes and dtypes decide.

    observation       [n, ...] a row per step, or [n + episodes, ...] a row per state; may be several arrays
    action            [n, ...]
    reward            [n] or [n, 1]; or a number, for data without rewards
    terminated        bool [n]: the environment ended the episode with this step, nothing follows
    truncated         bool [n]: the episode ends with this step for another reason, such as a time limit
    done              bool [n]: one of the two
    next_observation  as observation: what followed each step
    episode           [n]: the number of the step's episode; another number begins another episode; or one number: a file is one
    episode_lengths   [episodes]: steps of each episode
    episode_ends      [episodes]: steps up to the end of each episode, as diffusion policies store them

A map may name other keys: each becomes a separate leaf with a row per step (``{"goal": "desired_goal"}``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import SchemaError, UsageError
from ....storage.schema import clean_keys
from ...ingest.spaces import stored_dtype

if TYPE_CHECKING:
    import numpy as np

#: The files that are read (`tables`).
SUFFIXES = (".npz", ".npy", ".h5", ".hdf5", ".parquet", ".arrow", ".feather", ".csv", ".tsv", ".csv.gz", ".tsv.gz")

#: Files of a Zarr store, which is refused.
ZARR = (".zgroup", "zarr.json")

#: Those that are refused: reading them runs code.
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")

#: What an entry of a map may be: the name of an array or of a group of arrays, several names, a pattern with ``*``, or a
#: number (of rewards, or of the episode that a file is). `tables.join_columns` makes a name of several.
Given = str | Sequence[str] | float

#: The names that libraries use, in lower case: TED, Gymnasium, D4RL, d3rlpy, Spinning Up, robomimic, diffusion policies.
NAMES: dict[str, list[str]] = {
    role: names.split()
    for role, names in {
        "observation": "observation observations obs state states",
        "action": "action actions act acts",
        "reward": "next/reward next.reward reward rewards rew rews",
        "terminated": "next/terminated next.terminated terminated terminateds terminal terminals termination terminations",
        "truncated": "next/truncated next.truncated truncated truncateds timeout timeouts truncation truncations",
        "done": "next/done next.done done dones episode_terminals",
        "next_observation": (
            "next/observation next_observation next_observations next_obs new_obs obs_next obs2 next_state next_states"
        ),
        "episode": (
            "episode episode_id episode_ids episode_index traj_id traj_ids trajectory trajectory_id collector/traj_ids"
        ),
        "episode_lengths": "episode_lengths episode_length traj_lengths lengths",
        "episode_ends": "episode_ends meta/episode_ends",
    }.items()
}
#: Names of other libraries' flags that are no role: they say the opposite, or belong to the state of their row. In lower case.
OTHER_FLAGS = {
    **dict.fromkeys(("masks", "not_done", "not_dones", "nonterminal", "nonterminals"), "terminated is 1 minus it"),
    **dict.fromkeys(("episode_starts", "episode_start"), "give episode, which is numpy.cumsum of it"),
    **dict.fromkeys(("dones_float", "is_done"), "it may be terminated, truncated or done"),
    **dict.fromkeys(
        ("discount", "discounts", "is_first", "is_last", "is_terminal", "step_type"),
        "rows of dm_env and Dreamer hold the action and reward that led to their observation, where steps here hold those "
        "that follow it: shift them with rbdata.from_episodes, observations of n + 1 rows with action[1:] and reward[1:]",
    ),
}
#: Roles that may consist of several arrays.
_TREES = ("observation", "action", "next_observation")
_FLAGS = ("terminated", "truncated", "done")
_SIMULATOR = ("state", "states", "next_state", "next_states")
#: The roles that TED has under ``next``.
_TED = {names[0]: role for role, names in NAMES.items() if names[0].startswith("next/")}
_BOUNDARIES = ("episode", "episode_lengths", "episode_ends")
#: The names in exports of this program, which are TED's: a leaf ``obs`` or ``traj_id`` there is a leaf. What says where
#: episodes end differs from format to format (`exported_names`).
_TED_NAMES = {role: names[:1] for role, names in NAMES.items() if role not in _BOUNDARIES}
#: Groups that other libraries put all rows into: Tianshou's is ``_meta``.
_OUTER = ("data/", "_meta/")
#: What is between a group and an array in it; LeRobot has observation.state, MineRL observation$compass$angle.
_SEPARATORS = "/.$"
#: Arrays that an error or a plan lists.
_MOST_LISTED = 24


@dataclass(frozen=True)
class ArrayInfo:
    """Shape, with the rows in front, and dtype of an array; ``joined`` are the columns that a map made it of."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    joined: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Roles:
    """Which array is what. Trees map our keys (``observation``, ``observation/pos``) to names of arrays."""

    observation: Mapping[str, str]
    action: Mapping[str, str]
    reward: str | float
    #: By the key of the observation; empty where the data have none.
    next_observation: Mapping[str, str]
    terminated: str | None
    truncated: str | None
    done: str | None
    episode: str | float | None
    episode_lengths: str | None
    episode_ends: str | None
    #: Arrays that state the ends of episodes once more, by role: they must agree.
    more_ends: Mapping[str, str]
    #: Other arrays with a row per step, by key.
    extra: Mapping[str, str]
    #: Arrays that are not taken, and why.
    left_out: Mapping[str, str]
    #: Assumptions about what nothing states, in sentences.
    assumed: tuple[str, ...] = ()

    def to_map(self) -> dict[str, str]:
        """The map that states what was found."""
        single = ("reward", *_FLAGS, *_BOUNDARIES)
        trees: dict[str, str] = {**self.observation, **self.action}
        trees |= {"next_" + key: name for key, name in self.next_observation.items()}
        stated = {role: str(value) for role in single if (value := getattr(self, role)) is not None}
        return {**trees, **stated, **self.extra}

    def inner_flags(self) -> dict[str, str]:
        """The flags by the keys of leaves that hold them where they do not end episodes."""
        names = {role: name for role in _FLAGS if (name := getattr(self, role)) is not None}
        wanted = {role: "info/" + _inside(name).removeprefix("next/") for role, name in names.items()}
        keys = clean_keys(dict.fromkeys(wanted.values()))
        return {keys[key]: role for role, key in wanted.items() if keys[key] not in self.extra}

    def with_flags(self, keys: Mapping[str, str]) -> Roles:
        """These roles with some flags (their roles, by key) as leaves."""
        return replace(self, extra={**self.extra, **{key: getattr(self, role) for key, role in keys.items()}})


def _inside(name: str) -> str:
    """A name without the group that all rows are in."""
    return name.partition("/")[2] if name.startswith(_OUTER) else name


def suffix_of(path: Path) -> str:
    """The suffix that says what a file is, in lower case: ``.csv.gz`` is one."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:]) if suffixes[-1:] == [".gz"] else "".join(suffixes[-1:])


def exported_names(*boundaries: str) -> dict[str, list[str]]:
    """The names of roles in a file that this program exported; of ``boundaries`` it has an array besides TED's."""
    return _TED_NAMES | {role: [role] for role in boundaries}


def find_roles(
    arrays: Mapping[str, ArrayInfo],
    given: Mapping[str, str | float],
    where: str,
    unreadable: Mapping[str, str] = {},
    names: Mapping[str, Sequence[str]] = NAMES,
    *,
    is_episode: bool = False,
) -> Roles:
    """The roles of arrays by a map, and by their names where it says nothing.

    ``unreadable`` are other arrays, and why they are not read. ``names`` are those of each role. ``is_episode``: the arrays
    are one episode, whose flags may be one value.
    Raises UsageError that lists what is missing or ambiguous, with the arrays there are.
    """
    twice = [key for key in given if key in _TED and _TED[key] in given]
    if twice:
        message = f"{where}: the map gives the {_TED[twice[0]]} twice, as {_TED[twice[0]]} and as {twice[0]}"
        raise UsageError(message, hint="leave one of them out")
    given = {_TED.get(key, key): value for key, value in given.items()}
    found, extra = _given_roles(arrays, given, where, unreadable)
    ambiguous = {
        role: f"{', '.join(tops)} may each be the {role}"
        for role, tops in _find_named(arrays, given, found, names, extra)
    }
    taken = {name for leaves in found.values() for name in leaves.values()} | set(extra.values())
    known = {*found, *given, *ambiguous}
    problems = list(ambiguous.values())
    problems += [f"no array is the {role}" for role in ("observation", "action") if role not in known]
    if "reward" not in known:
        problems.append("no array is the reward (for data without rewards, state a number: reward=0)")
    problems += _unread(known, unreadable, names)
    hint = ""
    if not problems and not {"terminated", "done"} & {*found, *given}:
        single = [name for name in arrays if name not in taken and arrays[name].shape[1:] in ((), (1,))]
        problems, hint = other_flags(single)
    if problems:
        also = "".join(f"; {name} is not read: {why}" for name, why in list(unreadable.items())[:_MOST_LISTED])
        raise UsageError(
            f"{where}: {'; '.join(problems)}",
            hint=f"{hint or _hint(arrays, known)}; the arrays are {listed(arrays)}{also}",
        )
    rows = arrays[next(iter(found["action"].values()))].shape[0]
    more, left_out = _others(arrays, taken, rows, extra)
    ends = {} if set(_BOUNDARIES) & set(given) else _more_ends(arrays, found, taken, rows, names)
    roles = _roles(found, given, ends, {**extra, **more}, left_out)
    _check(roles, arrays, where, is_episode)
    return roles


def rename_roles(arrays: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Arrays of an episode by our names, where they have others of `NAMES`; what states episodes is left as it is.

    Raises UsageError for a role that several may have.
    """
    if any(name.startswith("next/") for name in arrays):  # TED has the flags of the previous state at the root
        arrays = {name: value for name, value in arrays.items() if name not in _FLAGS or "next/" + name not in arrays}
    given = {role for role in NAMES if role in _BOUNDARIES or any(name.partition("/")[0] == role for name in arrays)}
    found: dict[str, dict[str, str]] = {}
    several = _find_named(arrays, given, found, NAMES)
    if several:
        role, tops = several[0]
        raise UsageError(f"{where}: {', '.join(tops)} may each be the {role}", hint=f"name one of them {role}")
    keys: dict[str, str] = {}
    for role, leaves in found.items():
        keys |= {name: "next_" + key if role == "next_observation" else key for key, name in leaves.items()}
    return {keys.get(name, name): value for name, value in arrays.items()}


def _find_named(
    arrays: Iterable[str],
    given: Collection[str],
    found: dict[str, dict[str, str]],
    names: Mapping[str, Sequence[str]],
    extra: Mapping[str, str] = {},
) -> list[tuple[str, list[str]]]:
    """Add the roles that names tell to those ``found``; returns the roles that several arrays may have, with their names.

    Roles that are ``given``, and arrays that are taken or ``extra``, are left alone.
    """
    taken = {name for leaves in found.values() for name in leaves.values()} | set(extra.values())
    several = []
    for role in names:
        if role in found or role in given or _is_superseded(role, {*found, *given}):
            continue
        candidates = _named(role, arrays, names, taken)
        if len(candidates) > 1:
            several.append((role, list(candidates)))
        elif candidates:
            found[role] = next(iter(candidates.values()))
            taken |= set(found[role].values())
    return several


_BY_EPISODE = (
    "flatten the first two dimensions of all arrays. If they are [episodes, steps, ...]: reshape, and give episode_lengths as "
    "one more array. If they are [steps, environments, ...], as in buffers of Stable-Baselines3: swapaxes(0, 1) first, so that "
    "the steps of an environment follow each other, and give truncated, true in the last step of each environment"
)
_HINT = "state it in the map, ours to theirs, such as --map observation=obs"


def _hint(arrays: Iterable[str], known: Collection[str]) -> str:
    """How to state a role; with a pattern, if single numbers of observations or actions are arrays: ``obs_0, obs_1``."""
    if {"observation", "action"} <= set(known) and "reward" not in known:
        return "state it in the map, --map reward=0 or --map reward=NAME"
    for role in ("observation", "action"):
        for name in arrays:
            stem = name.rstrip("0123456789")
            if stem != name and stem.rstrip("._").lower() in NAMES[role]:
                return f"state it in the map, ours to theirs, such as --map {role}={stem}*"
    return _HINT


def listed(arrays: Mapping[str, ArrayInfo]) -> str:
    """The arrays with shape and dtype, for messages."""
    some = [f"{name} {array}" for name, array in list(arrays.items())[:_MOST_LISTED]]
    more = len(arrays) - len(some)
    return ", ".join(some) + (f" and {more} more" if more > 0 else "") or "none"


# -- what the map states -------------------------------------------------------------------------------------------------


def _given_roles(
    arrays: Mapping[str, ArrayInfo], given: Mapping[str, str | float], where: str, unreadable: Mapping[str, str]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The roles that a map states, each with its arrays by key; and its other keys."""
    found: dict[str, dict[str, str]] = {}
    extra: dict[str, str] = {}
    for key, value in given.items():
        role, _, rest = key.partition("/")
        if isinstance(value, (int, float)):
            if key not in ("reward", "episode"):
                message = f"{where}: the map gives {key} as the number {value}; only reward and episode may be one"
                raise UsageError(message)
            continue
        unread = [name for name in unreadable if is_named(name, value)]
        if unread:
            some = f"{unread[0]} cannot be read: {unreadable[unread[0]]}"
            raise UsageError(f"{where}: the map gives {key} as {value!r}, and {some}")
        names = _resolved(value, arrays, key, where)
        if role in _TREES:
            base = key.removeprefix("next_")
            found.setdefault(role, {}).update(_keys({base + inner: name for inner, name in names.items()}, where))
        elif len(names) > 1:
            raise UsageError(f"{where}: the map gives {key} as {len(names)} arrays, and it is one")
        elif role in NAMES and not rest:
            found[role] = {role: next(iter(names.values()))}
        else:
            extra |= _keys({key: next(iter(names.values()))}, where)
    return found, extra


def _keys(names: Mapping[str, str], where: str) -> dict[str, str]:
    """Arrays by keys that leaves may have: other characters than letters, digits and underscore become underscores."""
    try:
        keys = clean_keys(names)
    except SchemaError as error:
        raise UsageError(f"{where}: {error.message}") from error
    return {keys[key]: name for key, name in names.items()}


def is_named(name: str, value: str) -> bool:
    """Whether an entry of the map names an array: alone, in its group, by a pattern, or as one of several."""
    return name in value.split(",") or name.startswith(value + "/") or ("*" in value and fnmatchcase(name, value))


def _resolved(value: str, arrays: Mapping[str, ArrayInfo], key: str, where: str) -> dict[str, str]:
    """The arrays that an entry of the map names, by what follows its key: "" for one, ``/pos`` for those of a group."""
    if value in arrays:
        return {"": value}
    inside = {"/" + name.removeprefix(value + "/"): name for name in arrays if name.startswith(value + "/")}
    matched: dict[str, str] = {}
    for name in arrays:
        if "*" in value and fnmatchcase(name, value):
            inner = "/" + name.rpartition("/")[2]
            if inner in matched and not inside:
                message = f"{where}: the map's {value!r} gives {matched[inner]} and {name} the same key, {key}{inner}"
                raise UsageError(message, hint="name each in its own entry, such as observation/NAME=NAME")
            matched[inner] = name
    if not inside and not matched:
        message = f"{where}: the map gives {key} as {value!r}, and there is no such array"
        raise UsageError(message, hint=f"the arrays are {listed(arrays)}")
    return inside or matched


# -- what names tell -----------------------------------------------------------------------------------------------------


def _is_superseded(role: str, found: Collection[str]) -> bool:
    """Whether the roles found so far make a role unnecessary."""
    return role in _BOUNDARIES and any(other in found for other in _BOUNDARIES)


def _more_ends(
    arrays: Mapping[str, ArrayInfo],
    found: Mapping[str, Any],
    taken: set[str],
    rows: int,
    names: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Arrays of counts of steps that were not needed to know the episodes, by role. One with a row per step is a leaf."""
    more: dict[str, str] = {}
    for role in ("episode_lengths", "episode_ends"):
        if role in found or role not in names or not set(_BOUNDARIES) & set(found):
            continue
        named = [name for leaves in _named(role, arrays, names, taken).values() for name in leaves.values()]
        counts = [name for name in named if arrays[name].shape and arrays[name].shape[0] != rows]
        if counts and arrays[counts[0]].dtype.kind in "iu":
            more[role] = counts[0]
    return more


def _named(
    role: str, arrays: Iterable[str], names: Mapping[str, Sequence[str]], taken: Collection[str] = ()
) -> dict[str, dict[str, str]]:
    """The arrays or groups that have one of the names of a role: by that name, as written, their arrays by key."""
    candidates: dict[str, dict[str, str]] = {}
    for name in arrays:
        if name in taken:
            continue
        plain = _inside(name.lower()) if names is NAMES else name
        separators = (_SEPARATORS if names is NAMES else "/") if role in _TREES else ""
        tops = (
            one for one in names[role] if plain == one or plain.startswith(tuple(one + each for each in separators))
        )
        if (top := next(tops, None)) is not None:
            end = len(name) - len(plain) + len(top)
            # As it is written: ``obs``, ``Obs`` and ``data/obs`` are three candidates.
            key = role.removeprefix("next_") + name[end:].replace(name[end : end + 1] or "/", "/")
            candidates.setdefault(name[:end], {})[key] = name
    # TED also has the flags of the previous state at the root, and robomimic has the simulator's states beside observations.
    plain_tops = {top: _inside(top.lower()) for top in candidates}
    ted = {top: leaves for top, leaves in candidates.items() if plain_tops[top].startswith("next/")}
    own = {top: leaves for top, leaves in candidates.items() if plain_tops[top] not in _SIMULATOR}
    return ted or own or candidates


def _unread(known: Collection[str], unreadable: Mapping[str, str], names: Mapping[str, Sequence[str]]) -> list[str]:
    """What unreadable arrays have the names of flags, ends or successors: without them the steps would mean something else."""
    problems = []
    for role in names:
        if role not in known and role not in ("observation", "action", "reward") and not _is_superseded(role, known):
            arrays = [name for leaves in _named(role, unreadable, names).values() for name in leaves.values()]
            problems += [f"{name} may be the {role}, and is not read" for name in arrays]
    return problems


def other_flags(names: Iterable[str]) -> tuple[list[str], str]:
    """What is wrong where arrays have names in `OTHER_FLAGS` and nothing says what terminated; and what to do about it."""
    flags = [name for name in names if _inside(name.lower()) in OTHER_FLAGS]
    if not flags:
        return [], ""
    message = f"{', '.join(flags)} may say where episodes end, and nothing says which steps are terminated"
    why = OTHER_FLAGS[_inside(flags[0].lower())]
    return [message], f"{flags[0]}: {why}; where it is no flag, give it a key: --map info/{flags[0]}={flags[0]}"


def _others(
    arrays: Mapping[str, ArrayInfo], taken: Collection[str], rows: int, extra: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The key of each of the other arrays, and why arrays are left out."""
    is_ted = any(name.startswith("next/") for name in taken)
    keys: dict[str, str] = {}
    left_out: dict[str, str] = {}
    used = {*taken, *(column for name in taken for column in arrays[name].joined)}
    cleaned: list[tuple[str, str, bool]] = []
    for name, array in arrays.items():
        if name in used or (is_ted and name in _FLAGS):
            continue
        why = _why_not(array, rows)
        if why is not None:
            left_out[name] = why
            continue
        plain = name if is_ted else _inside(name)
        inner = plain.partition("/")[2] if plain.startswith(("info/", "infos/")) else plain
        wanted = plain if is_ted else "info/" + inner
        try:
            key = clean_keys([wanted])[wanted]
        except SchemaError as error:
            left_out[name] = error.message
            continue
        cleaned.append((name, key, key != wanted))
    there = set(extra)
    own = {key.lower() for _, key, is_renamed in cleaned if not is_renamed}
    for name, key, is_renamed in cleaned:
        # "a_b" goes to a_b, also where "a b" comes before it.
        if key.lower() in there or (is_renamed and key.lower() in own):
            left_out[name] = f"its key {key} is taken"
            continue
        there.add(key.lower())
        keys[key] = name
    return keys, left_out


def _why_not(array: ArrayInfo, rows: int) -> str | None:
    """Why an array cannot be a leaf; None where it can."""
    if not array.shape or array.shape[0] != rows:
        return f"it has {array.shape[0] if array.shape else 'no'} rows, not one for each of the {rows} steps"
    if 0 in array.shape[1:]:
        return f"its shape {array.shape} is empty"
    try:
        stored_dtype(array.dtype, "")
    except UsageError:
        return f"its dtype is {array.dtype}"
    return None


def _roles(
    found: Mapping[str, Mapping[str, str]],
    given: Mapping[str, str | float],
    more_ends: Mapping[str, str],
    extra: Mapping[str, str],
    left_out: Mapping[str, str],
) -> Roles:
    trees: dict[str, Any] = {role: found.get(role, {}) for role in _TREES}
    single: dict[str, Any] = {
        role: next(iter(found[role].values())) if role in found else None for role in NAMES if role not in _TREES
    }
    single |= {role: value for role in ("reward", "episode") if isinstance(value := given.get(role), (int, float))}
    assumed: tuple[str, ...] = ()
    done = single["done"]
    if done is not None and single["terminated"] is None and single["truncated"] is None:
        assumed = (
            f"{done} is taken as terminated, after which nothing follows. If it includes time limits, map them "
            f"(truncated=NAME); if it has nothing else, map truncated={done}.",
        )
        single |= {"terminated": done, "done": None}
    return Roles(**trees, **single, more_ends=more_ends, extra=extra, left_out=left_out, assumed=assumed)


def _check(roles: Roles, arrays: Mapping[str, ArrayInfo], where: str, is_episode: bool) -> None:
    """Raise UsageError for arrays that do not fit their roles."""
    per_step = {**roles.action, **roles.extra, **{name: name for name in _singles(roles)}}
    if is_episode:  # a flag of one value is the last step's
        flags = (roles.terminated, roles.truncated, roles.done)
        per_step = {key: name for key, name in per_step.items() if name not in flags or not is_one_value(arrays[name])}
    single = [name for name in per_step.values() if not arrays[name].shape]
    if single:
        hint = "give a row per step; of an episode's flags only the last one is set"
        raise UsageError(f"{where}: {single[0]} has one value, not one per step", hint=hint)
    rows = {name: arrays[name].shape[0] for name in per_step.values()}
    if len(set(rows.values())) > 1:
        lengths = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise UsageError(f"{where}: arrays of one row per step differ in length: {lengths}")
    if len({arrays[name].shape[:1] for name in roles.observation.values()}) > 1:
        lengths = ", ".join(f"{name} {arrays[name].shape[0]}" for name in roles.observation.values())
        raise UsageError(f"{where}: the observations differ in length: {lengths}")
    if roles.next_observation and set(roles.next_observation) != set(roles.observation):
        keys = [", ".join(leaves) for leaves in (roles.next_observation, roles.observation)]
        message = f"{where}: next_observation has {keys[0]}, observation {keys[1]}"
        raise UsageError(message, hint=_HINT)
    for key, name in roles.next_observation.items():
        here = arrays[roles.observation[key]]
        if (arrays[name].shape, arrays[name].dtype.newbyteorder("=")) != (here.shape, here.dtype.newbyteorder("=")):
            raise UsageError(f"{where}: {name} is {arrays[name]}, {roles.observation[key]} {here}")
    for name in (*roles.observation.values(), *roles.action.values(), *roles.extra.values()):
        why = _why_not(arrays[name], arrays[name].shape[0] if arrays[name].shape else -1)
        if why is not None:
            raise UsageError(f"{where}: {name} cannot be stored: {why}")
    for name in _singles(roles):
        if arrays[name].shape[1:] not in ((), (1,)) or arrays[name].dtype.kind not in "biuf":
            steps = arrays[next(iter(roles.action.values()))].shape[:2]
            by_episode = len(steps) == 2 and arrays[name].shape == steps
            message = f"{where}: {name} is {arrays[name]}, not one number per step"
            raise UsageError(message, hint=_BY_EPISODE if by_episode else None)


def is_one_value(array: ArrayInfo) -> bool:
    return array.shape in ((), (1,))


def _singles(roles: Roles) -> list[str]:
    """The arrays of one number per step."""
    names = (roles.reward, roles.terminated, roles.truncated, roles.done, roles.episode)
    return [name for name in names if isinstance(name, str)]
