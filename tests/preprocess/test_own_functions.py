"""What users' functions do in ways that nobody planned: what they do to each batch is what is stored, or there is an error."""

from __future__ import annotations

import decimal
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import rbdata
import torch
from preprocess_tools import fails, make_input, run
from rbdata.datasets.user_code_old.process_state import pickled_by_value
from rbdata.errors import DatasetExistsError, FunctionError, ResultError, UsageError
from rbdata.preprocess.functions import find_builtin
from rbdata.storage.dataset import Dataset
from tensordict import LazyStackedTensorDict, MemoryMappedTensor, TensorDict

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


@pytest.mark.parametrize("per", ["batch", "sample", "episode"])
@pytest.mark.parametrize("make", ODD)
def test_results_are_what_the_function_returned(shared, per, make):
    dataset = run(shared, make(), dest="my/odd", per=per, batch_size=50, force=True)
    check_equal(dataset, applied(Dataset(shared / "my/input"), make(), per, 50))


def add_one(td):
    """In place, as the documents allow."""
    for key in ("observation", "a"):
        if key in td.keys():  # noqa: SIM118
            td[key] += 1
    return td


@pytest.mark.parametrize("per", ["batch", "sample", "episode"])
@pytest.mark.parametrize("make", ODD)
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


# -- state ------------------------------------------------------------------------------------------------------------------

COUNTER = """
count = 0
def first(td):
    global count
    count += 1
    return td if count <= 20 else None
def reward(td):
    global count
    count += 1
    return td["next", "reward"] * 0 + count
"""


class FirstOnes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, td):
        self.count += 1
        return td if self.count <= 20 else None


def first_ones():
    counts = []

    def fn(td):
        counts.append(1)
        return td if len(counts) <= 20 else None

    return fn


count = 0


def first_of_module(td):
    global count
    count += 1
    return td if count <= 20 else None


@pytest.fixture
def counter(tmp_path, monkeypatch):
    (tmp_path / "counter_file.py").write_text(COUNTER)
    (tmp_path / "counter_module.py").write_text(COUNTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("counter_module", None)


UNSET = object()


def loss(x):
    return x


def compares(td, mark, fn, one, other):
    assert mark is UNSET and fn is loss and one is other
    return td.set("y", td["action"])


class TestState:
    """A trial is not a call that counts. (Two processes count apart: see the documents.)"""

    @pytest.mark.parametrize("form", ["file", "module", "imported", "object", "closure", "here"])
    def test_counters_begin_with_the_data(self, shared, counter, form):
        fn: Any = {"file": "counter_file.py:first", "module": "counter_module:first", "here": first_of_module}.get(form)
        if form == "imported":
            fn = import_module("counter_module").first
        fn = fn or (FirstOnes() if form == "object" else first_ones())
        source = Dataset(shared / "my/input")
        for number in range(2):  # the second run of a session begins like the first one
            dataset = run(shared, fn, dest=f"my/{form}{number}", per="episode", force=True)
            assert dataset.episodes.length.tolist() == source.episodes.length[:20].tolist()
        rbdata.preprocess(shared / "my/input", [fn, "rbdata:filter_episodes"], dest="my/fit", root=shared, procs=1,
                          per="episode", args={"min_quantile": 0.0}, force=True)  # fmt: skip
        assert Dataset(shared / "my/fit").manifest.episodes == 20

    @pytest.mark.parametrize("form", ["counter_file.py:reward", "object"])
    def test_a_reward_function(self, shared, counter, form):
        class Count:
            n = 0

            def __call__(self, td):
                self.n += 1
                return td["next", "reward"] * 0 + self.n

        fn = Count() if form == "object" else form
        dataset = run(shared, "rbdata:relabel_rewards", dest="my/counted", args={"fn": fn}, force=True)
        assert dataset["next/reward"].unique().tolist() == list(range(1, 41))

    @pytest.mark.parametrize("processes", [1, 2])
    @pytest.mark.parametrize("form", ["here", "module", "partial"])
    def test_arguments_that_are_objects_of_the_function(self, shared, workers, tmp_path, monkeypatch, form, processes):
        """A marker, a function and an array are what the function and another argument know them as."""
        module = sys.modules[__name__]
        if form == "module":
            source = "UNSET = object()\ndef loss(x):\n    return x\ndef compares(td, mark, fn, one, other):\n"
            source += "    assert mark is UNSET and fn is loss and one is other\n    return td.set('y', td['action'])\n"
            (tmp_path / "compares.py").write_text(source)
            monkeypatch.syspath_prepend(tmp_path)
            monkeypatch.delitem(sys.modules, "compares", raising=False)
            module = import_module("compares")
        array = np.zeros(3)
        args = {"mark": module.UNSET, "fn": module.loss, "one": array, "other": array}
        fn: Any = partial(compares, **args) if form == "partial" else module.compares
        engine = {"open_engine": workers} if processes == 2 else {}
        kept = args if form != "partial" else {}
        assert len(run(shared, fn, dest="my/compared", args=kept, force=True, **engine)["y"])
        if form != "partial":
            fails(shared, fn, FunctionError, "AssertionError", args={**args, "mark": object()})
            fails(shared, f"{__file__}:compares", UsageError, r"argument mark .* is an object\(\)", args=args)

    @pytest.mark.parametrize("processes", [1, 2])
    def test_settings_of_the_program(self, shared, workers, processes):
        """Functions find torch's default dtype and the decimal context of the caller in every process."""

        def fn(td):
            digits = len(str(decimal.Decimal(1) / 3))
            return td.set("y", torch.full((len(td),), 8 * torch.tensor([1.0]).element_size() + digits))

        engine = {"open_engine": workers} if processes == 2 else {}
        torch.set_default_dtype(torch.float64)
        try:
            with decimal.localcontext(decimal.Context(prec=7)):
                made = run(shared, fn, dest=f"my/settings{processes}", **engine)
                assert made["y"].unique().tolist() == [64 + 9]
                assert torch.get_default_dtype() == torch.float64 and decimal.getcontext().prec == 7
                run(shared, fn, dest=f"my/settings{processes}", **engine)  # is there already
        finally:
            torch.set_default_dtype(torch.float32)
        with pytest.raises(DatasetExistsError, match="settings of torch or decimal"):
            run(shared, fn, dest=f"my/settings{processes}", **engine)
        made = run(shared, fn, dest=f"my/settings{processes}", force=True, **engine)
        assert made["y"].unique().tolist() == [32 + 30]

    @pytest.mark.parametrize("processes", [1, 2])
    def test_flushed_denormals(self, shared, workers, processes):
        """Of this process alone; a function that flushes them itself does not change the next call."""
        denormal = torch.tensor(1e-40)

        def fn(td):
            td["y"] = (denormal * 1.5).expand(len(td)).clone()
            torch.set_flush_denormal(not flushed)
            return td

        engine = {"open_engine": workers} if processes == 2 else {}
        flushed = torch.set_flush_denormal(True)
        try:
            assert not run(shared, fn, dest=f"my/flushed{processes}", **engine)["y"].any()
            run(shared, fn, dest=f"my/flushed{processes}", **engine)
            assert not (denormal * 1.5).any()
        finally:
            torch.set_flush_denormal(False)
        flushed = False
        assert run(shared, fn, dest=f"my/kept{processes}", **engine)["y"].all()
        assert (denormal * 1.5).all()

    def test_settings_that_importing_it_changes(self, shared, workers, tmp_path):
        """They count in every process; workers undid them."""
        (tmp_path / "doubles.py").write_text(
            "import torch\ntorch.set_default_dtype(torch.float64)\n"
            "def fn(td):\n    return td.set('y', torch.full((len(td),), 0.1))\n"
        )
        try:
            for processes in (2, 1):
                engine = {"open_engine": workers} if processes == 2 else {}
                made = run(shared, f"{tmp_path}/doubles.py:fn", dest=f"my/doubles{processes}", **engine)
                assert made["y"].dtype is torch.float64
                assert made.manifest.lineage["process"] == {"dtype": "float64"}
        finally:
            torch.set_default_dtype(torch.float32)

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

        options = {"per": "episode", "read_options": ReadOptions(slice_len=3), "procs": 1, "force": True}
        dataset = run(shared, numbered, dest="my/slices", **options)
        assert torch.equal(dataset["n"], source.episode_of(torch.arange(len(source))))
        assert set(dataset.episodes.start.tolist()) >= set(steps)

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


# -- what functions do to the process -----------------------------------------------------------------------------------------


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

    def test_the_process_is_not_ended(self, shared):
        stops(shared, lambda td: os._exit(0), r"raised SystemExit: os._exit\(0\)")

    def test_keyboard_interrupt_of_code(self, shared, workers):
        stops(shared, leave(KeyboardInterrupt), "raised KeyboardInterrupt", batch_size=7, open_engine=workers)

    def test_errors_of_a_users_class(self, shared, workers):
        class Mine(rbdata.errors.UsageError):
            def __init__(self, one, two):
                super().__init__(f"{one} {two}")

        class Mute(Exception):
            def __str__(self):
                raise ValueError

        stops(shared, leave(lambda: Mine("a", "b")), "raised Mine: a b", batch_size=7, open_engine=workers)
        stops(shared, leave(Mute), "raised Mute", batch_size=7)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    @pytest.mark.parametrize("separate", [False, True])
    def test_a_fork_that_returns(self, shared, workers, separate):
        """The child does not do the work a second time, whether it returns or raises."""

        def fn(td):
            child = os.fork()
            if child:
                os.waitpid(child, 0)
            elif len(td) % 2:
                sys.exit(0)
            else:
                td["next", "reward"] += 100
            return td

        engine = workers if separate else None
        dataset = run(shared, fn, dest="my/forked", open_engine=engine, batch_size=7, force=True)
        assert torch.equal(dataset["next/reward"], Dataset(shared / "my/input")["next/reward"])

    def test_settings_of_the_process(self, shared, tmp_path):
        """They do not reach later calls, what rbdata computes, or the caller."""
        import signal
        import warnings

        def fn(td):
            assert torch.tensor(1.0).dtype == torch.float32
            td["x"] = torch.ones(len(td), device="cpu")
            torch.set_default_dtype(torch.float64)
            torch.set_default_device("meta")
            torch.set_grad_enabled(True)
            torch.set_num_threads(3)
            np.seterr(all="raise")
            warnings.simplefilter("error")
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.chdir(tmp_path)
            sys.stdout = None
            return td

        def state():
            return (
                *(
                    torch.get_default_dtype(),
                    torch.get_default_device(),
                    torch.is_grad_enabled(),
                    torch.get_num_threads(),
                ),
                *(np.geterr(), warnings.filters[:], signal.getsignal(signal.SIGINT), Path.cwd(), sys.stdout),
            )

        before = state()
        for per in ("batch", "episode"):
            dataset = run(
                shared, [fn, "rbdata:returns_to_go"], dest=f"my/set-{per}", per=None if per == "batch" else per
            )
            assert torch.equal(dataset["observation"], Dataset(shared / "my/input")["observation"])
        assert state() == before

    def test_later_results_of_another_kind(self, shared):
        """Of single steps in one batch: torch.stack would convert them."""

        def fn(td):
            return td.set("x", torch.tensor(1.5) if td["next", "done"] else torch.tensor(1))

        fails(shared, fn, ResultError, "different shapes or dtypes", per="sample")


# -- partials and wrappers of built-in functions ------------------------------------------------------------------------------


class TestBuiltIn:
    @pytest.mark.parametrize(
        ("function", "args"),
        [
            (returns_to_go, {"gamma": 0.9}),
            (filter_episodes, {"min_length": 5}),
            (filter_episodes, {"min_quantile": 0.5}),
            (relabel_rewards, {"rule": "return_range"}),
            (to_float, {"dtype": "float64"}),
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


@pytest.mark.parametrize("seed", range(12))
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
    for name in ("start", "length", "outcome", "midway"):
        assert getattr(dataset.episodes, name).tolist() == getattr(expected.episodes, name).tolist(), (name, chain)


@pytest.mark.parametrize(
    "chain",
    [
        [returns_to_go],
        [partial(filter_episodes, min_length=3)],
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


def test_successors_that_differ_in_the_sign_of_zero(tmp_path):
    """They are stored as they were returned."""
    path = make_input(tmp_path)
    zeros = run(tmp_path, lambda td: td.set("observation", td["observation"] * 0).set(
        ("next", "observation"), td["next", "observation"] * -0.0), dest="my/zeros")  # fmt: skip
    assert (
        path and not torch.signbit(zeros["observation"]).logical_xor(torch.signbit(Dataset(path)["observation"])).any()
    )
    back = zeros["next/observation"]
    assert torch.signbit(back).logical_xor(torch.signbit(Dataset(path)["next/observation"])).all()


def test_modules_with_a_class_of_their_own(shared):
    """`rbdata.preprocess` and its `functions` are such modules."""
    package: Any = rbdata.preprocess
    functions = package.functions
    for number, fn in enumerate(
        (lambda td: functions.clip_rewards(td, high=0.5), lambda td: package.functions.clip_rewards(td, high=0.5))
    ):
        assert run(shared, fn, dest=f"my/modules{number}")["next/reward"].max() <= 0.5


def test_several_functions_of_another_module_as_arguments(shared, tmp_path, monkeypatch):
    (tmp_path / "two_functions.py").write_text("def one(x):\n    return x * 2\ndef other(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("two_functions")

    def fn(td, one, other):
        return td.set(("next", "reward"), other(one(td["next", "reward"])))

    made = run(shared, fn, dest="my/two", args={"one": module.one, "other": module.other})
    assert torch.equal(made["next/reward"], Dataset(shared / "my/input")["next/reward"] * 2 + 1)


# -- functions given as text, and what the program has set ---------------------------------------------------------------


@pytest.mark.parametrize("procs", [1, 2])
@pytest.mark.parametrize("which", ["own_k", "helper_k"])
def test_text_whose_variables_the_program_has_set(shared, tmp_path, monkeypatch, procs, which):
    """Workers would find those of the files."""
    monkeypatch.syspath_prepend(tmp_path)
    helper, module = f"{which}_helper{procs}", f"{which}_main{procs}"
    (tmp_path / f"{helper}.py").write_text("K = 2\n")
    source = f"import {helper}\nK = 2\ndef fn(td):\n    td['next', 'reward'] *= K * {helper}.K\n    return td\n"
    (tmp_path / f"{module}.py").write_text(source)
    options: dict[str, Any] = {"procs": procs, "folder": tmp_path}
    changed = import_module(module if which == "own_k" else helper)
    run(shared, f"{module}:fn", dest=f"set/{which}{procs}", **options)
    vars(changed)["K"] = 5
    fails(shared, f"{module}:fn", UsageError, "has set to something else than its file", **options)
    assert sys.modules[changed.__name__] is changed


@pytest.mark.parametrize("argument", ["fn", "relabel_rewards.fn"])
def test_text_in_an_argument_whose_variables_the_program_has_set(argument, shared, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = f"set_reward_of_{argument.replace('.', '_')}"
    (tmp_path / f"{module}.py").write_text("K = 2\ndef reward(td):\n    return td['next', 'reward'] * K\n")
    options: dict[str, Any] = {"procs": 1, "folder": tmp_path, "args": {argument: f"{module}:reward"}}
    vars(import_module(module))["K"] = 5
    fails(shared, "rbdata:relabel_rewards", UsageError, "has set to something else than its file", **options)


def test_a_default_device_is_refused(shared):
    torch.set_default_device("meta")
    try:
        fails(shared, to_float, UsageError, "the default device of torch is meta")
    finally:
        torch.set_default_device(None)


class Scales:
    """Its pickle leaves out its scale."""

    scale = 1.0

    def __init__(self, scale):
        self.scale = scale

    def __getstate__(self):
        return {}

    def __call__(self, td):
        return td.set("y", td["observation"] * self.scale)


class Opens(Scales):
    """Its pickle leaves out what each process makes again."""

    table = None

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "table"}

    def __call__(self, td):
        if self.table is None:
            self.table = torch.tensor(self.scale)
        return td.set("y", td["observation"] * self.table)


def test_an_object_whose_pickle_leaves_out_what_it_reads(shared):
    """Copies of it were called, which had the scale of the class."""
    scales = Scales(3.0)
    for fn in (scales, partial(scales), lambda td: scales(td), scales.__call__):
        fails(shared, fn, UsageError, "the class Scales has a pickle of its own, which changes its attribute scale")
    fails(shared, lambda td, by: by(td), UsageError, "attribute scale", args={"by": scales})
    run(shared, Scales(1.0), dest="my/scaled")
    opens = Opens(3.0)
    opens(TensorDict({"observation": torch.ones(2)}, [2]))
    observation = Dataset(shared / "my/input")["observation"]
    assert torch.equal(run(shared, opens, dest="my/opened")["y"], observation * 3)


def test_modules_pickled_by_value_in_several_threads():
    """cloudpickle keeps their names for the process: each thread took back what another needed."""
    module = sys.modules[__name__]

    def is_there(number: int) -> bool:
        with pickled_by_value([module]):
            time.sleep(0.001)
            return module.__name__ in cloudpickle.list_registry_pickle_by_value()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_there, range(40)))
    assert module.__name__ not in cloudpickle.list_registry_pickle_by_value()


def test_runs_in_several_threads(shared):
    """The global generators are the process's: each thread drew from what the others had seeded."""

    def noise(td):
        first = torch.randn(len(td)) + float(np.random.rand())
        time.sleep(0.01)
        td["noise"] = first + torch.randn(len(td)) + float(np.random.rand())
        return td

    expected = run(shared, noise, dest="set/alone", batch_size=8)["noise"]
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(run, shared, noise, dest=f"set/beside{number}", batch_size=8) for number in range(3)]
    assert all(torch.equal(one.result()["noise"], expected) for one in made)


def test_autocast_is_refused(shared):
    """Functions of this process alone would compute in bfloat16, and the same request outside would be taken for complete."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fails(shared, to_float, UsageError, "torch.autocast is on")


def test_a_table_that_the_program_fills_later(shared, tmp_path, monkeypatch):
    """It is hashed as it is at the time of the request; a container that the function changes is a cache."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "later_table.py").write_text("T, CACHE = {}, {}\ndef fill(value):\n    T['k'] = value\n")
    (tmp_path / "later_use.py").write_text(
        "import later_table\ndef fn(td):\n    later_table.CACHE[len(later_table.CACHE)] = 1\n"
        "    td['next', 'reward'] *= later_table.T.get('k', 1)\n    return td\n"
    )
    fn = import_module("later_use").fn
    before = run(shared, fn, dest="set/table")
    assert run(shared, fn, dest="set/table").path == before.path
    import_module("later_table").fill(7)
    with pytest.raises(DatasetExistsError):
        run(shared, fn, dest="set/table")


def test_a_module_imported_by_a_function_that_is_edited(shared, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "later_import.py").write_text("K = 2\n")

    def fn(td):
        import importlib

        td["next", "reward"] *= importlib.import_module("later_import").K
        return td

    run(shared, fn, dest="set/import")
    (tmp_path / "later_import.py").write_text("K = 3  # another one\n")
    with pytest.raises((UsageError, DatasetExistsError), match=r"edited|another request"):
        run(shared, fn, dest="set/import")
    del sys.modules["later_import"]  # this file imports it


def test_the_hash_of_a_file_is_that_of_what_runs(shared, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = "K = {}\ndef fn(td):\n    td['next', 'reward'] *= K\n    return td\n"
    (tmp_path / "later_edit.py").write_text(source.format(2))
    fn = import_module("later_edit").fn
    (tmp_path / "later_edit.py").write_text(source.format(3))
    (function,) = run(shared, fn, dest="set/edit").manifest.lineage["functions"]
    assert function["file_sha256"] is None


GLOBAL = 2.0


def test_globals_that_workers_would_not_get(shared):
    def calls(td):
        td["next", "reward"] *= globals()["GLOBAL"]
        return td

    def in_class(td):
        class Local:
            value = GLOBAL

        td["next", "reward"] *= Local.value
        return td

    fails(shared, calls, UsageError, r"calls globals\(\)")
    fails(shared, in_class, UsageError, "reads GLOBAL in the body of a class")


def test_an_argument_named_statistics(shared):
    def fn(td, statistics):
        td["next", "reward"] = td["next", "reward"] * 0 + statistics
        return td

    out = run(shared, fn, dest="set/statistics", args={"statistics": 3.0})
    assert (out.to_tensordict()["next", "reward"] == 3).all()


def test_memory_mapped_tensors_are_copied_with_a_function(shared, tmp_path):
    """They would be pickled as the names of their files: calls would change them, and writes of others the calls."""
    scale = MemoryMappedTensor.from_tensor(torch.ones(1), filename=tmp_path / "scale.memmap")
    stored = TensorDict({"shift": torch.zeros(1)}, []).memmap(tmp_path / "shift")

    def fn(td):
        td["next", "reward"] = td["next", "reward"] * 0 + scale + stored["shift"]
        scale.add_(1)
        stored["shift"].add_(1)
        return td

    rewards = run(shared, fn, dest="set/mapped", batch_size=10_000).to_tensordict()["next", "reward"]
    assert (rewards == 1).all() and float(scale) == 1 and float(stored["shift"]) == 0


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


@pytest.mark.parametrize("layout", ["steps", "states"])
@pytest.mark.parametrize(
    ("fn", "left"),
    [
        (late_action, {"observation"}),
        (late_observation, {"action"}),
        (differences, {"action"}),  # the space of a leaf is also that of its successor
        (next_action, {"observation"}),
        ([late_action, new_keys], set()),
        (lambda td: td, {"observation", "action"}),
        ((), {"observation", "action"}),
        ("rbdata:clip_rewards", {"observation", "action"}),
    ],
)
def test_a_space_is_kept_where_no_batch_changes_the_leaf(tmp_path, monkeypatch, layout, fn, left):
    """Not only the first batch, whose values the function leaves."""
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path))

    class Frames(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 200, (40, 40), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 0.0, False, False, {}

    env = "CartPole-v1" if layout == "steps" else Frames()
    recorded = rbdata.record(env, steps=200, name="spaces")
    made = Dataset(rbdata.preprocess(recorded, fn, dest="my/made", batch_size=16, procs=1))
    assert set(made.manifest.spaces) == left
    assert set(Dataset(recorded).manifest.spaces) == {"observation", "action"}


def test_a_space_is_not_kept_where_a_later_batch_changes_the_successor(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path))
    recorded = rbdata.record("CartPole-v1", steps=200)
    made = Dataset(rbdata.preprocess(recorded, late_successor, dest="my/made", batch_size=16, procs=1))
    assert set(made.manifest.spaces) == {"action"}


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

    source = Dataset(tmp_path / "my" / "input")
    for per in ("batch", "episode"):
        made = run(tmp_path, fn, dest=f"my/{per}", batch_size=7, per=per)
        check_equal(made, applied(source, fn, per, 7))
        assert made.manifest.lineage["unchained"] == ["observation"]


def test_a_successor_that_any_function_of_a_chain_may_have_changed(tmp_path):
    """The message named the last one."""
    make_input(tmp_path, "zstd")

    def late(td, step):
        td["next", "observation"][step >= 64] = 7
        return td

    def same(td):
        return td

    fails(tmp_path, [late, same], ResultError, r"late, .*same made 'next/observation' other than", batch_size=16)
