"""What a dataset's folder holds, for comparison."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def content(folder: Path) -> dict[str, str]:
    """Every file below a dataset, hashed; of the manifest everything but when and from where."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            data = file.read_bytes()
            if file.name == "rbdata.json":
                manifest = json.loads(data)
                del manifest["provenance"], manifest["checksum"]
                data = json.dumps(manifest, sort_keys=True).encode()
            found[file.relative_to(folder).as_posix()] = hashlib.sha256(data).hexdigest()
    return found
