"""Datasets read from a remote store, through a cache of blocks on disk.

`cache`: the folder, fetching, checking, evicting, completing. `remote_dataset`: the dataset on top. Bytes come from any object
with the methods of `cache.RemoteFiles`.
"""
