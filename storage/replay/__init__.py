"""The runtime: batches from a dataset, or from records that a training run collects.

Reading order, for ``sample()``:

1. `buffer`: a storage, a sampler, a writer and transforms; `batches`: how a batch is drawn, read and finished with them.
2. `order`: which numbers a batch is drawn with; `samplers.uniform` and the others: which steps these are.
3. `columns`: how its leaves are read; `windows`: stacks, n-step returns and windows; `timeline`: where episodes end.

Then `storages` and `writers` (where records are kept), `chain` (transforms), `prefetch` (threads), `tensordict_buffer`,
`ensemble`, `goals`, `iterable` (data loaders), `checkpoint` (files), `loading` (from options to a buffer over a dataset).
"""

from __future__ import annotations

from .buffer import ReplayBuffer as ReplayBuffer
from .chain import Transforms as Transforms
from .ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
from .goals import Goals as Goals
from .iterable import ReplayIterable as ReplayIterable
from .samplers.mixture import MixtureSampler as MixtureSampler
from .samplers.prioritized import PrioritizedSampler as PrioritizedSampler
from .samplers.prioritized import PrioritizedSliceSampler as PrioritizedSliceSampler
from .samplers.sampler import Sampler as Sampler
from .samplers.slices import SliceSampler as SliceSampler
from .samplers.slices import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
from .samplers.uniform import RandomSampler as RandomSampler
from .samplers.uniform import SamplerWithoutReplacement as SamplerWithoutReplacement
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
