"""Compares received bytes with the size and checksum that the location states."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

from ...errors import ChecksumError
from .location import RemoteObject

# In order of preference: crc32c runs at memory speed, the others at 0.5 to 2 GB/s. "git" is the id of a blob of git.
ALGORITHMS = ("crc32c", "sha256", "md5", "git")

_HINT = "fetch it again; if it fails again, the mirror's copy is damaged: use another mirror (--mirror)"


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class _Crc32c:
    def __init__(self) -> None:
        import google_crc32c

        self._extend: Any = google_crc32c.extend
        self._value = 0

    def update(self, data: bytes, /) -> None:
        # The C function takes `bytes` only; for an argument of that type this is no copy.
        self._value = self._extend(self._value, bytes(data))

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


class Verifier:
    """Counts and hashes an object's bytes as they are received, and compares at the end.

    After `finish`, `size` and `checksum` are those of the received bytes, also if the location states neither.
    """

    def __init__(self, obj: RemoteObject) -> None:
        self.obj = obj
        # The fastest one stated, else crc32c, for the manifest.
        self.algorithm = next((name for name in ALGORITHMS if name in obj.checksums), "crc32c")
        self.size = 0
        self._hash: _Hash | None
        if self.algorithm == "crc32c":
            self._hash = _Crc32c()
        elif self.algorithm == "git":
            # https://git-scm.com/book/en/v2/Git-Internals-Git-Objects: the SHA-1 of a header with the size, and the bytes
            self._hash = hashlib.sha1(b"blob %d\0" % (obj.size or 0), usedforsecurity=False)
        else:
            self._hash = hashlib.new(self.algorithm, usedforsecurity=False)

    @classmethod
    def of_size(cls, obj: RemoteObject, *, received: int) -> Verifier:
        """One that compares the size only, for a stream that does not start at byte 0."""
        verifier = cls(obj)
        verifier.size, verifier._hash = received, None
        return verifier

    @property
    def checksum(self) -> str | None:
        """Lowercase hex of `algorithm` over the bytes received so far; None if only the size is compared."""
        return None if self._hash is None else self._hash.hexdigest()

    def update(self, data: bytes) -> None:
        """Add received bytes. Raises ChecksumError if there are more than the location states."""
        self.size += len(data)
        if self.obj.size is not None and self.size > self.obj.size:
            raise ChecksumError(f"{self.obj.url}: received more than the expected {self.obj.size} bytes", hint=_HINT)
        if self._hash is not None:
            self._hash.update(data)

    def finish(self) -> None:
        """Raises ChecksumError if size or checksum of the received bytes differ from those stated."""
        obj = self.obj
        if obj.size is not None and self.size != obj.size:
            raise ChecksumError(f"{obj.url}: received only {self.size} of {obj.size} bytes", hint=_HINT)
        stated, found = obj.checksums.get(self.algorithm), self.checksum
        if stated is not None and found is not None and stated != found:
            message = f"{obj.url}: checksum mismatch, {self.algorithm} is {found}, expected {stated}"
            raise ChecksumError(message, hint=_HINT)
