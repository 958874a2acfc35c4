"""RL Unplugged's Atari episodes: the experience of the DQN Replay dataset, from another bucket and in another form.

Read in this order: `files` (what to look for), `formats.tfrecord` (bytes to records to named lists),
`episodes` (lists to checked episodes), `formats.png` (their frames), `decode` (a file to decoded rows on disk), `order` (all
files' episodes in training order), `job` (the interface to `ingest`).
"""
