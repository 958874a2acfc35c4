"""Users' own functions, arguments, policies, environments, samplers, storages and transforms, whose right result is known.

Each round takes one of the kinds below, draws code as users write it (results in a reused buffer, changes in place, closures,
classes with slots, files that are edited between two runs), and compares every row with the result of applying the same
meaning directly. What must hold: the rows are equal, or there is an RbdataError; two requests that differ in anything are
never taken for one.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import importlib
import random
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import gymnasium
import numpy as np
import rbdata
import torch
from rbdata.errors import FunctionError, RbdataError
from report import Report, peak_memory
from storage_tools import LAYOUTS, columns, make_episodes, write_dataset
from tensordict import TensorDict

INPUT = "my/input"
FRAME: dict[str, Any] = {"shape": (24, 24, 3), "dtype": "uint8"}


def run(rounds: int, seed: int) -> Report:
    """Rounds with seeds ``seed``, ``seed + 1``, ...; each is repeated by its own seed alone."""
    report = Report("own_code", seed)
    path = list(sys.path)
    with report.measured():
        for number in range(rounds):
            report.rounds += 1
            rng = random.Random(seed + number)
            kind = rng.choice(KINDS)
            with tempfile.TemporaryDirectory(prefix="own-code-") as folder:
                try:
                    outcome = kind(rng, Path(folder))
                except KeyboardInterrupt:
                    raise
                except BaseException:  # GeneratorExit and SystemExit of a user's function
                    outcome = "fault"
                    report.faults.append(f"seed {seed + number}, {kind.__name__}: {traceback.format_exc(limit=-4)}")
                finally:
                    sys.path[:] = path
                    for name in [name for name in sys.modules if name.startswith("own_")]:
                        if name != __name__:
                            del sys.modules[name]
            report.outcomes[f"{kind.__name__} {outcome}"] += 1
            report.peak_memory = max(report.peak_memory, peak_memory())
    return report


def _episodes(rng: random.Random, layout: str) -> list[Any]:
    lengths = [rng.randint(1, 12) for _ in range(rng.randint(2, 30))]
    return make_episodes(lengths, seed=rng.getrandbits(20), **({} if layout == "flat" else FRAME))


def _write(root: Path, episodes: list[Any], layout: str) -> None:
    write_dataset(root, episodes, layout, id=INPUT, parts=min(2, len(episodes)) if layout != "flat" else 1)


def _rows(root: Path, dataset_id: str) -> dict[str, np.ndarray]:
    """Every leaf of a dataset as stored, ``[steps, ...]`` by its path."""
    data = rbdata.open_dataset(dataset_id, root=root).to_tensordict()
    return {"/".join(key) if isinstance(key, tuple) else key: value.numpy() for key, value in data.items(True, True)}


def _assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], what: object) -> None:
    for name, rows in wanted.items():
        assert name in found, f"{what}: {name} is missing"
        assert found[name].shape == rows.shape, f"{what}: {name} has the shape {found[name].shape}, not {rows.shape}"
        unlike = np.flatnonzero((found[name] != rows).reshape(len(rows), -1).any(1))
        assert not len(unlike), f"{what}: {len(unlike)} of {len(rows)} rows of {name} differ, the first is {unlike[0]}"


# -- functions of preprocess: what they mean, and how users write them ------------------------------------------------------

#: A meaning maps the columns of a batch or an episode (NumPy, rows first) to new ones; None drops the episode.
Columns = dict[str, np.ndarray]
Meaning = Callable[[Columns], "Columns | None"]


def _scaled(factor: float) -> Meaning:
    return lambda rows: {"next/reward": rows["next/reward"] * np.float32(factor)}


def _marked(factor: float) -> Meaning:
    def mark(rows: Columns) -> Columns:
        means = rows["observation"].reshape(len(rows["action"]), -1).astype(np.float64).mean(1)
        return {"mark": (means * factor + rows["action"]).astype(np.float32)}

    return mark


def _summed(factor: float) -> Meaning:
    return lambda rows: {"sum": (np.cumsum(rows["next/reward"].astype(np.float64)) * factor).astype(np.float32)}


def _kept(factor: float) -> Meaning:
    return lambda rows: {} if len(rows["action"]) * factor % 3 >= 1 else None


def _cut(factor: float) -> Meaning:
    """An episode ends early, after the first half (rounded up)."""

    def cut(rows: Columns) -> Columns:
        ended = np.array(rows["next/terminated"])
        ended[(len(ended) - 1) // 2] = True
        return {"next/terminated": ended, "next/done": ended | rows["next/truncated"]}

    return cut


#: For rows alone, and for whole episodes.
BY_ROW, BY_EPISODE = (_scaled, _marked), (_scaled, _marked, _summed, _kept, _cut)


def _columns_of(td: TensorDict) -> Columns:
    rows = td if td.batch_dims else td.unsqueeze(0)
    return {
        "/".join(key) if isinstance(key, tuple) else key: np.array(value.numpy())
        for key, value in rows.items(True, True)
    }


class Style:
    """How a function hands out its results. ``give(td, new)`` puts the new columns into what is returned."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: Any = None
        self.room: dict[str, torch.Tensor] = {}

    def give(self, td: TensorDict, new: Columns) -> TensorDict:
        fresh = {tuple(name.split("/")): torch.from_numpy(np.array(rows)) for name, rows in new.items()}
        if not td.batch_dims:
            fresh = {key: rows[0] for key, rows in fresh.items()}
        return getattr(self, self.name)(td, fresh)

    def in_place(self, td: TensorDict, new: Any) -> TensorDict:
        for key, rows in new.items():
            td[key] = rows
        return td

    def new_tensordict(self, td: TensorDict, new: Any) -> TensorDict:
        out = TensorDict({}, td.batch_size)
        for key, rows in [*td.items(True, True), *new.items()]:
            out[key] = rows
        return out

    def own_buffer(self, td: TensorDict, new: Any) -> TensorDict:
        """A view of a buffer that the next call fills again."""
        for key, rows in new.items():
            room = self.room.setdefault(str(key), torch.zeros((20000, *rows.shape[td.batch_dims :]), dtype=rows.dtype))
            view = room[: len(rows)] if td.batch_dims else room[0]
            view.copy_(rows)
            td[key] = view
        return td

    def same_tensordict(self, td: TensorDict, new: Any) -> TensorDict:
        """One object for all results; what it held is overwritten."""
        if self.kept is not None and self.kept.batch_size == td.batch_size:
            self.kept.update_(self.new_tensordict(td, new))
            return self.kept
        self.kept = self.new_tensordict(td, new).clone()
        return self.kept

    def spoils_the_last(self, td: TensorDict, new: Any) -> TensorDict:
        """Changes the result of the call before."""
        if self.kept is not None:
            self.kept.apply_(torch.zero_)
        self.kept = self.in_place(td, new)
        return self.kept

    def expanded(self, td: TensorDict, new: Any) -> TensorDict:
        """Results with strides that are not those of rows."""
        for key, rows in new.items():
            td[key] = rows.unsqueeze(0).expand(3, *rows.shape)[1].t().contiguous().t() if rows.dim() == 2 else rows
        return td

    def under_two_keys(self, td: TensorDict, new: Any) -> TensorDict:
        td = self.in_place(td, new)
        td["twice"] = td["action"]
        return td


STYLES = [name for name, value in vars(Style).items() if isinstance(value, types.FunctionType) and name[0] != "_"]
STYLES.remove("give")


def _function(meaning: Meaning, style: Style) -> Callable[..., Any]:
    def fn(td: TensorDict) -> Any:
        new = meaning(_columns_of(td))
        return None if new is None else style.give(td, new)

    return fn


class Called:
    """An object with state that is called."""

    __slots__ = ("inner",)

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner

    def __call__(self, td: TensorDict) -> Any:
        return self.inner(td)


class Module(torch.nn.Module):
    def __init__(self, inner: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, td: TensorDict) -> Any:
        return self.inner(td)


def _with_argument(td: TensorDict, inner: Callable[..., Any]) -> Any:
    return inner(td)


#: As what kind of object a function is given.
FORMS: tuple[Callable[[Any], Any], ...] = (
    lambda fn: fn,
    lambda fn: lambda td: fn(td),
    lambda fn: functools.wraps(fn)(lambda td: fn(td)),
    lambda fn: functools.partial(_with_argument, inner=fn),
    lambda fn: Called(fn).__call__,
    Called,
    Module,
)


def _applied(data: Columns, ends: list[int], meaning: Meaning, by_episode: bool) -> tuple[Columns, list[int]]:
    """The meaning applied to columns whose episodes end before the rows ``ends``; episodes that it ends early are split."""
    pieces, low = [], 0
    for end in ends if by_episode else ends[-1:]:
        rows = {name: column[low:end] for name, column in data.items()}
        new = meaning(rows)
        if new is not None:
            pieces.append(rows | new)
        low = end
    if not pieces:
        return {}, []
    out = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return out, [int(row) + 1 for row in np.flatnonzero(out["next/done"].reshape(-1))]


def functions(rng: random.Random, root: Path) -> str:
    """A chain of functions against their meaning, applied one after the other."""
    layout = rng.choice(LAYOUTS)
    episodes = _episodes(rng, layout)
    _write(root, episodes, layout)
    per = rng.choice(("batch", "sample", "episode"))
    makers = BY_EPISODE if per == "episode" else BY_ROW
    meanings = [rng.choice(makers)(rng.choice((0.5, 2.0, 3.0))) for _ in range(rng.choice((1, 1, 2, 3)))]
    styles = [rng.choice(STYLES) for _ in meanings]
    chain = [rng.choice(FORMS)(_function(meaning, Style(style))) for meaning, style in zip(meanings, styles)]
    options: dict[str, Any] = {"batch_size": rng.choice((None, 3, 7))} if per == "batch" else {}
    what = f"{layout} {per} {[meaning.__qualname__ for meaning in meanings]} {styles} {options}"
    data, ends = columns(episodes), np.cumsum([len(episode) for episode in episodes]).tolist()
    for meaning in meanings:
        if data:
            data, ends = _applied(data, ends, meaning, per == "episode")
    try:
        rbdata.preprocess(INPUT, chain, dest="my/out", per=per, root=root, procs=1, **options)
    except RbdataError as error:
        assert not data or "one after the other" in str(error), f"{what}: {error!r}"
        return "refused"
    assert data, f"{what}: every episode is dropped, but there is a dataset"
    _assert_equal(_rows(root, "my/out"), data, what)
    return "equal"


# -- requests that differ in one thing --------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return float(self.value)


class Plain(Slotted):
    pass


class Colour(enum.Enum):
    RED = 2.0
    BLUE = 3.0


@dataclasses.dataclass
class Config:
    value: float
    nested: Any = None


def _number(value: Any) -> float:
    """What an argument of any kind means to the functions below."""
    if isinstance(value, (Slotted, int, float, np.generic, decimal.Decimal, fractions.Fraction)):
        return float(value)
    if isinstance(value, Colour):
        return value.value
    if isinstance(value, Config):
        return value.value + (0 if value.nested is None else _number(value.nested))
    if isinstance(value, PurePosixPath):
        return float(len(str(value)))
    if isinstance(value, torch.dtype):
        return float(value.itemsize)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, range):
        return float(value.step)
    if isinstance(value, np.random.BitGenerator):
        return float(value.state["state"]["state"] % 97)
    if isinstance(value, dict):
        return sum(_number(one) for one in value.values())
    if isinstance(value, types.SimpleNamespace):
        return _number(value.value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return float(value.sum())
    return sum((place + 1) * _number(one) for place, one in enumerate(value))


#: Two values of a kind that mean different numbers.
PAIRS: tuple[tuple[Any, Any], ...] = (
    (2, 3),
    (2.0, 2.5),
    (np.float32(2), np.float32(3)),
    (np.int64(2), np.int64(3)),
    (np.array(2.0), np.array(3.0)),
    (np.arange(3), np.arange(4)),
    (np.array([2, decimal.Decimal(3)], object), np.array([2, decimal.Decimal(4)], object)),
    (torch.ones(2), torch.ones(3)),
    (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
    (torch.float32, torch.float64),
    (Path("ab"), Path("abc")),
    (decimal.Decimal(2), decimal.Decimal(3)),
    (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    (datetime.timedelta(2), datetime.timedelta(3)),
    (Slotted(2), Slotted(3)),
    (Plain(2), Plain(3)),
    (Colour.RED, Colour.BLUE),
    (Config(2), Config(3)),
    (Config(2, Slotted(1)), Config(2, Slotted(2))),
    (collections.deque([1, 2]), collections.deque([2, 1])),
    (collections.OrderedDict(a=1), collections.OrderedDict(a=2)),
    (types.SimpleNamespace(value=1), types.SimpleNamespace(value=Slotted(2))),
    ((1, 2), (2, 1)),
    ([1, [2]], [1, [3]]),
    ({1, 2}, {1, 3}),
    (frozenset({2}), frozenset({3})),
    (bytearray(b"\1"), bytearray(b"\2")),
    (range(0, 4, 1), range(0, 4, 2)),
    # Not the generators over them: preprocess seeds those for every batch.
    (np.random.PCG64(1), np.random.PCG64(2)),
)


def _times(td: TensorDict, factor: Any) -> TensorDict:
    td["next", "reward"] = td["next", "reward"] * _number(factor)
    return td


class Times:
    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def __call__(self, td: TensorDict) -> TensorDict:
        return _times(td, self.factor)

    def method(self, td: TensorDict) -> TensorDict:
        return _times(td, self.factor)


def _by_default(value: Any) -> Callable[..., Any]:
    def fn(td: TensorDict, factor: Any = value) -> TensorDict:
        return _times(td, factor)

    return fn


def _by_global(value: Any) -> Callable[..., Any]:
    """A function of a notebook: its module has no file, and a cell of it sets the factor."""
    notebook: dict[str, Any] = {"__name__": "own_notebook", "_times": _times, "FACTOR": value}
    exec("def fn(td):\n    return _times(td, FACTOR)\n", notebook)
    return notebook["fn"]


def _by_attribute(value: Any) -> Callable[..., Any]:
    def fn(td: TensorDict) -> TensorDict:
        return _times(td, fn.factor)  # type: ignore[attr-defined]

    fn.factor = value  # type: ignore[attr-defined]
    return fn


#: How a value reaches a function given as an object.
WAYS: tuple[Callable[[Any], Any], ...] = (
    lambda value: functools.partial(_times, factor=value),
    lambda value: lambda td: _times(td, value),
    lambda value: Times(value),
    lambda value: Times(value).method,
    lambda value: functools.partial(Times(value).method),
    _by_default,
    _by_global,
    _by_attribute,
)

SOURCE = """from own_helper import FACTOR as HELPED, twice
FACTOR = {factor}
def fn(td, more=1.0):
    td["next", "reward"] = td["next", "reward"] * (FACTOR * HELPED * twice(more) / 2)
    return td
"""
HELPER = "from own_deeper import DEEP\nFACTOR = {factor} * DEEP\ndef twice(value):\n    return value * 2\n"


def _given_as_objects(rng: random.Random, root: Path) -> Iterator[tuple[dict[str, Any], float]]:
    """Requests as ``preprocess`` takes them, and the factor that each means; each call of ``next`` is another one."""
    pair, way = rng.choice(PAIRS), rng.choice(WAYS)
    by_args = rng.random() < 0.4
    for value in rng.sample(pair, 2):
        made: dict[str, Any] = {"fn": _times, "args": {"factor": value}} if by_args else {"fn": way(value)}
        yield made, _number(value)


def _given_as_files(rng: random.Random, root: Path) -> Iterator[tuple[dict[str, Any], float]]:
    """The same for a file that is edited between two runs, or a module that it imports, or one that this one imports."""
    place = root / "code"
    place.mkdir()
    factors = {"own_main": 2.0, "own_helper": 1.5, "own_deeper": 1.0}
    edited = rng.choice(list(factors))
    as_module = rng.random() < 0.3
    for value in (factors[edited], 4.0):
        factors[edited] = value
        (place / "own_main.py").write_text(SOURCE.format(factor=factors["own_main"]))
        (place / "own_helper.py").write_text(HELPER.format(factor=factors["own_helper"]))
        (place / "own_deeper.py").write_text(f"DEEP = {factors['own_deeper']}\n")
        fn: Any = f"{place}/own_main.py:fn"
        if as_module:
            sys.path.append(str(place))
            for name in factors:
                sys.modules.pop(name, None)
            importlib.invalidate_caches()
            fn = importlib.import_module("own_main").fn
        yield {"fn": fn}, float(np.prod(list(factors.values())))


def requests(rng: random.Random, root: Path) -> str:
    """Two requests for one destination that differ in one thing; then the first of them again."""
    episodes = _episodes(rng, "flat")
    _write(root, episodes, "flat")
    rewards = columns(episodes)["next/reward"]

    def make(given: dict[str, Any], **more: Any) -> np.ndarray:
        rbdata.preprocess(INPUT, dest="my/out", root=root, procs=1, **given, **more)
        return _rows(root, "my/out")["next/reward"]

    made = rng.choice((_given_as_objects, _given_as_files))(rng, root)
    first, factor = next(made)
    try:
        assert np.array_equal(make(first), rewards * np.float32(factor)), f"{first} is not a factor of {factor}"
    except RbdataError as error:
        return f"refused: {error}"
    stamp = (root / "my" / "out" / "rbdata.json").stat().st_mtime_ns
    make(first)
    assert (root / "my" / "out" / "rbdata.json").stat().st_mtime_ns == stamp, f"{first} is made again"
    second, other = next(made)
    try:
        found = make(second)
    except RbdataError:
        found = make(second, force=True)
        assert np.array_equal(found, rewards * np.float32(other)), f"{second} by force is not a factor of {other}"
        return "told apart"
    assert other == factor, f"{first} and {second} are taken for one"
    return "taken for one"


def interrupted(rng: random.Random, root: Path) -> str:
    """A run that fails midway is continued with another value, then with its own: never a mixture."""
    episodes = make_episodes([rng.randint(5, 12) for _ in range(60)], seed=rng.getrandbits(20))
    _write(root, episodes, "flat")
    rewards = columns(episodes)["next/reward"]
    flag = root / "fails"
    before, after = rng.choice(PAIRS)
    way, error = rng.choice(WAYS), rng.choice((RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit))
    fails_at = float(rewards[len(rewards) // 14 * 7, 0])

    def failing(inner: Callable[..., Any]) -> Callable[..., Any]:
        def fn(td: TensorDict) -> Any:
            if flag.exists() and float(td["next", "reward"][0]) == fails_at:
                raise error("stopped")
            return inner(td)

        return fn

    flag.touch()
    options: dict[str, Any] = {"dest": "my/out", "root": root, "procs": 1, "batch_size": 7, "per": "batch"}

    def attempt(value: Any) -> str:
        try:
            rbdata.preprocess(INPUT, failing(way(value)), **options)
        except RbdataError:
            return "refused"
        except KeyboardInterrupt:
            return "stopped"
        found = _rows(root, "my/out")["next/reward"]
        wanted = rewards * np.float32(_number(value))
        assert np.array_equal(found, wanted), (
            f"{value!r} after {before!r}: {(found != wanted).sum()} rows of {len(found)}"
        )
        return "made"

    assert attempt(before) != "made" or not flag.exists(), "the function never failed"
    flag.unlink()
    assert not (root / "my" / "out").exists()
    outcome = attempt(after)
    return f"{outcome} with another value, {attempt(before)} with its own"


# -- recordings -------------------------------------------------------------------------------------------------------------


class World(gymnasium.Env[Any, Any]):
    """Observes (episode, time, the last action); all that it hands out it may change afterwards.

    ``reuses``: observations and infos are the same objects at every step. ``spoils``: an action is changed in place.
    """

    def __init__(self, lengths: tuple[int, ...], discrete: bool, reuses: bool, spoils: bool, nested: bool) -> None:
        self.lengths, self.reuses, self.spoils, self.nested = lengths, reuses, spoils, nested
        space = gymnasium.spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(a=space, b=space) if nested else space
        self.action_space = gymnasium.spaces.Discrete(5) if discrete else gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.episode, self.room, self.info = -1, np.zeros((2, 3), np.float32), {"time": np.zeros(1)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self.observe(0.0), self.info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        taken = float(np.sum(action))
        if self.spoils and isinstance(action, np.ndarray) and action.ndim:
            action *= 9
        over = self.time >= self.lengths[self.episode % len(self.lengths)]
        return self.observe(taken), taken, over and self.episode % 2 == 0, over and self.episode % 2 == 1, self.info

    def observe(self, taken: float) -> Any:
        room = self.room if self.reuses else np.zeros((2, 3), np.float32)
        room[:] = self.episode, self.time, taken
        room[1] += 0.5
        self.info["time"][0] = self.time
        return {"a": room[0], "b": room[1]} if self.nested else room[0]


class Acting:
    """A policy whose action follows from the observation; it may reuse its action and change the observation."""

    def __init__(self, discrete: bool, reuses: bool, spoils: bool) -> None:
        self.discrete, self.reuses, self.spoils = discrete, reuses, spoils
        self.room = np.zeros(2, np.float32)

    def __call__(self, observation: Any) -> Any:
        seen = observation["a"] if isinstance(observation, dict) else observation
        value = int(seen[0] * 3 + seen[1]) % 5
        if self.spoils:
            seen[:] = -1
        if self.discrete:
            return value
        room = self.room if self.reuses else np.zeros(2, np.float32)
        room[:] = value / 5, -value / 10
        return room


def _wanted_recording(lengths: tuple[int, ...], discrete: bool, nested: bool, steps: int) -> Columns:
    """The recording, by the meaning of the two classes above alone."""
    rows: dict[str, list[Any]] = collections.defaultdict(list)
    episode, time, last = 0, 0, 0.0
    for _ in range(steps):
        value = (episode * 3 + time) % 5
        action = np.array([value / 5, -value / 10], np.float32)
        taken = float(value) if discrete else float(np.sum(action))
        for prefix, now, of in (("", time, last), ("next/", time + 1, taken)):
            state = np.array([episode, now, of], np.float32)
            for name, add in (("observation/a", 0), ("observation/b", 0.5)) if nested else (("observation", 0),):
                rows[prefix + name].append(state + np.float32(add))
        over = time + 1 >= lengths[episode % len(lengths)]
        rows["action"].append(value if discrete else action)
        rows["next/reward"].append([np.float32(taken)])
        rows["next/terminated"].append([over and episode % 2 == 0])
        episode, time, last = (episode + 1, 0, 0.0) if over else (episode, time + 1, taken)
    return {name: np.array(values) for name, values in rows.items()}


def recordings(rng: random.Random, root: Path) -> str:
    """An environment and a policy that reuse and change what they hand out, by `record` and by a loop of the user's."""
    discrete, nested = rng.random() < 0.3, rng.random() < 0.3
    lengths, steps = tuple(rng.randint(1, 6) for _ in range(3)), rng.randint(1, 60)
    flags = [rng.random() < 0.5 for _ in range(4)]

    def make() -> World:
        return World(lengths, discrete, flags[0], flags[1], nested)

    policy = Acting(discrete, flags[2], flags[3])
    by_loop = rng.random() < 0.5
    if by_loop:
        with rbdata.Recorder(make(), name="own", root=root) as env:
            observation, _ = env.reset()
            for _ in range(steps):
                observation, _, terminated, truncated, _ = env.step(policy(observation))
                if terminated or truncated:
                    observation, _ = env.reset()
    else:
        rbdata.record(make, policy, name="own", steps=steps, root=root)
    wanted = _wanted_recording(lengths, discrete, nested, steps)
    what = f"loop {by_loop}, discrete {discrete}, nested {nested}, flags {flags}, lengths {lengths}"
    _assert_equal(_rows(root, "my/own"), wanted, what)
    return "loop equal" if by_loop else "record equal"


# -- parts of buffers -------------------------------------------------------------------------------------------------------

SAMPLERS = (rbdata.RandomSampler, rbdata.SamplerWithoutReplacement, rbdata.PrioritizedSampler)


def overridden(rng: random.Random, root: Path) -> str:
    """Methods of samplers, storages, writers and transforms that users override: they act, or the buffer is refused."""
    size, batch = rng.randint(20, 60), rng.randint(1, 16)
    base = rng.choice(SAMPLERS)
    arguments: tuple[Any, ...] = (size, 0.7, 0.5) if base is rbdata.PrioritizedSampler else ()
    calls_parent, part = rng.random() < 0.5, rng.choice(("sampler", "storage", "both"))

    class OnlyEven(base):  # type: ignore[misc,valid-type]
        def sample(self, storage: Any, batch_size: int) -> Any:
            if calls_parent:
                index, info = super().sample(storage, batch_size)
                return torch.as_tensor(index) // 2 * 2, info
            return torch.arange(batch_size) % (len(storage) // 2) * 2, {}

    kinds = [rbdata.LazyTensorStorage, rbdata.ListStorage]
    kind = rng.choice(kinds)

    class Shifted(kind):  # type: ignore[misc,valid-type]
        def get(self, index: Any) -> Any:
            return _shifted(super().get(index))

    is_list = kind is rbdata.ListStorage
    try:
        buffer = rbdata.TensorDictReplayBuffer(
            storage=(kind if part == "sampler" else Shifted)(size),
            sampler=(base if part == "storage" else OnlyEven)(*arguments),
            batch_size=batch,
            prefetch=rng.choice((None, 2)),
        )
    except RbdataError:
        return "refused"
    buffer.extend(TensorDict({"value": torch.arange(size), "other": torch.arange(size) * 10}, [size]))
    for _ in range(4):
        found = buffer.sample(batch)
        values = found["value"]
        if part != "storage":
            assert not (values % 2).any(), f"{base.__name__}.sample is ignored: {values.tolist()}"
        wanted = values * 10 + (1 if part != "sampler" else 0)
        assert torch.equal(found["other"], wanted), f"{kind.__name__}.get is ignored"
        assert torch.equal(found["index"].reshape(-1), values), f"index {found['index']} of {values}"
    return f"{part} acts{' on a list' if is_list else ''}"


def _shifted(record: Any) -> Any:
    """A copy of a record, or of several, whose ``other`` is one more."""
    if isinstance(record, (list, tuple)):
        return [_shifted(one) for one in record]
    record = record.clone()
    record["other"] = record["other"] + 1
    return record


def batches(rng: random.Random, root: Path) -> str:
    """A batch changed in place: neither its other leaves, nor later batches, nor the dataset change with it."""
    layout = rng.choice(LAYOUTS)
    episodes = _episodes(rng, layout)
    _write(root, episodes, layout)
    options: dict[str, Any] = {"batch_size": rng.randint(1, 20), "seed": rng.getrandbits(20)}
    options |= rng.choice(
        (
            {},
            {"frame_stack": rng.choice((1, 3))},
            {"n_step": rng.choice((1, 3)), "gamma": 0.9},
            {"frame_stack": 2, "n_step": 2, "gamma": 0.9},
            {"slice_len": rng.choice((1, 2)), "strict_length": False},
            {"replacement": False},
        )
    )
    if "slice_len" in options:
        options["batch_size"] *= options["slice_len"]
    options |= rng.choice(({}, {"prefetch": 2}))
    dataset = rbdata.open_dataset(INPUT, root=root)
    try:
        mine, twin = rbdata.load(dataset, **options), rbdata.load(dataset, **options)
    except RbdataError:
        return "refused"
    for _ in range(4):
        try:
            batch, same = mine.sample(), twin.sample()
        except RbdataError:
            return "refused"
        keys = list(batch.keys(True, True))
        before = {key: batch[key].clone() for key in keys}
        for key in keys:
            assert torch.equal(before[key], same[key]), f"{options}: {key} of a later batch was changed, or of its twin"
        for number, key in enumerate(keys):
            if batch[key].dtype == torch.bool:
                batch[key].logical_not_()
            else:
                batch[key].add_(1)
            for other in keys[number + 1 :]:
                assert torch.equal(batch[other], before[other]), f"{layout} {options}: {other} changes with {key}"
    _assert_equal(_rows(root, INPUT), columns(episodes), "the dataset after its batches were changed")
    return "private"


def transforms(rng: random.Random, root: Path) -> str:
    """A user's transform, in place or not, against the batch of a buffer without it."""
    episodes = _episodes(rng, "flat")
    _write(root, episodes, "flat")
    options: dict[str, Any] = {"batch_size": rng.randint(1, 20), "seed": rng.getrandbits(20), "root": root}
    options |= rng.choice(({}, {"prefetch": 2}, {"replacement": False}))
    room = torch.zeros(20, 4)

    def in_place(td: TensorDict) -> TensorDict:
        td["observation"].mul_(2)
        return td

    def own_buffer(td: TensorDict) -> TensorDict:
        view = room[: len(td)]
        view.copy_(td["observation"] * 2)
        td["observation"] = view
        return td

    def half(td: TensorDict) -> TensorDict:
        td["observation"] = td["observation"] * 2
        return td.half()

    transform = rng.choice((in_place, own_buffer, half))
    plain, mine = rbdata.load(INPUT, **options), rbdata.load(INPUT, **options, transform=transform)
    for _ in range(5):
        wanted, found = plain.sample(), mine.sample()
        assert torch.equal(found["observation"].float(), wanted["observation"].half().float() * 2), transform.__name__
        assert torch.equal(found["index"], wanted["index"]), f"{transform.__name__} changes the index"
        assert found["index"].dtype == torch.int64, f"{transform.__name__} reaches the index"
    return transform.__name__


def written(rng: random.Random, root: Path) -> str:
    """A loop that uses one record for all that it writes, to a storage of any kind."""
    storage = rng.choice(
        (rbdata.ListStorage, rbdata.LazyStackStorage, rbdata.LazyTensorStorage, rbdata.CompressedListStorage)
    )
    size, steps = rng.randint(1, 12), rng.randint(1, 30)
    ways = ("add", "list", "batch")
    buffer = rbdata.TensorDictReplayBuffer(storage=storage(size), batch_size=rng.randint(1, 8))
    record = TensorDict({"observation": torch.zeros(1, 3), "next": TensorDict({"reward": torch.zeros(1, 1)}, [1])}, [1])
    for step in range(steps):
        record["observation"].fill_(step)
        record["next", "reward"].fill_(-step)
        way = rng.choice(ways)
        if way == "add":
            buffer.add(record[0])
        else:
            buffer.extend([record[0]] if way == "list" else record)
    wanted = torch.arange(max(0, steps - size), steps)
    whole = buffer.sample_at(list(range(len(buffer))))
    assert torch.equal(whole["observation"][:, 0].sort().values, wanted.float()), (
        f"{storage.__name__} holds other values"
    )
    for _ in range(3):
        batch = buffer.sample()
        assert torch.equal(batch["observation"][:, :1], -batch["next", "reward"])
        batch["observation"].zero_()
    again = buffer.sample_at(list(range(len(buffer))))
    assert torch.equal(again["observation"], whole["observation"]), "a batch that was changed changes the records"
    return storage.__name__


def failing(rng: random.Random, root: Path) -> str:
    """Code that ends oddly is an error that names it, and leaves no dataset."""
    error = rng.choice((ValueError("x"), SystemExit(0), GeneratorExit(), StopIteration(), AssertionError()))
    _write(root, _episodes(rng, "flat"), "flat")

    def fn(*_: Any) -> Any:
        raise error

    try:
        if rng.random() < 0.5:
            rbdata.preprocess(INPUT, fn, dest="my/out", root=root, procs=1)
        else:
            rbdata.record(lambda: World((3,), True, False, False, False), fn, name="out", steps=9, root=root)
    except FunctionError as caught:
        assert "fn" in str(caught), caught
        assert not (root / "my" / "out").exists()
        return "refused"
    raise AssertionError(f"{error!r} of a user's function is not an error")


#: Kinds of rounds, with those more often that have more to draw.
KINDS: tuple[Callable[[random.Random, Path], str], ...] = (
    *(functions, requests) * 3,
    *(recordings, batches) * 2,
    *(interrupted, overridden, transforms, written, failing),
)
