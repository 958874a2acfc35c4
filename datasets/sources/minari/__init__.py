"""Minari: datasets of the Farama Foundation and of anybody who records with its ``DataCollector``.

Read in this order: `names` (ids and remotes), `metadata`, the readers `hdf5` and `arrow` (what a file says), `images`,
`survey` (which columns a dataset has), `rows` (episodes to columns and state rows), `fill` (frames), `source`, `remote`
(what the remotes hold).
"""
