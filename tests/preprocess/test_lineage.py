"""The lineage of a dataset."""

from __future__ import annotations

import json

from preprocess_tools import make_input, run
from rbdata.cli import run as command
from rbdata.storage.manifest import read_manifest


class TestLineage:
    def test_is_complete(self, inputs, capsys):
        source = read_manifest(inputs / "my" / "flat")
        dataset = run(
            inputs, "rbdata:scale_rewards", source="my/flat", dest="my/scaled", args={"scale": 2}, seed=7, force=True
        )
        lineage = dataset.manifest.lineage
        assert lineage["input"]["id"] == "my/flat"
        assert lineage["input"]["steps"] == source.steps
        (fn,) = lineage["functions"]
        assert fn["function"] == "rbdata:scale_rewards"
        assert fn["args"] == {"scale": 2}
        assert "files" not in fn  # of a built-in function, the version of rbdata counts
        assert (lineage["per"], lineage["seed"]) == ("batch", 7)
        assert {"rbdata", "torch", "tensordict", "python"} <= set(lineage["versions"])
        assert lineage["leaves"] == {"added": [], "dropped": [], "changed": ["next/reward"]}
        assert command(["inspect", "my/scaled", "--root", str(inputs)]) == 0
        told = capsys.readouterr().out
        assert "made from  my/flat" in told
        assert "rbdata:scale_rewards(scale=2)" in told
        assert command(["inspect", "my/scaled", "--root", str(inputs), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["lineage"] == lineage

    def test_a_leaf_that_changes_in_a_later_batch(self, tmp_path):
        make_input(tmp_path)

        def late(td, step):
            td["action"][step >= 100] += 1
            return td

        changed = run(tmp_path, late, batch_size=16).manifest.lineage["leaves"]["changed"]
        assert changed == ["action"]

    def test_leaves_of_episodes(self, tmp_path):
        """Of those that keep their steps, by the values; of others all."""
        make_input(tmp_path)

        def changes(fn):
            made = run(tmp_path, fn, dest="my/made", per="episode", force=True)
            return set(made.manifest.lineage["leaves"]["changed"])

        def ended(td):
            td["next", "truncated"][0] = True
            return td

        assert changes("rbdata:returns_to_go") == set()
        assert changes(lambda td: td if len(td) > 5 else None) == set()
        assert changes(ended) == {"next/done", "next/truncated", "next/reward"}  # their returns are others
        assert {"observation", "next/reward"} < changes(lambda td: td[len(td) // 2 :])

    def test_the_same_data_have_the_same_content(self, tmp_path):
        ids = [read_manifest(make_input(tmp_path / name)).content for name in ("one", "two")]
        other = read_manifest(make_input(tmp_path / "three", seed=1)).content
        assert ids[0] == ids[1] != other
