"""The public face: every name of TorchRL's that a script may import, from ``rbdata`` itself, and at no cost."""

from __future__ import annotations

import subprocess
import sys

import pytest
import rbdata

BUFFERS = (
    "ReplayBuffer TensorDictReplayBuffer PrioritizedReplayBuffer TensorDictPrioritizedReplayBuffer ReplayBufferEnsemble"
)
SAMPLERS = (
    "RandomSampler SamplerWithoutReplacement PrioritizedSampler SliceSampler SliceSamplerWithoutReplacement "
    "PrioritizedSliceSampler Sampler"
)
STORAGES = "ListStorage TensorStorage LazyTensorStorage LazyMemmapStorage Storage"
WRITERS = "RoundRobinWriter TensorDictRoundRobinWriter TensorDictMaxValueWriter ImmutableDatasetWriter Writer"
HELPERS = "TED2Flat Flat2TED MultiStep RandomCropTensorDict split_trajectories"
NAMES = f"{BUFFERS} {SAMPLERS} {STORAGES} {WRITERS} {HELPERS}".split()


@pytest.mark.parametrize("name", NAMES)
def test_the_import_is_all_that_changes(name):
    import rbdata.storage.replay

    assert name in rbdata.__all__
    assert getattr(rbdata, name) is getattr(rbdata.storage.replay, name)
    assert getattr(rbdata, name).__doc__


def test_torchrl_has_these_names_too():
    data = pytest.importorskip("torchrl.data")
    transforms = pytest.importorskip("torchrl.envs.transforms")
    postprocs = pytest.importorskip("torchrl.data.postprocs")
    utils = pytest.importorskip("torchrl.collectors.utils")
    homes = (data, data.replay_buffers, transforms, transforms.rb_transforms, postprocs, utils)
    assert [name for name in NAMES if not any(hasattr(home, name) for home in homes)] == []


@pytest.mark.parametrize("name", BUFFERS.split()[:4])
def test_arguments_of_public_programs_are_taken(name):
    """Those that programs written for TorchRL pass and that change nothing here; a wrong one is a TypeError, as there."""
    priorities = {"alpha": 0.7, "beta": 0.5} if "Prior" in name else {}
    getattr(rbdata, name)(**priorities, compilable=True, pin_memory=False, shared=False, prefetch=3, batch_size=4)
    with pytest.raises(TypeError, match="nonsense"):
        getattr(rbdata, name)(**priorities, nonsense=1)


def test_all_that_is_promised_is_there():
    for name in rbdata.__all__:
        assert getattr(rbdata, name) is not None
    assert sorted(rbdata.__all__) == dir(rbdata)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = rbdata.Nonsense


def test_import_costs_nothing():
    code = (
        "import sys, rbdata; print([name for name in ('torch', 'numpy', 'tensordict', 'h5py') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "[]", done.stderr
