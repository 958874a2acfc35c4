"""Datasets read from a remote store, through a cache of blocks on disk.

`cache_folder`: which blocks there are, which of them are resident, and the locks. `block_cache`: fetch, check, evict, finish.
`remote_dataset`: the dataset over it. The bytes come from any object with the methods of `block_cache.RemoteFiles`.
"""
