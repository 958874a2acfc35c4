"""What users' functions do in ways that nobody planned: what they do to each batch is what is stored, or there is an error."""

from __future__ import annotations

import os
import shutil
from functools import partial, wraps
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import rbdata
import torch
from effort import EFFORT
from preprocess_tools import fails, make_input, run
from rbdata.errors import FunctionError, SchemaError, UsageError
from rbdata.preprocess.functions import find_builtin
from rbdata.storage.dataset import Dataset
from tensordict import LazyStackedTensorDict

filter_episodes, n_step, relabel_rewards, returns_to_go, scale_rewards, subsample, to_float = map(
    find_builtin,
    ("filter_episodes", "n_step", "relabel_rewards", "returns_to_go", "scale_rewards", "subsample", "to_float"),
)


def applied(dataset: Dataset, fn: Any, per: str, batch: int) -> Any:
    """The results of a function called directly, each copied at once."""
    data = dataset.to_tensordict()
    pieces: list[Any]
    results: list[Any] = []
    if per == "episode":
        starts = dataset.episode_starts.tolist()
        pieces = [data[low:high] for low, high in pairwise(starts)]
    elif per == "sample":
        pieces = list(data.unbind(0))
    else:
        pieces = list(data.split(batch))
    for piece in pieces:
        out = fn(piece.clone())
        if out is not None:
            results.append(out.clone().unsqueeze(0) if per == "sample" else out.clone())
    whole: Any = torch.cat(results)
    return whole.exclude("done", "terminated", "truncated")


def check_equal(dataset: Dataset, expected: Any) -> None:
    found = dataset.to_tensordict()
    for key, rows in expected.items(True, True):
        assert torch.equal(found[key], rows), key


# -- results that live on in the function ---------------------------------------------------------------------------------


class ReusedBuffer:
    def __init__(self) -> None:
        self.rows = torch.zeros(100, 4)

    def __call__(self, td):
        if not td.batch_size:
            self.rows[0] = td["observation"] * 2
            return td.set("observation", self.rows[0])
        out = self.rows[: len(td)]
        torch.mul(td["observation"], 2, out=out)
        return td.set("observation", out)


class ReusedArray:
    def __init__(self) -> None:
        self.rows = np.zeros((100, 4), np.float32)

    def __call__(self, td):
        rows = self.rows[: len(td)] if td.batch_size else self.rows[0]
        rows[...] = td["observation"].numpy() + 1
        return td.set("observation", torch.from_numpy(rows))


class ReusedTensorDict:
    def __init__(self) -> None:
        self.kept: Any = {}

    def __call__(self, td):
        kept = self.kept.get(td.batch_size)
        if kept is None:
            kept = self.kept[td.batch_size] = td.clone()
        kept.update_(td)
        kept["observation"] += 3
        return kept


class ChangesItsLastInput:
    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, td):
        if self.last is not None:
            self.last["observation"].fill_(-1)
            self.last["next", "reward"].fill_(-1)
        self.last = td
        return td


def one_tensor_twice(td):
    speed = td["observation"] * 2
    td["a"], td["b"] = speed, speed
    return td


def expanded(td):
    return td.set("x", torch.full((1,), 7.0).expand(*td.batch_size, 3))


def negated(td):
    return td.set("x", torch.complex(td["observation"], td["observation"]).conj().imag)


def lazy_stack(td):
    return LazyStackedTensorDict(*td.unbind(0)) if td.batch_size else td


def with_gradient(td):
    torch.set_grad_enabled(bool(td["action"].sum() % 2))
    weight = torch.ones(4, requires_grad=True)
    return td.set("observation", td["observation"] * weight)


ODD = (
    *(ReusedBuffer, ReusedArray, ReusedTensorDict, ChangesItsLastInput),
    *(lambda: one_tensor_twice, lambda: expanded, lambda: negated, lambda: lazy_stack, lambda: with_gradient),
)


#: Each with batches; those that keep their memory with all that they can be given.
ODD_PER = [*((make, "batch") for make in ODD), *((make, per) for make in ODD[:2] for per in ("sample", "episode"))]


@pytest.mark.parametrize(("make", "per"), ODD_PER)
def test_results_are_what_the_function_returned(shared, per, make):
    dataset = run(shared, make(), dest="my/odd", per=per, batch_size=50, force=True)
    check_equal(dataset, applied(Dataset(shared / "my/input"), make(), per, 50))


def add_one(td):
    """In place, as the documents allow."""
    for key in ("observation", "a"):
        if key in td.keys():  # noqa: SIM118
            td[key] += 1
    return td


@pytest.mark.parametrize(("make", "per"), [*ODD_PER[:6], *ODD_PER[-4:]])
def test_the_next_function_gets_memory_of_its_own(shared, per, make):
    dataset = run(shared, [make(), add_one], dest="my/chain", per=per, batch_size=50, force=True)
    check_equal(dataset, add_one(applied(Dataset(shared / "my/input"), make(), per, 50)))


def test_a_function_twice(shared):
    fn = ReusedBuffer()
    for per in ("batch", "sample", "episode"):
        dataset = run(shared, [fn, fn], dest="my/twice", per=per, force=True)
        assert torch.equal(dataset["observation"], Dataset(shared / "my/input")["observation"] * 4)


def test_statistics_of_results_that_live_on(shared):
    dataset = run(shared, [ReusedBuffer(), "rbdata:normalize_observations"], dest="my/mean", per="episode", force=True)
    found = dataset.statistics["normalize_observations"]["observation"]["mean"]
    expected = Dataset(shared / "my/input")["observation"].double().mean(0) * 2
    assert torch.allclose(torch.tensor(found, dtype=torch.float64), expected)


def test_a_reward_function_that_changes_its_input(shared):
    def reward(td):
        td["observation"].mul_(0)
        td["more"] = td["observation"]
        return td["next", "reward"] * 2

    dataset = run(shared, "rbdata:relabel_rewards", dest="my/reward", args={"fn": reward}, force=True)
    source = Dataset(shared / "my/input")
    assert torch.equal(dataset["observation"], source["observation"])
    assert torch.equal(dataset["next/reward"], source["next/reward"] * 2)
    assert "more" not in dataset.schema.names


# -- what functions get and give -------------------------------------------------------------------------------------------


class TestNumbers:
    def test_the_numbers_of_steps_and_episodes(self, shared, workers):
        source = Dataset(shared / "my/input")
        steps = torch.arange(len(source))

        def whole(td, episode, step):
            assert type(episode) is type(step) is int
            return td.set("n", torch.full((len(td),), episode)).set("t", torch.arange(step, step + len(td)))

        def rows(td, *, step, episode):
            return td.set("n", torch.as_tensor(episode)).set("t", torch.as_tensor(step))

        for per, fn in (("episode", whole), ("batch", rows), ("sample", rows)):
            dataset = run(shared, fn, dest="my/numbers", per=per, batch_size=7, open_engine=workers, force=True)
            assert torch.equal(dataset["n"], source.episode_of(steps))
            assert torch.equal(dataset["t"], steps)
        first = run(
            shared,
            lambda td, episode: td if episode < 20 else None,
            dest="my/few",
            per="episode",
            batch_size=7,
            open_engine=workers,
        )
        assert first.manifest.episodes == 20

    def test_slices_tell_the_episode_that_they_are_of(self, shared):
        from rbdata.preprocess.request import ReadOptions

        source, steps = Dataset(shared / "my/input"), []

        def numbered(td, episode, step):
            steps.append(step)
            return td.set("n", torch.full((len(td),), episode))

        options = {"per": "episode", "read_options": ReadOptions(slice_len=3), "procs": 0, "force": True}
        dataset = run(shared, numbered, dest="my/slices", **options)
        assert torch.equal(dataset["n"], source.episode_of(torch.arange(len(source))))
        assert set(dataset.episodes.starts.tolist()) >= set(steps)

    def test_without_a_function_there_is_a_clear_error(self, shared):
        with pytest.raises(UsageError, match="fn is a function"):
            rbdata.preprocess("my/input", None, dest="my/none", root=shared)

    def test_an_argument_with_a_default_keeps_it(self, shared):
        def every(td, step=2, episode="x"):
            assert episode == "x"
            return td.set("y", torch.full((len(td),), step))

        assert run(shared, every, dest="my/default", force=True)["y"].unique().tolist() == [2]
        given = run(shared, lambda td, step: td.set("y", torch.full((len(td),), step)), dest="my/g", args={"step": 5})
        assert given["y"].unique().tolist() == [5]

    def test_numbers_are_those_of_the_first_function(self, shared):
        with pytest.raises(UsageError, match="asks for episode"):
            run(shared, ["rbdata:clip_rewards", lambda td, episode: td], dest="my/bad")


# -- how functions end -----------------------------------------------------------------------------------------


def leave(make):
    def fn(td):
        if len(td) < 7:  # the last batch, not in a trial
            raise make()
        return td

    return fn


def stops(root, fn, match, **options):
    """The run ends with a FunctionError and no dataset; chunks that were finished may be kept."""
    with pytest.raises(FunctionError, match=match):
        run(root, fn, dest="my/stopped", **options)
    assert not (root / "my/stopped").exists()
    shutil.rmtree(root / "my/.stopped.writing", ignore_errors=True)


class TestEnds:
    @pytest.mark.parametrize(
        ("error", "procs"),
        [
            (SystemExit(0), 1),
            (GeneratorExit(), 1),
            (GeneratorExit(), 2),
            (StopIteration(), 1),
            (BaseException("odd"), 1),
        ],
    )
    def test_every_exception_is_an_error(self, shared, workers, error, procs):
        name, engine = type(error).__name__, workers if procs == 2 else None
        stops(shared, leave(lambda: error), f"raised {name}", batch_size=7, open_engine=engine)

    def test_errors_of_a_users_class(self, shared, workers):
        class Mine(rbdata.errors.UsageError):
            def __init__(self, one, two):
                super().__init__(f"{one} {two}")

        stops(shared, leave(lambda: Mine("a", "b")), "raised Mine: a b", batch_size=7, open_engine=workers)

    def test_later_results_of_another_kind(self, shared):
        """Of single steps in one batch: torch.stack would convert them."""

        def fn(td):
            return td.set("x", torch.tensor(1.5) if td["next", "done"] else torch.tensor(1))

        fails(shared, fn, SchemaError, r"'x' as float32 \[\], and before as int64", per="sample")


# -- partials and wrappers of built-in functions ------------------------------------------------------------------------------


class TestBuiltIn:
    @pytest.mark.parametrize(
        ("function", "args"),
        [
            (returns_to_go, {"gamma": 0.9}),
            (filter_episodes, {"min_quantile": 0.5}),
        ],
    )
    def test_a_partial_is_the_function_with_arguments(self, shared, tmp_path, function, args):
        name = function.__name__
        expected = run(shared, f"rbdata:{name}", dest="my/args", args=args, force=True)
        given = ", ".join(f"{key}={value!r}" for key, value in args.items())
        (tmp_path / "partials_file.py").write_text(f"""from functools import partial
from rbdata.preprocess.functions import {name}
mine = partial({name}, {given})
""")
        for fn in (partial(function, **args), partial(partial(function), **args), f"{tmp_path}/partials_file.py:mine"):
            dataset = run(shared, fn, dest="my/partial", force=True)
            check_equal(dataset, expected.to_tensordict())
            assert dataset.manifest.lineage["functions"][0]["args"] == args
        over = {key: value for key, value in args.items() if key == "gamma"}
        if over:
            dataset = run(shared, partial(function, gamma=0.1), dest="my/partial", args=over, force=True)
            check_equal(dataset, expected.to_tensordict())

    def test_a_partial_is_checked(self, shared):
        with pytest.raises(UsageError, match="takes no argument gama"):
            run(shared, partial(returns_to_go, gama=0.9), dest="my/bad")
        with pytest.raises(UsageError, match="positional"):
            run(shared, partial(returns_to_go, None), dest="my/bad")
        with pytest.raises(UsageError, match="needs whole episodes"):
            run(shared, partial(returns_to_go, gamma=0.9), dest="my/bad", per="batch")

    def test_inside_other_functions(self, shared):
        """They are called with what the user's function gets: only --per episode is right."""

        @wraps(returns_to_go)
        def wrapped(td):
            return returns_to_go(td, gamma=0.9)

        expected = run(shared, returns_to_go, dest="my/args", args={"gamma": 0.9}, force=True)
        for fn in (lambda td: returns_to_go(td, gamma=0.9), wrapped):
            fails(shared, fn, FunctionError, "needs one whole episode, .* several", batch_size=100)
            fails(shared, fn, FunctionError, "needs one whole episode", batch_size=2)
            fails(shared, fn, FunctionError, r"needs one whole episode, .* batch size \[\]", per="sample")
            dataset = run(shared, fn, dest="my/lambda", per="episode", force=True)
            check_equal(dataset, expected.to_tensordict())

    def test_a_batch_inside_one_episode(self, tmp_path):
        make_input(tmp_path, count=1, seed=8)
        assert len(Dataset(tmp_path / "my/input")) > 10
        fails(tmp_path, lambda td: returns_to_go(td), FunctionError, "without the end of one", batch_size=4)

    def test_a_wrapper_is_what_it_does(self, shared):
        """functools.wraps copies the attributes of the built-in function, not its code."""

        @wraps(scale_rewards)
        def mine(td):
            td = scale_rewards(td, scale=2.0)
            td["observation"] = td["observation"] // 2
            td["next", "observation"] = td["next", "observation"] // 2
            return td

        dataset = run(shared, mine, dest="my/wrapped", source="my/frames", force=True)
        assert torch.equal(dataset["observation"], Dataset(shared / "my/frames")["observation"] // 2)

        @wraps(to_float)
        def floats(td):
            td = to_float(td)
            return td.set("observation", td["observation"] + 1).set(
                ("next", "observation"), td["next", "observation"] + 1
            )

        dataset = run(shared, floats, dest="my/wrapped", source="my/frames", force=True)
        assert float(dataset["observation"].min()) >= 1


# -- chains equal the runs one after the other ---------------------------------------------------------------------------------


def end_early(td, every=3):
    """A function of batches or episodes; the last step keeps its own end."""
    hit = (td["observation"].flatten(1).float().sum(1) * 7).long() % every == 0
    td["next", "terminated"][hit] = True
    return td


def halves(td):
    td["next", "truncated"][: len(td) // 2] |= torch.arange(len(td) // 2)[:, None] == len(td) // 2 - 1
    return td


def second_half(td):
    return td[len(td) // 2 :]


def first_half(td):
    """Its end is no longer done: it is truncated there."""
    return td[: max(1, len(td) // 2)]


def drop_some(td):
    return None if len(td) % 3 == 1 else td


def drop_last_piece(td):
    return None if bool(td["next", "truncated"][-1]) else td


def no_reward(td):
    return td.exclude(("next", "reward"), "action", "done", "truncated")


def doubled(td):
    return torch.cat([td, td])


def new_keys(td):
    td["length"] = torch.full((len(td),), len(td))
    td["observation"] = td["observation"].double()
    td["next", "observation"] = td["next", "observation"].double()
    return td


CHAIN = (
    *(end_early, halves, second_half, first_half, drop_some, drop_last_piece, no_reward, doubled, new_keys),
    *("rbdata:returns_to_go", "rbdata:clip_rewards", "rbdata:to_float", "rbdata:normalize_observations"),
    *(partial(filter_episodes, min_length=3), partial(filter_episodes, min_quantile=0.4)),
    *(partial(relabel_rewards, rule="return_range"), partial(relabel_rewards, rule="delayed")),
    *(
        partial(subsample, every=2),
        partial(subsample, fraction=0.5),
    ),
    *(partial(n_step, n=2),),
)


@pytest.mark.parametrize("seed", range(3 * EFFORT))
def test_a_chain_equals_runs_one_after_the_other(tmp_path, seed):
    rng = np.random.default_rng(seed + int(os.environ.get("RBDATA_TEST_SEED", "0")) * 1000)
    make_input(tmp_path, "zstd" if seed % 4 == 0 else "flat", count=25, seed=seed)
    chain = [CHAIN[number] for number in rng.choice(len(CHAIN), rng.integers(2, 5))]
    options: dict[str, Any] = {"per": "episode", "layout": "ted", "num_frames": 150}

    def in_turn():
        source, number = "my/input", 0
        for number, fn in enumerate(chain):
            run(tmp_path, fn, dest=f"my/turn{number}", source=source, **options)
            source = f"my/turn{number}"
            options.pop("num_frames", None)
        return Dataset(tmp_path / source)

    try:
        dataset = run(tmp_path, chain, dest="my/chain", **options)
    except rbdata.errors.RbdataError as error:
        with pytest.raises(type(error)):
            in_turn()
        return
    expected = in_turn()
    assert sorted(dataset.schema.names) == sorted(expected.schema.names)
    for name in expected.schema.names:
        # sums of statistics are made in another order
        torch.testing.assert_close(dataset[name], expected[name], rtol=1e-6, atol=1e-6, msg=f"{name} of {chain}")
    for name in ("starts", "lengths", "outcomes", "midway"):
        assert getattr(dataset.episodes, name).tolist() == getattr(expected.episodes, name).tolist(), (name, chain)


@pytest.mark.parametrize(
    "chain",
    [
        [returns_to_go, partial(filter_episodes, min_length=3)],
        [partial(scale_rewards, scale=2), partial(relabel_rewards, rule="even")],
    ],
)
def test_ends_of_a_function_are_those_of_the_next(shared, workers, chain):
    """A function of batches in a run of its own; returns and lengths are those of the episodes that it made."""
    dataset = run(shared, [end_early, *chain], dest="my/chain", open_engine=workers, batch_size=7, force=True)
    source = "my/input"
    for number, fn in enumerate([end_early, *chain]):
        run(shared, fn, dest=f"my/turn{number}", source=source, force=True)
        source = f"my/turn{number}"
    assert len(Dataset(shared / source).episodes) != 40
    check_equal(dataset, Dataset(shared / source).to_tensordict())


def test_samples_in_a_chain_are_completed(shared):
    def ends(td):
        td["next", "terminated"] |= td["next", "reward"] > 1
        return td.exclude(("next", "done"))

    def reads(td):
        return td.set("ended", td["next", "done"].clone()).set("root", td["done"].clone())

    dataset = run(shared, [ends, reads], dest="my/samples", per="sample", force=True)
    assert torch.equal(dataset["ended"], dataset["next/done"])
    assert not dataset["root"].any()


def late_action(td, step):
    td["action"][step >= 100] = 7
    return td


def late_observation(td, step):
    for key, first in (("observation", 100), (("next", "observation"), 99)):
        td[key][step >= first] += 1
    return td


def late_successor(td, step):
    td["next", "observation"][step >= 100] += 1
    return td


def differences(td):
    td["next", "observation"] -= td["observation"]
    return td


def next_action(td):
    td["next", "action"] = td["action"] - 1
    return td


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording of vectors and one of frames."""

    class Frames(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 200, (40, 40), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 0.0, False, False, {}

    root = tmp_path_factory.mktemp("recorded")
    envs = {"steps": "CartPole-v1", "states": Frames()}
    return {layout: rbdata.record(env, steps=150, name=layout, root=root) for layout, env in envs.items()}


@pytest.mark.parametrize(
    ("fn", "left"),
    [
        (late_action, {"observation"}),
        (late_observation, {"action"}),
        (late_successor, {"action"}),
        (differences, {"action"}),  # the space of a leaf is also that of its successor
        (next_action, {"observation"}),
        ([late_action, new_keys], set()),
        (lambda td: td, {"observation", "action"}),
        ((), {"observation", "action"}),
        ("rbdata:clip_rewards", {"observation", "action"}),
    ],
)
def test_a_space_is_kept_where_no_batch_changes_the_leaf(tmp_path, recorded, fn, left):
    """Not only the first batch, whose values the function leaves."""
    for layout in ("steps", "states") if fn is not late_successor else ("steps",):
        source = Dataset(recorded[layout])
        made = Dataset(rbdata.preprocess(source, fn, dest=f"my/{layout}", root=tmp_path, batch_size=16, procs=0))
        assert set(made.manifest.spaces) == left
        assert set(source.manifest.spaces) == {"observation", "action"}


OTHER_FORMS = {
    "wider": lambda rows: rows.repeat(1, 2),
    "large": lambda rows: rows.repeat(1, 300),
    "one": lambda rows: rows[:, :1],
    "half": lambda rows: rows.half(),
    "rounded": lambda rows: rows.long(),
}


@pytest.mark.parametrize("form", [*OTHER_FORMS])
@pytest.mark.parametrize("key", ["observation", "next/observation"])
def test_an_observation_of_another_form_than_its_successor(tmp_path, form, key):
    """An episode that goes on in the next batch: the two were compared all the same, and torch refused."""
    make_input(tmp_path)
    path = tuple(key.split("/"))

    def fn(td):
        return td.set(path, OTHER_FORMS[form](td[path]))

    per = "episode" if form == "half" else "batch"
    made = run(tmp_path, fn, batch_size=7, per=per)
    check_equal(made, applied(Dataset(tmp_path / "my" / "input"), fn, per, 7))
    assert made.manifest.lineage["unchained"] == ["observation"]


def test_a_successor_that_any_function_of_a_chain_may_have_changed(tmp_path):
    """The message named the last one."""
    make_input(tmp_path, "zstd")

    def late(td, step):
        td["next", "observation"][step >= 64] = 7
        return td

    def same(td):
        return td

    fails(tmp_path, [late, same], SchemaError, r"late, .*same made 'next/observation' other than", batch_size=16)
