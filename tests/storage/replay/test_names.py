"""The public face: every name of TorchRL's that a script may import, from ``rbdata`` itself, and at no cost."""

from __future__ import annotations

import inspect
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


def accepted(kind: type) -> set[str]:
    """The arguments that making one takes; those passed on to a base count."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in vars(base) and base is not object:
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            names |= {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
            if all(each.kind is not each.VAR_KEYWORD for each in parameters):
                break
    return names - {"self"}


@pytest.mark.parametrize("name", BUFFERS.split()[:4])
def test_every_argument_of_torchrl_is_taken(name):
    """0.14's; explicitly named, so that a wrong one is a TypeError as there."""
    data = pytest.importorskip("torchrl.data")
    assert accepted(getattr(data, name)) - accepted(getattr(rbdata, name)) == set()
    with pytest.raises(TypeError, match="nonsense"):
        getattr(rbdata, name)(alpha=1, beta=1, nonsense=1) if "Prior" in name else getattr(rbdata, name)(nonsense=1)


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
