"""RL Unplugged's Atari episodes: the experience of the DQN Replay dataset, from another bucket and in another form.

Read in this order: `files` (what to look for), `tfrecord` (bytes to records), `example` (a record to named lists),
`episode` (lists to an episode, checked), `png` (its frames), `spool` (a file to decoded rows on disk), `order` (all files'
episodes in training order), `fill` (rows to the dataset), `job` (how the rest drives it).
"""
