"""The examples of TorchRL's pages on what its buffers learned last: hindsight, offline to online, queries, sample units.

As test_documented.py: the same calls in both libraries, the same outcome, unless TorchRL cannot run the example here.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import rbdata
import torch

pytest.importorskip("torchrl.data")
import torchrl.data.datasets as their_datasets
import torchrl.data.replay_buffers as their_buffers
import torchrl.data.replay_buffers.offline_to_online as their_mix
import torchrl.data.replay_buffers.query as their_query
import torchrl.data.replay_buffers.samplers as their_samplers
import torchrl.data.replay_buffers.scheduler as their_schedulers

logging.getLogger("torchrl").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")

THEIRS = SimpleNamespace()
for _module in (their_mix, their_query, their_schedulers, their_datasets, their_samplers, their_buffers):
    THEIRS.__dict__.update({name: getattr(_module, name) for name in dir(_module) if name[0] != "_"})


def registered_datasets(lib):
    class Toy:
        def __init__(self, dataset_id: str, *, batch_size: int = 0) -> None:
            self.said = dataset_id, batch_size

    lib.register_dataset("documented", Toy, replace=True)
    lib.register_dataset("documented_lazily", "collections:Counter", replace=True)
    return lib.load_dataset("documented:task-v0", batch_size=8).said, lib.load_dataset("documented_lazily:aab")["a"]


EXAMPLES = [value for value in list(globals().values()) if getattr(value, "__module__", None) == __name__]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    from rbdata.datasets.torchrl_classes import dataset_classes

    monkeypatch.setattr(dataset_classes, "_REGISTRY", dict(dataset_classes._REGISTRY))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_example(example):
    torch.manual_seed(0)
    assert example(rbdata) == example(THEIRS)
