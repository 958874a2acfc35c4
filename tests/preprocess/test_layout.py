"""How observations are stored: once per state or as plain TED, with which codec."""

from __future__ import annotations

import torch
from preprocess_tools import run
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify


class TestLayout:
    def test_successors_that_do_not_follow(self, inputs):
        """As with a random crop: both are stored, raw, and the manifest says so."""

        def fn(td):
            td["next", "observation"] = 255 - td["next", "observation"]
            return td

        source = Dataset(inputs / "my" / "zstd")
        dataset = run(inputs, fn, source="my/zstd", dest="my/broken", force=True)
        assert not dataset.schema.states
        assert torch.equal(dataset["next/observation"], 255 - source["next/observation"])
        assert torch.equal(dataset["observation"], source["observation"])
        assert dataset.manifest.lineage["unchained"] == ["observation"]
        assert "makes no sense" in dataset.manifest.notes[0] or "make no sense" in dataset.manifest.notes[0]
        assert verify(dataset.path).ok

    def test_ted(self, inputs):
        dataset = run(inputs, lambda td: td, source="my/zstd", dest="my/ted", layout="ted", force=True)
        source = Dataset(inputs / "my" / "zstd")
        from tensordict import TensorDict

        assert not dataset.schema.states
        plain_folder = TensorDict.load_memmap(dataset.path)
        assert torch.equal(plain_folder["next", "observation"], source["next/observation"])

    def test_auto_codec_by_what_it_saves(self, inputs, tmp_path):
        def random_frames(td):
            frames = torch.rand(len(td), 300)
            return td.set("frames", frames).set(("next", "frames"), frames.roll(-1, 0))

        def even_frames(td):
            return td.set("frames", torch.zeros(len(td), 300)).set(("next", "frames"), torch.zeros(len(td), 300))

        options = {"source": "my/flat", "force": True, "per": "episode"}
        even = run(inputs, even_frames, dest="my/even", **options)
        assert even.schema["frames"].to_json()["codec"] == "zstd"
        rough = run(inputs, random_frames, dest="my/rough", layout="auto", procs=0, **options)
        leaf = rough.schema.get("frames")
        assert leaf is not None and leaf.codec == "raw"
