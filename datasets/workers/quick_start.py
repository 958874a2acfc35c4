"""Imported first in the fork server: switches garbage collection off while modules load.

Importing creates objects that stay; collecting among them finds nothing and takes a fifth of the time that importing torch
and tensordict needs. Workers switch it on again (`pool`).
"""

import gc

gc.disable()
