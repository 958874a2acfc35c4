"""RL Unplugged's Atari episodes: the experience of the DQN Replay dataset, from another bucket and in another form.

Read in this order: `files` (what to look for), `formats.tfrecord` (bytes to records), `formats.tf_example` (a record to named
lists), `episode` (lists to an episode, checked), `formats.png` (its frames), `decode` (a file to decoded rows on disk),
`order` (all files' episodes in training order), `job` (the interface to `ingest`).
"""
