"""Which runs are the same: text is its files and arguments, an object what the user says. And functions that keep state."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from preprocess_tools import double_rewards, make_input, run
from rbdata.errors import DatasetExistsError, FunctionError
from rbdata.preprocess.functions import find_builtin
from rbdata.preprocess.request import Listener, PreprocessRequest, make_requests
from rbdata.preprocess.run import preprocess
from rbdata.storage.dataset import Dataset


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with an input, and a function that reads a number from a helper."""
    monkeypatch.chdir(tmp_path)
    make_input(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from helper import gain\n\n\ndef fn(td, shift=0):\n"
        "    td['next', 'reward'] = td['next', 'reward'] * gain + shift\n    return td\n"
    )
    (tmp_path / "helper.py").write_text("gain = 2\n")
    (tmp_path / "unrelated.py").write_text("x = 1\n")
    return tmp_path


def action(root, fn="mine.py:fn", **options):
    options.setdefault("procs", 0)
    (request,) = make_requests("my/input", [fn], "my/output", root=root, **options)
    return preprocess(request).action


class TestText:
    def test_the_same_again_is_complete(self, here):
        assert action(here) == "written"
        assert action(here) == "complete"
        assert action(here, procs=2) == "complete"

    def test_a_comment_in_an_unrelated_file_is_nothing(self, here):
        action(here)
        (here / "unrelated.py").write_text("x = 1  # one\n")
        assert action(here) == "complete"

    @pytest.mark.parametrize("name", ["mine.py", "helper.py"])
    def test_an_edited_file_is_another_request(self, here, name):
        action(here)
        (here / name).write_text((here / name).read_text().replace("gain", "gain ", 1).replace("= 2", "= 30"))
        with pytest.raises(DatasetExistsError, match=rf"another request \(differs in functions, {name}\)"):
            action(here)
        assert action(here, force=True) == "written"
        factor = 30 if name == "helper.py" else 2
        made, before = Dataset(here / "my/output"), Dataset(here / "my/input")
        assert torch.equal(made["next/reward"], before["next/reward"] * factor)

    def test_arguments_are_part_of_it(self, here):
        action(here, args={"shift": 1})
        assert action(here, args={"shift": 1}) == "complete"
        for args in ({"shift": 2}, {}):
            with pytest.raises(DatasetExistsError, match="differs in args"):
                action(here, args=args)

    def test_an_interrupted_run_is_not_continued_with_another_file(self, here):
        def stop(index):
            raise KeyboardInterrupt

        request = PreprocessRequest("my/input", ["mine.py:fn"], "my/output", root=here, procs=0)
        with pytest.raises(KeyboardInterrupt):
            preprocess(request, Listener(on_part_done=stop))
        (here / "helper.py").write_text("gain = 30\n")
        with pytest.raises(DatasetExistsError, match="unfinished my/output exists, started with other"):
            preprocess(request)

    def test_the_lineage_has_the_files(self, here):
        made = run(here, "mine.py:fn", args={"shift": 1})
        (fn,) = made.manifest.lineage["functions"]
        assert (fn["function"], fn["args"], [*fn["files"]]) == ("mine.py:fn", {"shift": 1}, ["mine.py", "helper.py"])


class TestObjects:
    def test_an_object_has_no_identity(self, here):
        assert action(here, double_rewards) == "written"
        with pytest.raises(DatasetExistsError, match="nothing tells whether these functions made it") as raised:
            action(here, double_rewards)
        assert "force=True" in raised.value.hint and "version=" in raised.value.hint
        assert action(here, double_rewards, force=True) == "written"
        assert "fingerprint" not in Dataset(here / "my/output").manifest.lineage

    def test_a_version_is_the_users_word(self, here):
        assert action(here, double_rewards, version="1") == "written"
        assert action(here, double_rewards, version="1") == "complete"
        with pytest.raises(DatasetExistsError, match="differs in version"):
            action(here, double_rewards, version="2")
        with pytest.raises(DatasetExistsError, match="nothing tells"):
            action(here, double_rewards)

    def test_an_argument_that_is_an_object(self, here):
        args = {"shift": np.float32(1)}
        action(here, args=args)
        with pytest.raises(DatasetExistsError, match="nothing tells"):
            action(here, args=args)

    @pytest.mark.parametrize("version", [None, "1"])
    def test_an_interrupted_run_is_continued_with_a_version_alone(self, here, version):
        def stop(index):
            raise KeyboardInterrupt

        request = PreprocessRequest("my/input", [double_rewards], "my/output", root=here, procs=0, version=version)
        with pytest.raises(KeyboardInterrupt):
            preprocess(request, Listener(on_part_done=stop))
        seen = []
        assert preprocess(request, Listener(on_estimate=seen.append)).action == "written"
        assert seen[0].done_parts == (0 if version is None else 1)

    def test_built_in_functions_have_names(self, here):
        scale = find_builtin("scale_rewards")
        assert action(here, scale, args={"scale": 2}) == "written"
        assert action(here, "rbdata:scale_rewards", args={"scale": 2}) == "complete"
        with pytest.raises(DatasetExistsError, match="another request"):
            action(here, scale, args={"scale": 3})


def counter():
    calls = []

    def fn(td):
        calls.append(1)
        return td.set("x", torch.full(td.batch_size, len(calls)))

    return fn


def own_generator(generator, draw):
    return lambda td: td.set("x", torch.as_tensor(draw(generator)).expand(td.batch_size).clone())


def reused():
    rows = torch.zeros(1000, 4)

    def fn(td):
        rows[: len(td)] += td["observation"]
        return td.set("observation", rows[: len(td)])

    return fn


KEEP_STATE = {
    "counter": counter,
    "numpy": lambda: own_generator(np.random.default_rng(0), lambda one: one.normal()),
    "buffer": reused,
}


class TestCalledAgain:
    """The first steps are tried twice."""

    @pytest.mark.parametrize(("kind", "per"), [*((kind, "batch") for kind in KEEP_STATE), ("counter", "episode")])
    def test_functions_that_keep_state(self, here, kind, per):
        with pytest.raises(
            FunctionError, match="returned something else when it was called again, for steps 0"
        ) as raised:
            action(here, KEEP_STATE[kind](), per=per)
        assert "generator" in raised.value.hint
        assert not (here / "my/output").exists()

    def test_in_a_dry_run(self, here):
        with pytest.raises(FunctionError, match="called again"):
            action(here, counter(), dry_run=True)

    def test_random_numbers_that_are_seeded(self, here):
        def noisy(td, generator):
            td["a"] = torch.rand(len(td), generator=generator)
            td["b"] = torch.rand(len(td))
            td["c"] = torch.from_numpy(np.random.rand(len(td)))
            return td.set("d", torch.full((len(td),), random.random()))

        made = run(here, noisy, batch_size=20)
        assert all(len(made[name].unique()) == len(made) for name in "abc")
        assert len(made["d"].unique()) == -(-len(made) // 20)
        again = run(here, noisy, dest="my/again", batch_size=20)
        assert all(torch.equal(made[name], again[name]) for name in "abcd")

    def test_before_anything_is_made(self, here):
        """Nothing of a run that ends there is left, and no part is begun."""
        seen = []
        request = PreprocessRequest("my/input", [counter()], "my/output", root=here, procs=0)
        with pytest.raises(FunctionError, match="called again"):
            preprocess(request, Listener(on_estimate=seen.append))
        assert seen == [] and [path.name for path in (here / "my").iterdir()] == ["input"]
