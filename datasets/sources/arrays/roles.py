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

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ....errors import SchemaError, UsageError
from ....storage.schema import clean_keys
from ...ingest.spaces import stored_dtype

if TYPE_CHECKING:
    import numpy as np

#: What an entry of a map may be: the name of an array or of a group of arrays, several names or a pattern with ``*``, which
#: `tables.join_columns` makes one, or a number (of rewards, or of the episode that a file is).
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
_ROLES = {name: role for role, names in NAMES.items() for name in names}
#: Other libraries' flags that are no role: they say the opposite (0 where a step is terminated), or belong to the state of
#: their row. In lower case.
_MASKS = {"masks", "not_done", "not_dones", "nonterminal", "nonterminals", "discount", "discounts"}
_OTHER_FLAGS = _MASKS | {
    *("dones_float", "is_done", "episode_start", "episode_starts", "is_first", "is_last", "is_terminal", "step_type"),
}
_OTHER_ROWS = (
    "compute terminated from it (1 - masks, numpy.cumsum(episode_starts) as episode). Rows of dm_env and Dreamer hold the "
    "action and reward that led to their observation: give rbdata.from_episodes n + 1 observations, action[1:], reward[1:]"
)
#: Roles that may consist of several arrays; those that end episodes; the simulator's states, beside the observations.
_TREES = ("observation", "action", "next_observation")
FLAGS = ("terminated", "truncated", "done")
BOUNDARIES = ("episode", "episode_lengths", "episode_ends")
_SIMULATOR = ("state", "states", "next_state", "next_states")
#: The roles that TED has under ``next``.
_TED = {names[0]: role for role, names in NAMES.items() if names[0].startswith("next/")}
#: Groups that other libraries put all rows into: Tianshou's is ``_meta``.
_OUTER = ("data/", "_meta/")
#: What is between a group and an array in it; LeRobot has observation.state, MineRL observation$compass$angle.
_SEPARATORS = "/.$"
#: A name with a number at its end.
_NUMBERED = re.compile(r"(.*?)[._]?\[?\d+\]?")
#: Arrays that an error or a plan lists.
_MOST_LISTED = 24


@dataclass(frozen=True)
class ArrayInfo:
    """Shape, with the rows in front, and dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"

    @property
    def is_one_value(self) -> bool:
        return self.shape in ((), (1,))


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
    #: Other arrays with a row per step, by key.
    extra: Mapping[str, str]
    #: Arrays that are not taken, and why.
    left_out: Mapping[str, str]
    #: Arrays that the map does not state, which by their names are 0 where a step is terminated.
    masks: tuple[str, ...] = ()
    #: Assumptions about what nothing states, in sentences.
    assumed: tuple[str, ...] = ()

    @property
    def flags(self) -> dict[str, str]:
        """The arrays of the flags, by role."""
        return {role: name for role in FLAGS if (name := getattr(self, role)) is not None}

    @property
    def boundaries(self) -> dict[str, str]:
        """The arrays that state episodes, by role."""
        return {role: name for role in BOUNDARIES if isinstance(name := getattr(self, role), str)}

    def rows(self, arrays: Mapping[str, ArrayInfo]) -> int:
        """How many steps a table has."""
        return arrays[next(iter(self.action.values()))].shape[0]

    def states(self, arrays: Mapping[str, ArrayInfo]) -> int:
        """How many rows of the observation a table has."""
        return arrays[next(iter(self.observation.values()))].shape[0]

    def to_map(self) -> dict[str, str]:
        """The map that states what was found."""
        trees = {**self.observation, **self.action}
        trees |= {"next_" + key: name for key, name in self.next_observation.items()}
        stated = {role: getattr(self, role) for role in ("reward", *FLAGS, *BOUNDARIES)}
        return {**trees, **{role: str(value) for role, value in stated.items() if value is not None}, **self.extra}

    def inner_flags(self) -> dict[str, str]:
        """The arrays of the flags by the keys of leaves that hold them where they do not end episodes."""
        wanted = {"info/" + _inside(name).removeprefix("next/"): name for name in self.flags.values()}
        return {key: wanted[name] for name, key in clean_keys(wanted).items() if key not in self.extra}

    def with_leaves(self, names: Mapping[str, str]) -> Roles:
        """These roles with more leaves: arrays by key."""
        return replace(self, extra={**self.extra, **names})


def find_roles(
    arrays: Mapping[str, ArrayInfo],
    given: Mapping[str, str | float],
    where: str,
    unreadable: Mapping[str, str] = {},
) -> Roles:
    """The roles of arrays by a map, and by their names where it says nothing.

    ``unreadable`` are other arrays, and why they are not read. Raises UsageError that lists what is missing or ambiguous, with
    the arrays there are.
    """
    for key, role in _TED.items():
        if key in given and role in given:
            message = f"{where}: the map gives the {role} twice, as {role} and as {key}"
            raise UsageError(message, hint="leave one of them out")
    given = {_TED.get(key, key): value for key, value in given.items()}
    found, extra = _stated(arrays, given, where, unreadable)
    free = [name for name in arrays if name not in _taken(found, extra)]
    several = _take(found, _named(free), given)
    _check_found(arrays, {*found, *given, *several}, _taken(found, extra), several, where, unreadable)
    single: dict[str, Any] = dict.fromkeys(role for role in NAMES if role not in _TREES)
    single |= {role: next(iter(leaves.values())) for role, leaves in found.items() if role not in _TREES}
    single |= {role: value for role, value in given.items() if isinstance(value, (int, float))}
    assumed: tuple[str, ...] = ()
    if (done := single["done"]) is not None and single["terminated"] is None and single["truncated"] is None:
        assumed = (
            f"{done} is taken as terminated, after which nothing follows. If it includes time limits, map them "
            f"(truncated=NAME). Where it is time limits alone, truncated={done} drops the last step of each episode, unless "
            "next observations are stored.",
        )
        single |= {"terminated": done, "done": None}
    trees: dict[str, Any] = {role: found.get(role, {}) for role in _TREES}
    roles = Roles(**trees, **single, extra=extra, left_out={}, assumed=assumed)
    more, left_out = _others(arrays, _taken(found, extra), roles)
    masks = () if "terminated" in given else tuple(name for name in more.values() if _inside(name.lower()) in _MASKS)
    roles = replace(roles.with_leaves(more), left_out=left_out, masks=masks)
    _check(roles, arrays, where)
    return roles


def rename_roles(arrays: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Arrays of an episode by our names, where they have others of `NAMES`; what states episodes is left as it is.

    Raises UsageError for a role that several may have.
    """
    if any(name.startswith("next/") for name in arrays):  # TED has the flags of the previous state at the root
        arrays = {name: value for name, value in arrays.items() if name not in FLAGS or "next/" + name not in arrays}
    given = {role for role in NAMES if role in BOUNDARIES or any(name.partition("/")[0] == role for name in arrays)}
    found: dict[str, dict[str, str]] = {}
    for role, tops in _take(found, _named(arrays), given).items():
        raise UsageError(f"{where}: {', '.join(tops)} may each be the {role}", hint=f"name one of them {role}")
    keys: dict[str, str] = {}
    for role, leaves in found.items():
        keys |= {name: "next_" + key if role == "next_observation" else key for key, name in leaves.items()}
    return {keys.get(name, name): value for name, value in arrays.items()}


def numbered_columns(arrays: Sequence[str], given: Iterable[str]) -> dict[str, list[str]]:
    """The columns ``obs_0``, ``obs_1`` ... of a role that neither the keys ``given`` nor another array has, by role."""
    known = {*_named(arrays), *(key.partition("/")[0] for key in given)}
    found: dict[str, list[str]] = {}
    for role in (one for one in _TREES if one not in known):
        matches = [(name, _NUMBERED.fullmatch(name.lower())) for name in arrays]
        columns = {name: match[1] for name, match in matches if match and match[1] in NAMES[role]}
        if len(set(columns.values())) == 1:
            found[role] = list(columns)
    return found


def check_flags(names: Iterable[str], where: str, also: str = "") -> None:
    """Raise UsageError for arrays that may say where episodes end, where nothing says which steps are terminated; ``also`` ends
    its hint."""
    flags = [name for name in names if _inside(name.lower()) in _OTHER_FLAGS]
    if flags:
        message = f"{where}: {', '.join(flags)} may say where episodes end, and nothing says which steps are terminated"
        hint = f"{_OTHER_ROWS}; where it is no flag, state terminated, too, or --map info/{flags[0]}={flags[0]}{also}"
        raise UsageError(message, hint=hint)


def _taken(found: Mapping[str, Mapping[str, str]], extra: Mapping[str, str]) -> set[str]:
    """The arrays that have a role or a key."""
    return {*(name for leaves in found.values() for name in leaves.values()), *extra.values()}


def _inside(name: str) -> str:
    """A name without the group that all rows are in."""
    return name.partition("/")[2] if name.startswith(_OUTER) else name


# -- what the map states -------------------------------------------------------------------------------------------------


def _stated(
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
        for name in unreadable:
            if is_named(name, value):
                message = f"{where}: the map gives {key} as {value!r}, and {name} cannot be read: {unreadable[name]}"
                raise UsageError(message)
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
    found = {"/" + name.removeprefix(value + "/"): name for name in arrays if name.startswith(value + "/")}
    if not found:
        missing = [name for name in value.split(",") if name not in arrays]
        which = "no such array" if missing == [value] else f"no array {missing[0]}"
        message = f"{where}: the map gives {key} as {value!r}, and there is {which}"
        raise UsageError(message, hint=f"the arrays are {listed(arrays)}")
    return found


# -- what names tell -----------------------------------------------------------------------------------------------------


def _named(arrays: Iterable[str]) -> dict[str, dict[str, dict[str, str]]]:
    """The arrays or groups that have one of the names of a role: by role, then by that name as it is written (``obs``, ``Obs``
    and ``data/obs`` are three), their arrays by key."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for array in arrays:
        plain = _inside(array.lower())
        for end in (*(at for at, one in enumerate(plain) if one in _SEPARATORS), len(plain)):
            role = _ROLES.get(plain[:end])
            if role is not None and (end == len(plain) or role in _TREES):
                top, rest = array[: len(array) - len(plain) + end], plain[end:]
                key = role.removeprefix("next_") + array[len(array) - len(rest) :].replace(rest[:1] or "/", "/")
                found.setdefault(role, {}).setdefault(top, {})[key] = array
                break
    return {role: _preferred(tops) for role, tops in found.items()}


def _preferred(tops: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """TED has the flags of the previous state at the root, too; robomimic has the simulator's states beside observations."""
    plain = {top: _inside(top.lower()) for top in tops}
    ted = {top: leaves for top, leaves in tops.items() if plain[top].startswith("next/")}
    return ted or {top: leaves for top, leaves in tops.items() if plain[top] not in _SIMULATOR} or tops


def _take(
    found: dict[str, dict[str, str]], named: Mapping[str, Mapping[str, dict[str, str]]], given: Collection[str]
) -> dict[str, list[str]]:
    """Add the roles that names tell to those ``found``; returns those that several arrays may have, with their names. Roles
    that are ``given`` are left alone."""
    several = {}
    for role in NAMES:
        tops = named.get(role, {})
        if not tops or role in given or _is_known(role, {*found, *given}):
            continue
        if len(tops) > 1:
            several[role] = list(tops)
        else:
            found[role] = next(iter(tops.values()))
    return several


def _is_known(role: str, known: Collection[str]) -> bool:
    """Whether a role is known, or another one that states the ends of episodes as well."""
    return role in known or (role in BOUNDARIES and any(other in known for other in BOUNDARIES))


def _check_found(
    arrays: Mapping[str, ArrayInfo],
    known: Collection[str],
    taken: Collection[str],
    several: Mapping[str, Sequence[str]],
    where: str,
    unreadable: Mapping[str, str],
) -> None:
    """Raise UsageError where roles are missing or ambiguous, or an array that is not read may have one."""
    problems = [f"{', '.join(tops)} may each be the {role}" for role, tops in several.items()]
    problems += [f"no array is the {role}" for role in ("observation", "action") if role not in known]
    hint = _HINT if problems or "reward" in known else "state it in the map, --map reward=0 or --map reward=NAME"
    if "reward" not in known:
        problems.append("no array is the reward (for data without rewards, state a number: reward=0)")
    # Without flags, ends and successors the steps would mean something else.
    for role, tops in _named(unreadable).items():
        if not _is_known(role, {*known, "observation", "action", "reward"}):
            problems += [f"{name} may be the {role}, and is not read" for one in tops.values() for name in one.values()]
    unread = "".join(f"; {name} is not read: {why}" for name, why in list(unreadable.items())[:_MOST_LISTED])
    also = f"; the arrays are {listed(arrays)}{unread}"
    if problems:
        raise UsageError(f"{where}: {'; '.join(problems)}", hint=hint + also)
    if not {"terminated", "done"} & set(known):
        single = [name for name, array in arrays.items() if name not in taken and array.shape[1:] in ((), (1,))]
        check_flags(single, where, also)


# -- other arrays, and what does not fit ---------------------------------------------------------------------------------------


def _others(
    arrays: Mapping[str, ArrayInfo], taken: Collection[str], roles: Roles
) -> tuple[dict[str, str], dict[str, str]]:
    """The other arrays by the keys that they get, and why arrays are left out."""
    is_ted = any(name.startswith("next/") for name in taken)
    used = {*taken, *(column for name in taken for column in name.split(",")), *(FLAGS if is_ted else ())}
    wanted: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, array in arrays.items():
        if name in used:
            continue
        plain = name if is_ted else "info/" + re.sub("^infos?/", "", _inside(name))
        why = _why_not(array, roles.rows(arrays))
        try:
            wanted[name] = clean_keys([plain])[plain]
        except SchemaError as error:
            why = why or error.message
        if why is not None:
            left_out[name] = why
    there = {key.lower() for key in roles.extra}
    # "a_b" goes to a_b, also where "a b" comes before it.
    for name, key in sorted(wanted.items(), key=lambda one: not one[0].endswith(one[1].removeprefix("info/"))):
        if name not in left_out and key.lower() in there:
            left_out[name] = f"its key {key} is taken"
        there.add(key.lower())
    return {key: name for name, key in wanted.items() if name not in left_out}, left_out


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


def _check(roles: Roles, arrays: Mapping[str, ArrayInfo], where: str) -> None:
    """Raise UsageError for arrays that do not fit their roles."""
    flags = roles.flags.values()
    numbers = [name for name in (roles.reward, *flags, roles.episode) if isinstance(name, str)]
    steps = [*roles.action.values(), *roles.extra.values(), *numbers]
    steps = [name for name in steps if name not in flags or not arrays[name].is_one_value]  # that of the last step
    for name in steps:
        if not arrays[name].shape:
            hint = "give a row per step; of an episode's flags only the last one is set"
            raise UsageError(f"{where}: {name} has one value, not one per step", hint=hint)
    for names, what in ((steps, "arrays of one row per step"), (roles.observation.values(), "the observations")):
        lengths = {name: (*arrays[name].shape, "no")[0] for name in names}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {count}" for name, count in lengths.items())
            raise UsageError(f"{where}: {what} differ in length: {shown}")
    if roles.next_observation and set(roles.next_observation) != set(roles.observation):
        keys = [", ".join(leaves) for leaves in (roles.next_observation, roles.observation)]
        raise UsageError(f"{where}: next_observation has {keys[0]}, observation {keys[1]}", hint=_HINT)
    for key, name in roles.next_observation.items():
        here, there = arrays[roles.observation[key]], arrays[name]
        if (there.shape, there.dtype.newbyteorder("=")) != (here.shape, here.dtype.newbyteorder("=")):
            raise UsageError(f"{where}: {name} is {there}, {roles.observation[key]} {here}")
    for name in (*roles.observation.values(), *roles.action.values(), *roles.extra.values()):
        why = _why_not(arrays[name], (*arrays[name].shape, -1)[0])
        if why is not None:
            raise UsageError(f"{where}: {name} cannot be stored: {why}")
    shape = arrays[next(iter(roles.action.values()))].shape[:2]
    for name in numbers:
        if arrays[name].shape[1:] not in ((), (1,)) or arrays[name].dtype.kind not in "biuf":
            by_episode = len(shape) == 2 and arrays[name].shape == shape
            message = f"{where}: {name} is {arrays[name]}, not one number per step"
            raise UsageError(message, hint=_BY_EPISODE if by_episode else None)


# -- messages ------------------------------------------------------------------------------------------------------------

_BY_EPISODE = (
    "flatten the first two dimensions of all arrays. If they are [episodes, steps, ...]: reshape, and give episode_lengths as "
    "one more array. If they are [steps, environments, ...], as in buffers of Stable-Baselines3: swapaxes(0, 1) first, so that "
    "the steps of an environment follow each other, and give truncated, true in the last step of each environment"
)
_HINT = (
    "state it in the map, ours to theirs, such as --map observation=obs, or several columns: --map observation=obs_*"
)


def listed(arrays: Mapping[str, ArrayInfo]) -> str:
    """The arrays with shape and dtype, for messages."""
    some = [f"{name} {array}" for name, array in list(arrays.items())[:_MOST_LISTED]]
    more = len(arrays) - len(some)
    return ", ".join(some) + (f" and {more} more" if more > 0 else "") or "none"
