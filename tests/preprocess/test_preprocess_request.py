"""Requests that cannot be carried out: options, input, destination, disk space."""

from __future__ import annotations

import pytest
from preprocess_tools import double_rewards, fails, run
from rbdata.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    DiskError,
    UsageError,
)
from storage_tools import contents


class TestPlaces:
    def test_input_is_missing(self, shared):
        fails(shared, double_rewards, DatasetNotFoundError, source="my/nothing")
        fails(shared, double_rewards, DatasetNotFoundError, source="gymnasium/CartPole-v1")

    def test_dest_is_the_input(self, shared, tmp_path):
        for source in ("my/input", shared / "my" / "input"):
            with pytest.raises(UsageError, match="is the input"):
                run(shared, double_rewards, dest="my/input", source=source, force=True)
        (tmp_path / "link").symlink_to(shared / "my" / "input")
        with pytest.raises(UsageError, match="is the input"):
            run(shared, double_rewards, dest="my/input", source=tmp_path / "link")

    def test_dest_is_inside_the_input(self, shared):
        with pytest.raises(DatasetExistsError, match="inside another dataset"):
            run(shared, double_rewards, dest="my/input/more")

    @pytest.mark.parametrize("dest", ["bad", "", "../bad", "my/../bad", "my/.bad", "/my/bad", "my//bad"])
    def test_dest_is_no_id(self, shared, dest):
        with pytest.raises(UsageError, match="not a dataset id"):
            run(shared, double_rewards, dest=dest)

    def test_dest_exists(self, shared):
        scale = {"functions": "rbdata:scale_rewards", "args": {"scale": 2}, "dest": "my/there"}
        first = run(shared, **scale, force=True)
        made = contents(first.path)
        run(shared, **scale)  # the same again: nothing to do
        assert contents(first.path) == made
        for other in ({"seed": 1}, {"num_frames": 9}, {"batch_size": 9}, {"codec": "raw"}, {"args": {"scale": 3}}):
            with pytest.raises(DatasetExistsError, match="made with another request") as caught:
                run(shared, **{**scale, **other})
            assert "--force" in caught.value.hint
        with pytest.raises(DatasetExistsError):
            run(shared, lambda td: td, dest="my/there")
        assert contents(first.path) == made
        assert len(run(shared, lambda td: td, dest="my/there", num_frames=9, force=True)) == 9

    def test_something_else_is_in_the_way(self, shared):
        (shared / "my" / "occupied").mkdir(exist_ok=True)
        (shared / "my" / "occupied" / "thesis.tex").touch()
        with pytest.raises(DatasetExistsError, match="is not a dataset"):
            run(shared, double_rewards, dest="my/occupied", force=True)
        assert (shared / "my" / "occupied" / "thesis.tex").exists()

    def test_disk_too_small(self, shared, monkeypatch):
        import rbdata.storage.folder as folder

        monkeypatch.setattr(folder, "free_bytes", lambda path: 1000)
        fails(shared, double_rewards, DiskError, "my/bad needs about")


class TestOptions:
    @pytest.mark.parametrize(
        "options",
        [
            {"procs": -1},
            {"batch_size": 0},
            {"batch_size": 1.5},
            {"num_frames": 0},
            {"seed": -1},
            {"seed": "x"},
            {"per": "row"},
            {"codec": "gzip"},
            {"layout": "flat"},
            {"layout": "ted", "codec": "zstd"},
            {"engine": "spark"},
            {"address": "auto"},
        ],
    )
    def test_make_no_sense(self, shared, options):
        fails(shared, double_rewards, UsageError, **options)

    def test_what_functions_need(self, shared):
        for per in ("batch", "sample"):
            fails(shared, "rbdata:returns_to_go", UsageError, "needs whole episodes", per=per)
