"""The runtime: batches from a dataset, or from what a training run collects.

Reading order:

1. `storages`: where records are kept; `writers`: which row a new record goes to.
2. `timeline` (which step follows which, where episodes end), `draw` (the steps of a batch), `batches` (how they are read).
3. `samplers`: which steps make a batch; `sample_units`: which records are read for each step drawn.
4. `pipeline` (batches in the order that the seed determines), `prefetch` (made ahead of time in threads), `transforms`.
5. `buffer` puts it together; `tensordict_buffer`, `her_buffer` (goals: `hindsight`) and `ensemble` (several buffers as one).
6. `checkpoint` and `state_files`: saving; `loading`: from options to a buffer over a dataset; `iterable`: data loaders;
   `trajectories`: questions about episodes; `overrides`: methods of users' subclasses.
"""

from __future__ import annotations

from .batches import BatchReader as BatchReader
from .buffer import ReplayBuffer as ReplayBuffer
from .conditional_update import ConditionalUpdateResult as ConditionalUpdateResult
from .draw import Draw as Draw
from .ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
from .ensemble import SamplerEnsemble as SamplerEnsemble
from .ensemble import StorageEnsemble as StorageEnsemble
from .ensemble import WriterEnsemble as WriterEnsemble
from .her_buffer import HERReplayBuffer as HERReplayBuffer
from .hindsight import HindsightStrategy as HindsightStrategy
from .iterable import ReplayIterable as ReplayIterable
from .sample_units import SampleUnit as SampleUnit
from .sample_units import Sequence as Sequence
from .sample_units import Transition as Transition
from .samplers.consuming import ConsumingSampler as ConsumingSampler
from .samplers.prioritized import PrioritizedSampler as PrioritizedSampler
from .samplers.prioritized import PrioritizedSliceSampler as PrioritizedSliceSampler
from .samplers.sampler import Sampler as Sampler
from .samplers.slices import SliceSampler as SliceSampler
from .samplers.slices import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
from .samplers.staleness import StalenessAwareSampler as StalenessAwareSampler
from .samplers.uniform import RandomSampler as RandomSampler
from .samplers.uniform import SamplerWithoutReplacement as SamplerWithoutReplacement
from .schedulers import LambdaScheduler as LambdaScheduler
from .schedulers import LinearScheduler as LinearScheduler
from .schedulers import ParameterScheduler as ParameterScheduler
from .schedulers import SchedulerList as SchedulerList
from .schedulers import StepScheduler as StepScheduler
from .storages.compressed_list_storage import CompressedListStorage as CompressedListStorage
from .storages.dataset_storage import DatasetStorage as DatasetStorage
from .storages.list_storage import LazyStackStorage as LazyStackStorage
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
from .trajectories import Trajectory as Trajectory
from .trajectories import TrajectoryPredicate as TrajectoryPredicate
from .trajectories import filter_trajectories as filter_trajectories
from .trajectories import iter_trajectories as iter_trajectories
from .trajectories import traj as traj
from .transforms import MultiStep as MultiStep
from .transforms import RandomCropTensorDict as RandomCropTensorDict
from .transforms import Transforms as Transforms
from .transforms import split_trajectories as split_trajectories
from .writers import ImmutableDatasetWriter as ImmutableDatasetWriter
from .writers import RoundRobinWriter as RoundRobinWriter
from .writers import TensorDictMaxValueWriter as TensorDictMaxValueWriter
from .writers import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
from .writers import Writer as Writer
