"""Datasets read from a remote store, through a cache of blocks on disk.

`cache_folder`: the layout of blocks, which of them are resident, and the locks. `block_cache`: fetching, checking, evicting,
completing. `remote_dataset`: the dataset on top. Bytes come from any object with the methods of `block_cache.RemoteFiles`.
"""
