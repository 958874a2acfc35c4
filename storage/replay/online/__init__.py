"""What training online adds to the replay runtime. The core (pipeline, samplers, storages, writers) imports nothing of it.

- `consuming`: records are removed after a number of samples; `staleness`: records of old policies are drawn less often.
- `sample_units`: a window of records around each record drawn.
- `conditional_update`: writing to records only if they are still in their rows.
- `trajectories`: trajectories as objects, and queries for them.
- `schedulers`: parameters of samplers that change during training.

`Sampler._check_parts` and `Sampler._writer_for` are what the core offers to samplers such as `consuming`, `BatchSpec.expand`
what it offers to sample units. The methods of `ReplayBuffer` lead to the rest.
"""
