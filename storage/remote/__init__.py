"""A dataset that lies elsewhere, read through a cache of blocks on disk.

Read in this order: `block_layout` (which bytes are which block), `block_states` (which blocks are there: one mapped file that
all processes share), `cache_lock`, `block_fetcher` (threads that fetch), `block_cache` (fetch, check, evict, finish),
`remote_rows`, `remote_dataset`. Where the bytes come from is given: anything with the methods of `remote_files.RemoteFiles`.
"""
