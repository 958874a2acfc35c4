"""Imported first in the fork server: it ends with the program, and collects no garbage while modules load.

Importing creates objects that stay; collecting among them finds nothing and takes a fifth of the time that importing torch
and tensordict needs. Workers switch it on again (`worker_process`). While it imports, the server does not look at the pipe
that tells it that the program has ended: the system kills it then.

It is started with ``-c``, so that the current directory comes first in ``sys.path``: a file ``json.py`` of the user's must
not be loaded as the standard library's. Workers get the path of the program.
"""

import gc
import sys

sys.path[:] = [folder for folder in sys.path if folder]

from .worker_process import end_with_parent  # noqa: E402

gc.disable()
end_with_parent()
