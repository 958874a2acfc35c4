"""Publishes a dataset as a dataset repository of the Hugging Face Hub, with huggingface_hub (extra ``hub``).

    push("my/x", "hf://datasets/me/x", licence="mit")

The repository holds the dataset's files at its top and the card as README.md; a README.md written by someone else stays,
unless with ``force``. One commit names all files: the client uploads the large ones first, and the Hub keeps them before a
commit names them. So readers see the whole dataset or nothing, and after an interruption the next push uploads only the files
that the Hub lacks. `fetch.hugging_face` reads such repositories.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .. import settings
from ..errors import (
    ChecksumError,
    DatasetBusyError,
    ForbiddenError,
    MissingExtraError,
    TransientFetchError,
    UsageError,
)
from ..storage.episodes import open_episodes
from ..storage.manifest import FILENAME, LARGEST_MANIFEST, read_manifest
from ..storage.snapshot import state_of
from . import local
from .card.overview import overview
from .card.writers import MARK, hub_licence, make_readme
from .copies import find_copy
from .fetch import FetchOptions, RemoteObject, read_all
from .fetch.hugging_face import HubLocation, endpoint, read_token
from .fetch.location import is_hub_dataset
from .fetch.retries import call_with_retries, fetch_error, retry_after_seconds, status_error
from .fetch.upload import LocalFile
from .mirrors import CONNECTIONS, OnProgress, Pushed, check_replaceable, check_undamaged

CARD = "README.md"
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_AGAIN = "push again: what the Hub has already is not sent again"


def stated_licence(dataset_id: str, root: Path | None = None) -> str | None:
    """The licence that the source of a dataset states, as the Hub names it; None if it must be asked for."""
    licence = hub_licence(read_manifest(local.find(dataset_id, settings.root(root))).licence)
    return None if licence in ("unknown", "other") else licence


def push(
    dataset_id: str,
    url: str,
    *,
    licence: str | None = None,
    public: bool = False,
    root: Path | None = None,
    force: bool = False,
    fetch: FetchOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Pushed:
    """Publish a converted dataset in the repository ``hf://datasets/owner/name``, which is created if it does not exist.

    ``licence`` is the Hub's name of a licence (https://huggingface.co/docs/hub/repositories-licenses), by default of the
    licence that the source states. A new repository is private unless ``public``. ``force`` replaces a different dataset there.
    A push to ``@branch`` commits to that branch, which must exist. The token is that of HF_TOKEN or `hf auth login`.

    Raises UsageError for a URL of another kind, a missing licence, or a repository with the other visibility;
    MissingExtraError; ForbiddenError without a token, or with a token that may not write; DatasetExistsError,
    DamagedDatasetError, DatasetBusyError as `mirrors.push`; ChecksumError if another commit is made meanwhile;
    and the fetch errors.
    """
    if not is_hub_dataset(url):
        raise UsageError(f"{url} is not a dataset repository of the Hub", hint="push to hf://datasets/owner/name")
    location = HubLocation.from_url(url, fetch or FetchOptions())
    if location.url.count("/") != 4 or re.fullmatch("[0-9a-f]{40}", location.revision):
        hint = "push to hf://datasets/owner/name, or to a branch: hf://datasets/owner/name@branch"
        raise UsageError(f"{url} is not a repository to push to", hint=hint)
    licence = licence or stated_licence(dataset_id, root)
    if licence is None:
        hint = "pass --license, such as mit, cc-by-4.0 or other: https://huggingface.co/docs/hub/repositories-licenses"
        raise UsageError(f"the source of {dataset_id} states no licence that the Hub knows", hint=hint)
    if not _LICENCE.fullmatch(licence):
        raise UsageError(f"{licence!r} is not the Hub's name of a licence", hint="names are such as mit and cc-by-4.0")
    hub = _Hub(location)
    return _push(local.find(dataset_id, settings.root(root)), hub, licence, public, force, on_progress)


def _push(folder: Path, hub: _Hub, licence: str, public: bool, force: bool, on_progress: OnProgress | None) -> Pushed:
    before, place = state_of(folder), hub.url
    manifest = read_manifest(folder)
    check_undamaged(folder)
    table = open_episodes(folder, manifest.episodes, manifest.steps)
    readme = make_readme(manifest, overview(folder, manifest, table), url=place, licence=licence)
    there = hub.open(private=not public)
    existing = find_copy(there)
    check_replaceable(existing, manifest, place, force)
    listed = dict(there.tree())
    card: bytes | None = None
    if force or CARD not in listed or MARK.encode() in read_all(there, listed[CARD], limit_bytes=LARGEST_MANIFEST):
        card = readme.encode()
    files = {name: LocalFile(folder / name) for name in (*sorted(manifest.files), FILENAME)}
    missing = [name for name, file in files.items() if not _holds(listed.get(name), file)]
    stale = sorted(set(existing.manifest.files if existing else ()) & set(listed) - set(files))
    total, sent_bytes = sum(file.size for file in files.values()), sum(files[name].size for name in missing)
    if on_progress is not None:
        on_progress(FILENAME, total - sent_bytes, total)
    added: dict[str, Path | bytes] = {name: files[name].path for name in missing}
    if card:
        added[CARD] = card
    commit = hub.commit(added, stale, f"Push {manifest.id}", parent=there.revision)
    if state_of(folder) != before:
        raise DatasetBusyError(f"{folder} was replaced while it was pushed", hint=_AGAIN)
    if on_progress is not None:
        on_progress(FILENAME, total, total)
    stored = dict(HubLocation.from_url(f"{place.partition('@')[0]}@{commit}", hub.location.options).tree())
    for name, file in files.items():
        if not _holds(stored.get(name), file):
            raise ChecksumError(f"{place}/{name}: checksum mismatch after the upload", hint=_AGAIN)
    return Pushed(manifest.id, "dataset", place, len(files), total, len(missing), sent_bytes)


def _holds(stored: RemoteObject | None, file: LocalFile) -> bool:
    """Whether the Hub states the size and the checksum of a file: sha256 in large-file storage, else git's."""
    if stored is None or stored.size != file.size:
        return False
    return any(value == file.checksum(name) for name, value in stored.checksums.items())


class _Hub:
    """A repository that is written to, by huggingface_hub's client."""

    def __init__(self, location: HubLocation) -> None:
        try:
            import huggingface_hub
        except ImportError as error:
            message = "a push to the Hub needs huggingface_hub"
            raise MissingExtraError(message, hint="pip install 'rbdata[hub]'") from error
        token = read_token()
        if not token:
            hint = "set HF_TOKEN to a token that may write, or log in with `hf auth login`"
            raise ForbiddenError(f"{location.url}: there is no token of the Hub", hint=hint)
        self.location, self.url, self._token = location, location.url, token
        self._client: Any = huggingface_hub
        self._api = huggingface_hub.HfApi(endpoint=endpoint(), token=token, library_name="rbdata")
        self._repository: dict[str, Any] = {"repo_id": location.repository, "repo_type": "dataset"}

    def open(self, *, private: bool) -> HubLocation:
        """The current commit of the repository, which is created if it does not exist.

        Raises UsageError if it exists with the other visibility: a push neither publishes nor hides a repository.
        """
        from huggingface_hub.errors import RepositoryNotFoundError

        def find() -> Any:
            try:
                return self._api.repo_info(**self._repository)
            except RepositoryNotFoundError:
                return None

        found = self._call(find)
        if found is None:
            self._call(lambda: self._api.create_repo(**self._repository, private=private, exist_ok=True))
        elif bool(found.private) != private:
            is_now = "private" if found.private else "public"
            hint = "push without --public" if found.private else "push with --public"
            hint += f", or change it at {endpoint()}/datasets/{self.location.repository}/settings"
            raise UsageError(f"{self.url} exists and is {is_now}", hint=hint)
        return HubLocation.from_url(self.url, self.location.options).pinned()

    def commit(self, added: Mapping[str, Path | bytes], stale: Sequence[str], message: str, *, parent: str) -> str:
        """Make the next commit of files, and without the stale ones; returns its id.

        The client has the card checked first, then sends large files to the Hub's storage, which keeps them.
        """
        operations = [self._client.CommitOperationAdd(name, content) for name, content in added.items()]
        operations += [self._client.CommitOperationDelete(name, is_folder=False) for name in stale]
        how = {"commit_message": message, "parent_commit": parent, "num_threads": CONNECTIONS}
        make = partial(self._api.create_commit, **self._repository, revision=self.location.revision, **how)
        return str(self._call(lambda: make(operations=operations), retry=False).oid)

    def _call(self, call: Callable[[], Any], *, retry: bool = True) -> Any:
        """The result of a call of the client; its errors are translated to rbdata's. The client itself retries uploads
        (``retry=False``)."""

        def once() -> Any:
            with _silent(self._client):
                try:
                    return call()
                except Exception as error:
                    raise self._translate(error) from error

        return call_with_retries(once, url=self.url, options=self.location.options) if retry else once()

    def _translate(self, error: Exception) -> Exception:
        """rbdata's error for one of the client, which wraps those of requests in others."""
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError

        if type(error) is ValueError:
            text = " ".join(str(error).replace(self._token, "***").split())[:300]
            hint = "check --license: https://huggingface.co/docs/hub/repositories-licenses"
            return UsageError(f"{self.url}: the Hub refuses the card: {text}", hint=hint)
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, (HfHubHTTPError, HFValidationError)):
            cause = cause.__cause__
        if isinstance(cause, HFValidationError):
            return UsageError(f"{self.url} is not the name of a repository", hint="names have letters, digits, -_.")
        if not isinstance(cause, HfHubHTTPError):
            failure = fetch_error(cause if isinstance(cause, Exception) else error, self.url)
            failure.hint = _AGAIN
            return failure
        status, headers = cause.response.status_code, cause.response.headers
        if status == 412:
            return ChecksumError(f"{self.url}: another commit was made to it during the push", hint=_AGAIN)
        text = (cause.server_message or "").replace(self._token, "***")[:200]
        failure = status_error(status, self.url, headers, explanation=text)
        wait = retry_after_seconds(headers)
        if isinstance(cause, GatedRepoError):
            failure.hint = f"accept the terms at {endpoint()}/datasets/{self.location.repository}"
        elif status in (401, 403):
            failure.hint = "check HF_TOKEN or `hf auth login`: the token must be valid and may write to this owner"
        elif status == 404:
            failure.hint = "check the owner, the name and the branch, and that the token may read the repository"
        elif isinstance(failure, TransientFetchError):
            failure.hint = _AGAIN if wait is None else f"the Hub asks to wait {wait:.0f} s; then {_AGAIN}"
        return failure


@contextmanager
def _silent(client: Any) -> Iterator[None]:
    """The client draws no progress bars and logs nothing below errors: rbdata draws its own."""
    bars = client.utils.are_progress_bars_disabled()
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    client.utils.disable_progress_bars()
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if not bars:
            client.utils.enable_progress_bars()
