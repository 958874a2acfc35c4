"""Offline reinforcement learning datasets: download, convert to memory-mapped TED, sample at memory speed.

    import rbdata

    rbdata.download("Pong/5", procs=8)
    buffer = rbdata.load("Pong/5", batch_size=256, frame_stack=4)
    batch = buffer.sample()                      # a TED TensorDict, with "index"
    rbdata.preprocess("Pong/5", fn, dest="my/pong")

Names are imported on first use, so that ``import rbdata`` and the command line start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import datasets
from ._version import __version__ as __version__
from .errors import RbdataError as RbdataError

if TYPE_CHECKING:
    from .api import (
        audit,
        catalogue,
        convert,
        delete,
        download,
        export,
        info,
        inspect,
        list_datasets,
        preprocess,
        search,
        verify,
    )
    from .datasets.opening import concat, open_dataset
    from .datasets.own_data import from_arrays, from_episodes
    from .datasets.record import record
    from .datasets.scores import normalized_score, reference_scores
    from .datasets.sources.catalogue_entry import Catalogue, CatalogueEntry
    from .datasets.sources.gymnasium.recorder import Recorder
    from .datasets.torchrl_classes import *
    from .loading import load, torchrl_storage
    from .storage.dataset import Dataset
    from .storage.replay import *
    from .storage.tensor_specs import *

#: Modules of the names that are not in the replay runtime, ``.storage.replay``.
_MODULES = {
    "Dataset": ".storage.dataset",
    **dict.fromkeys(("Binary", "Bounded", "Categorical", "Composite", "MultiCategorical"), ".storage.tensor_specs"),
    **dict.fromkeys(("MultiOneHot", "OneHot", "TensorSpec", "Unbounded"), ".storage.tensor_specs"),
    "Recorder": ".datasets.sources.gymnasium.recorder",
    "record": ".datasets.record",
    **dict.fromkeys(("from_arrays", "from_episodes"), ".datasets.own_data"),
    **dict.fromkeys(("normalized_score", "reference_scores"), ".datasets.scores"),
    **dict.fromkeys(("Catalogue", "CatalogueEntry"), ".datasets.sources.catalogue_entry"),
    **dict.fromkeys(
        ("audit", "catalogue", "convert", "delete", "download", "export", "info", "inspect", "list_datasets"), ".api"
    ),
    **dict.fromkeys(("preprocess", "search", "verify"), ".api"),
    **dict.fromkeys(("concat", "open_dataset"), ".datasets.opening"),
    **dict.fromkeys(("load", "torchrl_storage"), ".loading"),
    **dict.fromkeys(datasets.__all__, ".datasets.torchrl_classes"),
}

# The names of the replay runtime are listed once, here.
# ruff: noqa: F403, F405
__all__ = [
    "Around",
    "AtariDQNExperienceReplay",
    "BaseDatasetExperienceReplay",
    "Binary",
    "Bounded",
    "Catalogue",
    "CatalogueEntry",
    "Categorical",
    "Composite",
    "D4RLExperienceReplay",
    "Dataset",
    "DatasetStorage",
    "Flat2TED",
    "GenDGRLExperienceReplay",
    "Goals",
    "ImmutableDatasetWriter",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "LeRobotExperienceReplay",
    "ListStorage",
    "MinariExperienceReplay",
    "MixtureSampler",
    "MultiCategorical",
    "MultiOneHot",
    "MultiStep",
    "OneHot",
    "OpenMLExperienceReplay",
    "OpenXExperienceReplay",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomCropTensorDict",
    "RandomSampler",
    "RbdataError",
    "Recorder",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "RobosetExperienceReplay",
    "RoundRobinWriter",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Storage",
    "TED2Flat",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorSpec",
    "TensorStorage",
    "Unbounded",
    "VD4RLExperienceReplay",
    "Writer",
    "__version__",
    "audit",
    "catalogue",
    "concat",
    "convert",
    "delete",
    "download",
    "export",
    "from_arrays",
    "from_episodes",
    "info",
    "inspect",
    "list_datasets",
    "load",
    "load_dataset",
    "normalized_score",
    "open_dataset",
    "preprocess",
    "record",
    "reference_scores",
    "register_dataset",
    "search",
    "split_trajectories",
    "torchrl_storage",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES.get(name, ".storage.replay"), __name__), name)
    # Importing a submodule binds it here: ``preprocess`` stays the package, which can be called.
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted(__all__)
