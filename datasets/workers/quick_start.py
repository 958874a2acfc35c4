"""Imported before everything else where a process is to start fast: garbage is not collected while modules load.

Modules are made of objects that stay: looking through all of them again and again finds nothing, and takes a fifth of the
time that importing torch and tensordict does. See `pool` and `fork_server`: workers collect again.
"""

import gc

gc.disable()
