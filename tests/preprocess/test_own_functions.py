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
from rbdata.preprocess.functions import returns_to_go, scale_rewards
from rbdata.storage.dataset import Dataset
from tensordict import LazyStackedTensorDict


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
ODD_PER = [*((make, "batch") for make in ODD), (ODD[0], "sample"), (ODD[0], "episode")]


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


@pytest.mark.parametrize(("make", "per"), [*ODD_PER[3:5], *((ODD[0], per) for per in ("batch", "sample", "episode"))])
def test_the_next_function_gets_memory_of_its_own(shared, per, make):
    dataset = run(shared, [make(), add_one], dest="my/chain", per=per, batch_size=50, force=True)
    check_equal(dataset, add_one(applied(Dataset(shared / "my/input"), make(), per, 50)))


def test_statistics_of_results_that_live_on(shared):
    dataset = run(shared, [ReusedBuffer(), "rbdata:normalize_observations"], dest="my/mean", per="episode", force=True)
    found = dataset.statistics["normalize_observations"]["observation"]["mean"]
    expected = Dataset(shared / "my/input")["observation"].double().mean(0) * 2
    assert torch.allclose(torch.tensor(found, dtype=torch.float64), expected)


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
    @pytest.mark.parametrize("error", [SystemExit(0), StopIteration(), BaseException("odd")])
    def test_every_exception_is_an_error(self, shared, error):
        stops(shared, leave(lambda: error), f"raised {type(error).__name__}", batch_size=7)

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


# -- built-in functions inside of others -----------------------------------------------------------------------------------


class TestBuiltIn:
    def test_inside_other_functions(self, shared):
        """They are called with what the user's function gets: only --per episode is right."""
        expected = run(shared, returns_to_go, dest="my/args", args={"gamma": 0.9}, force=True)
        fn = lambda td: returns_to_go(td, gamma=0.9)  # noqa: E731
        fails(shared, fn, FunctionError, "needs one whole episode, .* several", batch_size=100)
        fails(shared, fn, FunctionError, r"needs one whole episode, .* batch size \[\]", per="sample")
        dataset = run(shared, fn, dest="my/lambda", per="episode", force=True)
        check_equal(dataset, expected.to_tensordict())

    def test_a_partial_is_the_function_with_arguments(self, shared):
        expected = run(shared, "rbdata:returns_to_go", dest="my/args", args={"gamma": 0.9}, force=True)
        fn = partial(partial(returns_to_go, gamma=0.1), gamma=0.9)
        made = run(shared, fn, dest="my/partial", force=True)
        check_equal(made, expected.to_tensordict())
        over = run(shared, fn, dest="my/over", args={"gamma": 0.5}, force=True)
        assert over.manifest.lineage["functions"][0]["args"] == {"gamma": 0.5}
        assert made.manifest.lineage["functions"] == expected.manifest.lineage["functions"]
        with pytest.raises(UsageError, match="takes no argument gama"):
            run(shared, partial(returns_to_go, gama=0.9), dest="my/bad")
        with pytest.raises(UsageError, match="given twice, with arguments"):
            run(shared, [partial(scale_rewards, scale=2), partial(scale_rewards, shift=1)], dest="my/bad")

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


#: Each keeps an episode one; those of the second tuple, which make it several, are last in a chain.
CHAIN = (
    *(second_half, first_half, drop_some, drop_last_piece, no_reward, new_keys),
    *("rbdata:returns_to_go", "rbdata:clip_rewards", "rbdata:to_float", "rbdata:normalize_observations"),
    *("rbdata:filter_episodes", "rbdata:relabel_rewards", "rbdata:subsample"),
)
LAST = (end_early, halves, doubled, "rbdata:n_step", second_half, "rbdata:relabel_rewards")
ARGS = {
    "filter_episodes.min_quantile": 0.4,
    "relabel_rewards.rule": "return_range",
    "subsample.every": 2,
    "n_step.n": 2,
}


@pytest.mark.parametrize("seed", range(2 * EFFORT))
def test_a_chain_equals_runs_one_after_the_other(tmp_path, seed):
    rng = np.random.default_rng(seed + int(os.environ.get("RBDATA_TEST_SEED", "0")) * 1000)
    make_input(tmp_path, "zstd" if seed % 4 == 0 else "flat", count=25, seed=seed)
    chain = [CHAIN[number] for number in rng.choice(len(CHAIN), rng.integers(1, 4))]
    chain.append(LAST[rng.choice(len(LAST))])
    options: dict[str, Any] = {"per": "episode", "layout": "ted"}

    def args_of(functions):
        labels = [fn.removeprefix("rbdata:") for fn in functions if isinstance(fn, str)]
        return {name: value for name, value in ARGS.items() if name.partition(".")[0] in labels}

    def in_turn():
        source: Any = Dataset(tmp_path / "my/input").select(steps=slice(150))
        for number, fn in enumerate(chain):
            source = run(tmp_path, fn, dest=f"my/turn{number}", source=source, args=args_of([fn]), **options)
        return source

    try:
        dataset = run(tmp_path, chain, dest="my/chain", num_frames=150, args=args_of(chain), **options)
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


def test_all_that_a_function_makes_of_an_episode_is_the_next_ones(shared):
    """Also where that is several."""

    def count(td):
        return td.set("ends", td["next", "done"].sum().expand(len(td)))

    made = run(shared, [end_early, count], dest="my/several", per="episode", force=True)
    lengths, ends = Dataset(shared / "my/input").episodes.lengths, made["next/done"].view(-1)
    expected = torch.cat([torch.full((len(some),), int(some.sum())) for some in ends.split(lengths.tolist())])
    assert torch.equal(made["ends"], expected) and int(expected.max()) > 1


def test_samples_in_a_chain_are_completed(shared):
    def ends(td):
        td["next", "terminated"] |= td["next", "reward"] > 1
        return td.exclude(("next", "done"))

    def reads(td):
        return td.set("ended", td["next", "done"].clone()).set("root", td["done"].clone())

    source = Dataset(shared / "my/input").select(steps=slice(60))
    dataset = run(shared, [ends, reads], dest="my/samples", source=source, per="sample", force=True)
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
        (late_successor, {"action"}),  # the space of a leaf is also that of its successor
        ([late_action, new_keys], set()),
        ("rbdata:clip_rewards", {"observation", "action"}),
        ("rbdata:returns_to_go", {"observation", "action"}),
    ],
)
def test_a_space_is_kept_where_no_batch_changes_the_leaf(tmp_path, recorded, fn, left):
    """Not only the first batch, whose values the function leaves."""
    for layout in ("steps", "states") if fn is not late_successor else ("steps",):
        source = Dataset(recorded[layout])
        made = Dataset(rbdata.preprocess(source, fn, dest=f"my/{layout}", root=tmp_path, batch_size=16, procs=0))
        assert set(made.manifest.spaces) == left
        assert set(source.manifest.spaces) == {"observation", "action"}


@pytest.mark.parametrize("form", [lambda rows: rows.repeat(1, 300), lambda rows: rows.long()])
@pytest.mark.parametrize("key", ["observation", "next/observation"])
def test_an_observation_of_another_form_than_its_successor(tmp_path, form, key):
    """An episode that goes on in the next batch: the two were compared all the same, and torch refused."""
    make_input(tmp_path)
    path = tuple(key.split("/"))

    def fn(td):
        return td.set(path, form(td[path]))

    made = run(tmp_path, fn, batch_size=7)
    check_equal(made, applied(Dataset(tmp_path / "my" / "input"), fn, "batch", 7))
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
