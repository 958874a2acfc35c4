"""The runtime: batches from a dataset, or from what a training run collects.

Read in this order: `storages` (where records are), `timeline` (what follows what), `samplers` and `slices` (which steps make
a batch), `batches` (reading them), `stream` (their order), `buffer` (all of it together).
"""

from __future__ import annotations

from .batches import BatchReader as BatchReader
from .buffer import ReplayBuffer as ReplayBuffer
from .crop import RandomCropTensorDict as RandomCropTensorDict
from .dataset_storage import DatasetStorage as DatasetStorage
from .draw import Draw as Draw
from .ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
from .iterable import ReplayIterable as ReplayIterable
from .memmap_storage import LazyMemmapStorage as LazyMemmapStorage
from .multi_step import MultiStep as MultiStep
from .prioritized import PrioritizedSampler as PrioritizedSampler
from .prioritized_slices import PrioritizedSliceSampler as PrioritizedSliceSampler
from .samplers import RandomSampler as RandomSampler
from .samplers import Sampler as Sampler
from .samplers import SamplerWithoutReplacement as SamplerWithoutReplacement
from .slices import SliceSampler as SliceSampler
from .slices import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
from .storages import ListStorage as ListStorage
from .storages import Storage as Storage
from .ted_hooks import Flat2TED as Flat2TED
from .ted_hooks import TED2Flat as TED2Flat
from .tensor_storage import LazyTensorStorage as LazyTensorStorage
from .tensor_storage import TensorStorage as TensorStorage
from .tensordict_buffer import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from .tensordict_buffer import TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer
from .tensordict_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
from .trajectories import split_trajectories as split_trajectories
from .transforms import Transforms as Transforms
from .writers import ImmutableDatasetWriter as ImmutableDatasetWriter
from .writers import RoundRobinWriter as RoundRobinWriter
from .writers import TensorDictMaxValueWriter as TensorDictMaxValueWriter
from .writers import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
from .writers import Writer as Writer
