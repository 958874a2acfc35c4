"""The runtime: batches from a dataset, or from records that a training run collects.

Reading order, for ``sample()``:

1. `buffer`: a storage, a sampler, a writer and transforms; `batches`: how a batch is drawn, read and finished with them.
2. `order`: which numbers a batch is drawn with; `samplers.sampler` and the others: which steps these are.
3. `columns`: how its leaves are read; `windows`: stacks, n-step returns and windows; `timeline`: where episodes end.

Then `storages` and `writers` (where records are kept), `chain` (transforms), `prefetch` (threads), `tensordict_buffer`,
`ensemble`, `goals`, `iterable` (data loaders), `checkpoint` (files); `around`: options of rows around each step.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .around import Around as Around
    from .buffer import ReplayBuffer as ReplayBuffer
    from .chain import Transforms as Transforms
    from .ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
    from .goals import Goals as Goals
    from .iterable import ReplayIterable as ReplayIterable
    from .samplers.mixture import MixtureSampler as MixtureSampler
    from .samplers.prioritized import PrioritizedSampler as PrioritizedSampler
    from .samplers.prioritized import PrioritizedSliceSampler as PrioritizedSliceSampler
    from .samplers.sampler import RandomSampler as RandomSampler
    from .samplers.sampler import Sampler as Sampler
    from .samplers.sampler import SamplerWithoutReplacement as SamplerWithoutReplacement
    from .samplers.slices import SliceSampler as SliceSampler
    from .samplers.slices import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
    from .storages.dataset_storage import DatasetStorage as DatasetStorage
    from .storages.list_storage import ListStorage as ListStorage
    from .storages.memmap_storage import LazyMemmapStorage as LazyMemmapStorage
    from .storages.storage import Storage as Storage
    from .storages.tensor_storage import LazyTensorStorage as LazyTensorStorage
    from .storages.tensor_storage import TensorStorage as TensorStorage
    from .ted_hooks import Flat2TED as Flat2TED
    from .ted_hooks import TED2Flat as TED2Flat
    from .tensordict_buffer import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from .tensordict_buffer import TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer
    from .tensordict_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
    from .transforms import MultiStep as MultiStep
    from .transforms import RandomCropTensorDict as RandomCropTensorDict
    from .transforms import split_trajectories as split_trajectories
    from .writers import ImmutableDatasetWriter as ImmutableDatasetWriter
    from .writers import RoundRobinWriter as RoundRobinWriter
    from .writers import TensorDictMaxValueWriter as TensorDictMaxValueWriter
    from .writers import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
    from .writers import Writer as Writer

#: Where each name is: imported on first use.
_MODULES = {
    "Around": ".around",
    "DatasetStorage": ".storages.dataset_storage",
    "Flat2TED": ".ted_hooks",
    "Goals": ".goals",
    "ImmutableDatasetWriter": ".writers",
    "LazyMemmapStorage": ".storages.memmap_storage",
    "LazyTensorStorage": ".storages.tensor_storage",
    "ListStorage": ".storages.list_storage",
    "MixtureSampler": ".samplers.mixture",
    "MultiStep": ".transforms",
    "PrioritizedReplayBuffer": ".tensordict_buffer",
    "PrioritizedSampler": ".samplers.prioritized",
    "PrioritizedSliceSampler": ".samplers.prioritized",
    "RandomCropTensorDict": ".transforms",
    "RandomSampler": ".samplers.sampler",
    "ReplayBuffer": ".buffer",
    "ReplayBufferEnsemble": ".ensemble",
    "ReplayIterable": ".iterable",
    "RoundRobinWriter": ".writers",
    "Sampler": ".samplers.sampler",
    "SamplerWithoutReplacement": ".samplers.sampler",
    "SliceSampler": ".samplers.slices",
    "SliceSamplerWithoutReplacement": ".samplers.slices",
    "Storage": ".storages.storage",
    "TED2Flat": ".ted_hooks",
    "TensorDictMaxValueWriter": ".writers",
    "TensorDictPrioritizedReplayBuffer": ".tensordict_buffer",
    "TensorDictReplayBuffer": ".tensordict_buffer",
    "TensorDictRoundRobinWriter": ".writers",
    "TensorStorage": ".storages.tensor_storage",
    "Transforms": ".chain",
    "Writer": ".writers",
    "split_trajectories": ".transforms",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(_MODULES[name], __name__), name))
