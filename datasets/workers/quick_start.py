"""Imported first in the fork server: it ends with the program, and collects no garbage while modules load.

Importing creates objects that stay; collecting among them finds nothing and takes a fifth of the time that importing torch
and tensordict needs. Workers switch it on again (`pool`). While it imports, the server does not look at the pipe that tells it
that the program has ended: the system kills it then.
"""

import gc

from .worker_process import end_with_parent

gc.disable()
end_with_parent()
