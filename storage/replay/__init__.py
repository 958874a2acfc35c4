"""The runtime: batches from a dataset, or from what a training run collects.

Reading order:

1. `storages`: where records are kept; `writers`: which row a new record goes to.
2. `windows`: `timeline` and `edges` (which step follows which, where episodes end), `draw` (the steps of a batch),
   `batches` (how they are read).
3. `samplers`: which steps make a batch; `sample_units`: which records are read for each step drawn.
4. `batch_order`, `prefetch`, `pipeline`: draws in order, made and read ahead of time.
5. `writing`, `sampling`, `buffer` and `tensordict_buffer`: all of it together; `ensemble`: several buffers as one;
   `transforms`; `checkpoints`. Parts of ensembles: `ensemble_parts`, `member_parts`, `member_routing`. Goals in `hindsight`:
   `her_buffer`. What a buffer is asked about: `trajectory`, `trajectory_predicates`, `trajectory_query`.
6. `loading` (from options to a buffer over a dataset), `iterable` (data loaders), `devices`, `argument_checks`.
"""

from __future__ import annotations

from .batches import BatchReader as BatchReader
from .buffer import ReplayBuffer as ReplayBuffer
from .checkpoints.ted_hooks import Flat2TED as Flat2TED
from .checkpoints.ted_hooks import TED2Flat as TED2Flat
from .conditional_update import ConditionalUpdateResult as ConditionalUpdateResult
from .ensemble import ReplayBufferEnsemble as ReplayBufferEnsemble
from .ensemble_parts import SamplerEnsemble as SamplerEnsemble
from .ensemble_parts import StorageEnsemble as StorageEnsemble
from .ensemble_parts import WriterEnsemble as WriterEnsemble
from .her_buffer import HERReplayBuffer as HERReplayBuffer
from .hindsight import HindsightStrategy as HindsightStrategy
from .iterable import ReplayIterable as ReplayIterable
from .sample_units import SampleUnit as SampleUnit
from .sample_units import Sequence as Sequence
from .sample_units import Transition as Transition
from .samplers.consuming import ConsumingSampler as ConsumingSampler
from .samplers.prioritized import PrioritizedSampler as PrioritizedSampler
from .samplers.prioritized_slices import PrioritizedSliceSampler as PrioritizedSliceSampler
from .samplers.slices import SliceSampler as SliceSampler
from .samplers.slices import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
from .samplers.staleness import StalenessAwareSampler as StalenessAwareSampler
from .samplers.uniform import RandomSampler as RandomSampler
from .samplers.uniform import Sampler as Sampler
from .samplers.uniform import SamplerWithoutReplacement as SamplerWithoutReplacement
from .schedulers import LambdaScheduler as LambdaScheduler
from .schedulers import LinearScheduler as LinearScheduler
from .schedulers import ParameterScheduler as ParameterScheduler
from .schedulers import SchedulerList as SchedulerList
from .schedulers import StepScheduler as StepScheduler
from .storages.compressed_list_storage import CompressedListStorage as CompressedListStorage
from .storages.dataset_storage import DatasetStorage as DatasetStorage
from .storages.lazy_stack_storage import LazyStackStorage as LazyStackStorage
from .storages.lazy_tensor_storage import LazyTensorStorage as LazyTensorStorage
from .storages.list_storage import ListStorage as ListStorage
from .storages.memmap_storage import LazyMemmapStorage as LazyMemmapStorage
from .storages.storage import Storage as Storage
from .storages.tensor_storage import TensorStorage as TensorStorage
from .tensordict_buffer import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from .tensordict_buffer import TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer
from .tensordict_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
from .trajectory import Trajectory as Trajectory
from .trajectory import filter_trajectories as filter_trajectories
from .trajectory import iter_trajectories as iter_trajectories
from .trajectory_predicates import TrajectoryPredicate as TrajectoryPredicate
from .trajectory_predicates import traj as traj
from .transforms.chain import Transforms as Transforms
from .transforms.crop import RandomCropTensorDict as RandomCropTensorDict
from .transforms.n_step_transform import MultiStep as MultiStep
from .transforms.split import split_trajectories as split_trajectories
from .windows.draw import Draw as Draw
from .writers.base import ImmutableDatasetWriter as ImmutableDatasetWriter
from .writers.base import Writer as Writer
from .writers.max_value import TensorDictMaxValueWriter as TensorDictMaxValueWriter
from .writers.round_robin import RoundRobinWriter as RoundRobinWriter
from .writers.round_robin import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
