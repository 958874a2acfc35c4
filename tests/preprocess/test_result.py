"""What functions return: what is refused, and what is accepted although it looks suspicious."""

from __future__ import annotations

import functools

import pytest
import torch
from preprocess_tools import fails, run
from rbdata.errors import FunctionError, SchemaError
from rbdata.preprocess.functions import find_builtin
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify


def raises(td):
    if len(td) != 7:  # the last batch
        raise ValueError("something\nwent wrong")
    return td


class TestResults:
    def test_raises(self, shared, workers):
        told = "raised ValueError: something went wrong"
        error = fails(shared, raises, FunctionError, told, batch_size=7, open_engine=workers)
        last = len(Dataset(shared / "my" / "input"))
        assert f"steps {last // 7 * 7}..{last - 1}" in str(error)
        assert "my/input" in str(error)
        lines = error.detail.splitlines()
        assert lines[0].startswith("Traceback")
        assert [line for line in lines if line.startswith("  File")] == [lines[1]]  # theirs, and nothing of ours
        assert "in raises" in lines[1]

    @pytest.mark.parametrize(
        ("fn", "match"),
        [
            (lambda td: None, "returned a NoneType instead of a TensorDict"),
            (lambda td: {"observation": 1}, r"returned a dict instead of a TensorDict of batch size \[\d+\]"),
            (lambda td: td[:-1], r"batch size \[\d+\] instead of a TensorDict of batch size \[\d+\]"),
            (lambda td: td.reshape(-1, 1).squeeze(0)[:0], "instead of"),
            (lambda td: td.set("x", torch.zeros(len(td), dtype=torch.bfloat16)), "'x' with dtype bfloat16"),
            (lambda td: td.set("x", torch.zeros(len(td), dtype=torch.complex64)), "'x' with dtype complex64"),
            (lambda td: td.set("x", torch.zeros(len(td), device="meta")), "'x' on the device meta"),
            (lambda td: td.set("x", torch.zeros(len(td), 0)), "'x' with an empty row"),
            (lambda td: td.set("mask", torch.zeros(len(td))), "reserved"),
            (lambda td: td.set("a b", torch.zeros(len(td))), "letters, digits and underscores"),
            (lambda td: td.set("a/b", torch.zeros(len(td))), "key that cannot be stored"),
            (lambda td: td.set_non_tensor("name", "text"), "'name' as a"),
            (lambda td: td.set("reward", torch.zeros(len(td), 1)), "reward at the root"),
            (lambda td: td.set(("next", "reward"), td["next", "reward"].double()), "float64"),
            (lambda td: td.set(("next", "reward"), td["next", "reward"].squeeze(1)), r"float32 \[\d+\]"),
            (lambda td: td.set(("next", "reward"), td["next", "reward"] / 0), "a reward that is"),
            (lambda td: td.set("done", ~td["done"]), "set 'done' at the root"),
            (lambda td: td.set(("next", "done"), ~td["next", "done"]), "not terminated | truncated"),
        ],
    )
    def test_cannot_be_stored(self, shared, fn, match):
        error = fails(shared, fn, SchemaError, match)
        assert "steps 0.." in str(error)
        assert "my/input" in str(error)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda td: td.set("x", torch.zeros(len(td))), "with a new key 'x', .* expected .*; it has .* x"),
            (lambda td: td.exclude("action"), "without 'action'"),
            (lambda td: td.set("action", td["action"].float()), "'action' as float32 .* before as int64"),
            (lambda td: td.set("action", td["action"][:, None]), r"'action' as int64 \[1\], and before as int64 \[\]"),
        ],
    )
    def test_must_be_like_the_first(self, shared, change, match):
        """The first two batches look alike; the chunk that they are in is told apart by its rows."""
        calls = []

        def fn(td):
            calls.append(1)
            return change(td) if len(calls) > 3 else td

        error = fails(shared, fn, SchemaError, match, batch_size=50, procs=0)
        assert "steps" in str(error)

    def test_samples_must_be_alike(self, shared):
        def fn(td):
            return td.set("x", torch.zeros(2 if td["next", "done"] else 1))

        fails(shared, fn, SchemaError, r"'x' as float32 \[2\], and before as float32 \[1\]", per="sample")
        fails(shared, lambda td: td.unsqueeze(0), SchemaError, "instead of one step", per="sample")

    def test_episodes_without_steps(self, shared):
        fails(shared, lambda td: td[:0], SchemaError, "at least one step", per="episode")
        fails(shared, lambda td: None, SchemaError, "dropped every episode", per="episode")
        chain = [lambda td: None, find_builtin("returns_to_go")]
        fails(shared, chain, SchemaError, "<lambda>, .*returns_to_go dropped every episode", per="episode")
        shorter = lambda td: td[:1].exclude(("next", "reward"))  # noqa: E731
        fails(shared, shorter, SchemaError, r"without 'next/reward'", per="episode")

    def test_a_successor_that_breaks_later(self, shared):
        """Stored once for each state, as the first result allows; then it turns out that this is not the whole truth."""

        def fn(td):
            if len(td) != 100:  # the last batch
                td["next", "observation"] = td["next", "observation"] + 1
            return td

        error = fails(shared, fn, SchemaError, "'next/observation' other than", source="my/frames", batch_size=100)
        assert "--layout ted" in error.hint


class TestNotANuisance:
    """What looks suspicious and is all right, or is only told."""

    def test_views_of_the_input(self, shared):
        dataset = run(shared, lambda td: td.set("again", td["observation"][:, :2]), dest="my/views", force=True)
        assert torch.equal(dataset["again"], Dataset(shared / "my" / "input")["observation"][:, :2])

    def test_nans_are_counted(self, shared):
        def fn(td):
            td["observation"][::10, 0] = torch.nan
            return td

        dataset = run(shared, fn, dest="my/nans", batch_size=100, force=True)
        rows = sum(-(-min(100, len(dataset) - low) // 10) for low in range(0, len(dataset), 100))
        assert dataset.manifest.counts["nans"] == {"observation": rows}
        assert f"NaN values that were not in the input: {rows} in observation" in dataset.manifest.notes[-1]
        again = run(shared, lambda td: td, source="my/nans", dest="my/nans2", force=True)
        assert again.manifest.counts["nans"] == {}  # those were there before

    def test_dropped_bookkeeping_is_taken_over(self, shared):
        dataset = run(shared, lambda td: td.select("observation"), dest="my/selected", force=True)
        before = Dataset(shared / "my" / "input")
        assert torch.equal(dataset["next/reward"], before["next/reward"])
        assert verify(dataset.path).ok

    def test_callables_of_all_kinds(self, shared):
        class Scale:
            def __init__(self, factor):
                self.factor = factor

            def __call__(self, td):
                return td.set(("next", "reward"), td["next", "reward"] * self.factor)

            def method(self, td):
                return self(td)

        wanted = Dataset(shared / "my" / "input")["next/reward"] * 2
        kinds = [
            Scale(2),
            Scale(2).method,
            functools.partial(lambda td, by: td.set(("next", "reward"), td["next", "reward"] * by), by=2),
            torch.nn.Identity(),
        ]
        for number, fn in enumerate(kinds):
            dataset = run(shared, fn, dest=f"my/kind{number}", force=True)
            expected = wanted if number < 3 else wanted / 2
            assert torch.equal(dataset["next/reward"], expected)
