"""Imported first in the fork server: it ends with the program, and collects no garbage while modules load.

Modules create objects that are never freed; searching them for garbage would add a fifth to the time that importing torch and
tensordict takes. Workers switch collection on again (`worker_process`). While it imports, the server does not watch the pipe
that reports the end of the program, so it asks the system to kill it then.

The server is started with ``-c``, which puts the current directory first in ``sys.path``: there a user's ``json.py`` would
shadow the standard library's. Workers get the path of the program.
"""

import gc
import sys

sys.path[:] = [folder for folder in sys.path if folder]

from .worker_process import end_with_parent  # noqa: E402

gc.disable()
end_with_parent()
