"""Prefixes of `load_dataset`: built in, registered, replaced, refused."""

from __future__ import annotations

import pytest
import rbdata
from rbdata.datasets import load_dataset, register_dataset
from rbdata.datasets.torchrl_classes import dataset_classes
from rbdata.errors import DatasetNotFoundError, UsageError


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(dataset_classes, "_REGISTRY", dict(dataset_classes._REGISTRY))


def test_registered_classes_are_called_with_the_rest():
    register_dataset("Mine ", lambda name, **options: (name, options))
    assert load_dataset("mine:a:b", batch_size=3) == ("a:b", {"batch_size": 3})
    with pytest.raises(UsageError, match="taken"):
        register_dataset("mine", dict)
    register_dataset("mine", "collections:Counter", replace=True)
    assert load_dataset("MINE:aab") == {"a": 2, "b": 1}


@pytest.mark.parametrize("prefix, dataset", [("", dict), ("a:b", dict), ("x", 3), ("x", "module"), ("x", "module:")])
def test_refused_registrations(prefix, dataset):
    with pytest.raises(UsageError):
        register_dataset(prefix, dataset)


@pytest.mark.parametrize("name", ["hopper-medium-v2", "nobody:hopper-medium-v2"])
def test_unknown_prefixes(name):
    with pytest.raises(DatasetNotFoundError) as caught:
        load_dataset(name)
    assert (
        caught.value.hint
        == "prefixes: atari, atari_dqn, d4rl, gen_dgrl, lerobot, minari, openml, openx, roboset, vd4rl"
    )


def test_names_are_the_same_at_the_root():
    for name in rbdata.datasets.__all__:
        assert getattr(rbdata, name) is getattr(rbdata.datasets, name)
