"""Whether the bytes received are the bytes the source states."""

from __future__ import annotations

from typing import Any, Protocol

from ...errors import ChecksumError
from .location import RemoteObject

# In order of preference: crc32c runs at memory speed here, the others at 0.5 to 2 GB/s.
ALGORITHMS = ("crc32c", "sha256", "md5")

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
        # The C function takes `bytes` and nothing else; for bytes this copies nothing.
        self._value = self._extend(self._value, bytes(data))

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def preferred_algorithm(obj: RemoteObject) -> str:
    """The checksum to compute: the best one the source states, else crc32c, for the record."""
    return next((name for name in ALGORITHMS if name in obj.checksums), "crc32c")


class Verifier:
    """Counts and hashes an object's bytes as they pass, and compares at the end.

    After `finish`, `size` and `checksum` are those of the bytes seen, also where the source states nothing to compare.
    """

    def __init__(self, obj: RemoteObject) -> None:
        self.obj = obj
        self.algorithm = preferred_algorithm(obj)
        self.size = 0
        self._hash: _Hash | None = _new(self.algorithm)

    @classmethod
    def of_size(cls, obj: RemoteObject, *, seen: int) -> Verifier:
        """One that only counts, for who starts in the middle."""
        verifier = cls(obj)
        verifier.size, verifier._hash = seen, None
        return verifier

    @property
    def checksum(self) -> str | None:
        """Lowercase hex of `algorithm` over the bytes seen so far; None when only their number is known."""
        return None if self._hash is None else self._hash.hexdigest()

    def update(self, data: bytes) -> None:
        """Raises ChecksumError as soon as there are more bytes than the source states."""
        self.size += len(data)
        if self.obj.size is not None and self.size > self.obj.size:
            message = f"{self.obj.url}: more than the {self.obj.size} bytes stated arrived"
            raise ChecksumError(message, hint=_HINT)
        if self._hash is not None:
            self._hash.update(data)

    def finish(self) -> None:
        """Raises ChecksumError when the bytes seen are not the object."""
        obj = self.obj
        if obj.size is not None and self.size != obj.size:
            message = f"{obj.url}: {self.size} of {obj.size} bytes arrived, and there are no more"
            raise ChecksumError(message, hint=_HINT)
        stated, found = obj.checksums.get(self.algorithm), self.checksum
        if stated is not None and found is not None and stated != found:
            message = f"{obj.url}: {self.algorithm} is {found}, the source states {stated}"
            raise ChecksumError(message, hint=_HINT)


def _new(algorithm: str) -> _Hash:
    if algorithm == "crc32c":
        return _Crc32c()
    import hashlib

    return hashlib.new(algorithm, usedforsecurity=False)
