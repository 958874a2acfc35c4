"""Tests that every source must pass, for authors of sources: derive a class, name a dataset, and write its raw files.

    from rbdata.testing import SourceTests

    class TestCsvLog(SourceTests):
        source = CsvLogSource()
        name = "mine"

        @pytest.fixture
        def raw(self, tmp_path):
            (tmp_path / "raw").mkdir()
            (tmp_path / "raw" / "mine.csv").write_text(LOG)
            return tmp_path / "raw"

        def check_values(self, dataset, raw):
            assert dataset["action"].tolist() == [1, 0, 1]

The source need not be registered. pytest is imported here, and nowhere else in the package.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from .datasets.audit.run import audit_datasets
from .datasets.fetch import open_location
from .datasets.ingest.pipeline import run
from .datasets.ingest.reader import Reader
from .datasets.ingest.records import ConvertOptions
from .datasets.ingest.request import Listener, Outcome, Request
from .datasets.sources.source import Source
from .errors import ChecksumError, CorruptSourceError
from .storage.dataset import Dataset
from .storage.folder import DatasetPlace
from .storage.integrity import verify


def dataset_content(folder: Path) -> dict[str, str]:
    """Return every file below a dataset, hashed; of the manifest everything but when and from where it was made."""
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


class SourceTests:
    """Names, values, interruptions, damaged files, processes and dry runs of one dataset of a source.

    A derived class states ``source`` and ``name``, and defines `raw` and `check_values`.
    """

    #: The source, and the name of a dataset of it.
    source: Source
    name: str
    #: What to convert it with, by the names of the source's own options.
    options: Mapping[str, Any] = {}

    @pytest.fixture
    def raw(self) -> Path:
        """Return a folder with the raw files of the dataset, laid out as at the provider."""
        raise NotImplementedError(f"{type(self).__name__} defines no fixture raw")

    def check_values(self, dataset: Dataset, raw: Path) -> None:
        """Compare all values of the dataset with an independent reading of the raw files."""
        raise NotImplementedError(f"{type(self).__name__} does not check values")

    def raw_files(self, raw: Path) -> list[Path]:
        """Return the files below `raw` that the dataset is made from: each is damaged in turn."""
        return [Path(one.item.url) for one in self.open_reader(raw).raw_objects()]

    def names_file(self, message: str, file: Path) -> bool:
        """Return whether an error message tells which file is damaged."""
        return file.name in message

    # -- what the tests are made of ------------------------------------------------------------------------------------

    def open_reader(self, raw: Path) -> Reader:
        """Return the reader of the dataset, with the raw files in a folder."""
        options = ConvertOptions(extra=self.options)
        return self.source.open(self.name, open_location(os.fspath(raw)), options)

    def make(self, raw: Path, root: Path, listener: Listener | None = None, **request: Any) -> Outcome:
        """Convert the dataset below a root."""
        dataset_id = f"{self.source.name}/{self.name}"
        reader, place = self.open_reader(raw), DatasetPlace(root, dataset_id)
        asked = Request(dataset_id, root=root, options=reader.options, **{"procs": 0, **request})
        return run(reader, place, asked, listener or Listener(), os.fspath(raw))

    # -- the tests -----------------------------------------------------------------------------------------------------

    def test_names_need_no_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> NoReturn:
            raise AssertionError("names, knows and catalogue must not ask the network")

        for name in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, name, refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        names = list(self.source.names())
        assert len(set(names)) == len(names)
        assert all(map(self.source.knows, [*names, self.name]))
        entries = [entry.id for entry in self.source.catalogue()]
        assert len(set(entries)) == len(entries)
        assert all(self.source.knows(entry.removeprefix(f"{self.source.name}/")) for entry in entries)

    def test_values(self, raw: Path, tmp_path: Path) -> None:
        """`check_values`, and what must hold in every dataset: checksums; flags, returns and successors (`rbdata audit`). Raw
        files stay as they are."""
        before = _hashes(raw)
        made = self.make(raw, tmp_path / "made").path
        assert _hashes(raw) == before
        report, audit = verify(made), audit_datasets([Dataset(made)])
        assert report.ok, report
        assert not [finding for finding in audit.findings if finding.severity == "error"], audit.findings
        self.check_values(Dataset(made), raw)

    def test_same_bytes(self, raw: Path, tmp_path: Path) -> None:
        """Made by two processes, and made by a run that was killed (half-way, at its end) and run again: no killed run
        leaves a dataset, and all end with the same bytes."""
        events: list[object] = []
        expected = dataset_content(self.make(raw, tmp_path / "made", _listening(events.append)).path)
        assert dataset_content(self.make(raw, tmp_path / "two", procs=2).path) == expected, "made by two processes"
        for event in (len(events) // 2, len(events) - 1):
            where, root = f"killed at event {event} of {len(events)}", tmp_path / f"killed at {event}"
            _run_and_kill(partial(self.make, raw, root), event)
            folder = DatasetPlace(root, f"{self.source.name}/{self.name}").path
            assert not folder.exists(), f"{where}, it left a dataset"
            assert dataset_content(self.make(raw, root).path) == expected, where
            left = [path.name for path in folder.parent.iterdir() if path != folder and ".lock" not in path.name]
            assert not left, f"{where} and run again, it left {left}"

    def test_damaged_files(self, raw: Path, tmp_path: Path) -> None:
        """A file that was cut is an error that names it, and leaves no dataset: each is cut in its middle, the first one also
        in its first bytes, and before them."""
        for number, file in enumerate(self.raw_files(raw)):
            whole = file.read_bytes()
            for size in [len(whole) // 2, *((min(100, len(whole) // 4), 0) if not number else ())]:
                file.write_bytes(whole[:size])
                root = tmp_path / f"damaged {number} {size}"
                try:
                    with pytest.raises((CorruptSourceError, ChecksumError)) as caught:
                        self.make(raw, root)
                finally:
                    file.write_bytes(whole)
                assert self.names_file(str(caught.value), file), f"{file.name}, cut to {size} bytes: {caught.value}"
                assert not DatasetPlace(root, f"{self.source.name}/{self.name}").path.exists()

    def test_a_dry_run_writes_nothing(self, raw: Path, tmp_path: Path) -> None:
        before = _hashes(tmp_path)
        outcome = self.make(raw, tmp_path / "dry", dry_run=True)
        assert outcome.action == "planned" and outcome.estimate is not None
        assert _hashes(tmp_path) == before and not (tmp_path / "dry").exists()


def _hashes(folder: Path) -> dict[str, str]:
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.rglob("*") if file.is_file()}


def _run_and_kill(make: Callable[[Listener], object], event: int) -> None:
    """Run in a fork that kills itself at this event. Raises AssertionError for another end."""
    process = os.fork()
    if not process:
        left: Iterator[int] = iter(range(event - 1, -1, -1))

        def count(_: object) -> None:
            if not next(left):
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            make(_listening(count))
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it was not killed"


def _listening(on_event: Callable[[object], object]) -> Listener:
    """A listener that tells of every event."""

    def tell(*event: object) -> None:
        on_event(event)

    return replace(Listener(), **{one.name: tell for one in fields(Listener) if one.name != "on_output"})
