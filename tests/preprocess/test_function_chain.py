"""Several functions in a row."""

from __future__ import annotations

import rbdata
import torch
from preprocess_tools import double_rewards, run
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify


class TestChains:
    def test_ready_functions_on_states_equal_those_on_steps(self, inputs):
        """Each stored state is changed once; that must be the same as changing observation and successor."""
        functions = ["rbdata:grayscale", "rbdata:resize_frames", "rbdata:to_float"]
        args = {"height": 12, "width": 10}
        ready = run(inputs, functions, source="my/zstd", dest="my/ready", args=args, batch_size=9, force=True)

        def same(td):
            from rbdata.preprocess.functions import find_builtin

            td = find_builtin("grayscale")(td)
            return find_builtin("to_float")(find_builtin("resize_frames")(td, **args))

        own = run(inputs, same, source="my/zstd", dest="my/own", batch_size=9, force=True)
        assert torch.equal(ready["observation"], own["observation"])
        assert torch.equal(ready["next/observation"], own["next/observation"])
        assert verify(ready.path).ok

    def test_a_first_pass_sees_what_comes_before_it(self, inputs):
        def shifted(td):
            td["observation"] = td["observation"] + 1000
            td["next", "observation"] = td["next", "observation"] + 1000
            return td

        dataset = run(
            inputs,
            [shifted, "rbdata:normalize_observations", "rbdata:scale_rewards"],
            source="my/flat",
            dest="my/normal",
            args={"scale_rewards.scale": 3},
            batch_size=5,
            procs=0,
            force=True,
        )
        source = Dataset(inputs / "my" / "flat")
        found = dataset.statistics["normalize_observations"]["observation"]
        assert torch.allclose(torch.tensor(found["mean"]), source["observation"].double().mean(0).float() + 1000)
        assert torch.allclose(dataset["observation"].mean(0), torch.zeros(4), atol=1e-3)
        assert torch.equal(dataset["next/reward"], source["next/reward"] * 3)
        buffer = rbdata.load("my/normal", root=inputs, batch_size=4)
        assert buffer.dataset.statistics == dataset.statistics
        # A dataset made of this one still knows them.
        later = run(inputs, double_rewards, source="my/normal", dest="my/later", force=True)
        assert later.statistics == dataset.statistics
