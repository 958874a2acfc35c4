"""Minari: datasets of the Farama Foundation and of anybody who records with its ``DataCollector``.

Read in this order: `names` (ids, and where datasets are), `metadata`, the readers `hdf5` and `arrow` (what a file says),
`survey` (which columns a dataset has), `episode_rows` (episodes to columns and state rows), `job`, `source`, `remote_counts`
(what remotes hold).
"""
