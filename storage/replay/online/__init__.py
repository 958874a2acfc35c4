"""Additions to the replay runtime for online training. The core (pipeline, samplers, storages, writers) does not import them.

- `consuming`: records are removed after a number of samples; `staleness`: records of old policies are drawn less often.
- `sample_units`: a window of records around each record drawn.
- `conditional_update`: writing to records only if they are still in their rows.
- `trajectories`: trajectories as objects, and queries for them.
- `schedulers`: parameters of samplers that change during training.

The core calls them through `Sampler._check_parts` and `Sampler._writer_for` (samplers such as `consuming`), `BatchSpec.expand`
(sample units) and methods of `ReplayBuffer` (the rest).
"""
