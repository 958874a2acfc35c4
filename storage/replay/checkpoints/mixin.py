"""What a buffer does beyond its own process: states, checkpoints, copies, shares of data-parallel training.

States and copies hold the state of the order of batches (see `batch_order`), never batches that are prefetched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import parent_process
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from typing_extensions import Self

from ....errors import RbdataError, UsageError, reason
from ..argument_checks import check_batch_size, check_consumption, make_generator, rank_seed
from ..batch_order import OrderState, check_count
from ..locking import LockMixin
from ..pipeline import BatchSpec
from ..samplers.uniform import Sampler
from ..storages.storage import Storage
from ..transforms.chain import Transforms, share_state
from ..writers.base import Writer


class CheckpointMixin(LockMixin):
    """The part of `ReplayBuffer` that saves, loads, shares and copies it."""

    _storage: Storage
    _sampler: Sampler
    _writer: Writer
    _transforms: Transforms
    _rng: torch.Generator
    _spec: BatchSpec
    _rank: int
    _world: int
    _save_hooks: list[Any]
    _load_hooks: list[Any]
    _unmade: Any
    shared: bool
    batch_size: int | None

    def _make_pipeline(self, generator: torch.Generator) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Have the stored data go through ``hook(data, path=...)`` before `dumps` writes them (see `ted_hooks`)."""
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Have the data that `loads` reads go through ``hook(data, out=...)``."""
        self._load_hooks.append(hook)

    # -- saving ------------------------------------------------------------------------------------------------------

    def dumps(self, path: Any) -> None:
        """Write everything to a folder; see `checkpoint`."""
        from .checkpoint import dump

        with self._saving:
            dump(self, path)

    def loads(self, path: Any) -> None:
        """Read what `dumps` wrote, into a buffer made of the same parts; see `checkpoint`."""
        from .checkpoint import load

        self._check_process()
        with self._saving, self._exclusive():
            load(self, path)

    save = dump = dumps
    load = loads

    def state_dict(self) -> dict[str, Any]:
        """Everything, in memory: copies of the data, and the state of the order of batches; by TorchRL's names."""
        with self._lock, self._storage.read_lock:
            order = self._pipeline.state()
            return {
                "_storage": self._storage.state_dict(),
                "_sampler": self._sampler.state_dict(),
                "_writer": self._writer.state_dict(),
                "_transforms": self._transforms.state_dict(),
                "_batch_size": self.batch_size,
                "_rng": (order.generator, "cpu"),
                "position": order.sampler,
                "batches": order.batches,
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, here or in TorchRL 0.14, of which batches that were prefetched are dropped.

        Raises UsageError or SchemaError when it belongs to another buffer, which is then as it was before.
        """
        state = {name.removeprefix("_"): value for name, value in state_dict.items()}
        missing = [name for name in ("storage", "sampler", "writer", "transforms", "batch_size") if name not in state]
        if missing:
            raise UsageError(f"the state lacks {', '.join(missing)}: it is not a buffer's")
        self._check_process()
        storage, cursor = state["storage"], state["writer"].get("_cursor")
        if "position" not in state and cursor:  # of TorchRL, whose storages do not say which row was written last
            storage = {"newest": int(cursor) - 1, **storage}
        generator = state["generator"] if "generator" in state else (state.get("rng") or (None,))[0]
        batches, size = check_count(state.get("batches", 0)), state["batch_size"]
        size = None if size is None else check_batch_size(size)

        def order() -> OrderState:
            now = self._rng.get_state() if generator is None else generator
            return OrderState(now, state.get("position", self._sampler.position()), batches)

        with self._exclusive():
            try:
                self._restore(state, order, lambda: self._storage.load_state_dict(storage))
            except RbdataError:
                raise
            except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
                what = f"it has no {error}" if isinstance(error, KeyError) else reason(error)
                raise UsageError(f"the state is that of a buffer made of other parts: {what}") from error
            self.batch_size = size

    def _restore(
        self, states: dict[str, Any], order: Callable[[], OrderState | None], load_storage: Callable[[], None]
    ) -> None:
        """Load the states of the parts, go to the ``order``, and load the storage last: it writes nothing when what it is
        given does not fit.

        After an error the buffer is as it was.
        """
        every: dict[str, Any] = {"sampler": self._sampler, "transforms": self._transforms, "writer": self._writer}
        parts = {name: part for name, part in every.items() if name in states}
        self._pipeline.rewind()
        here, before = self._pipeline.state(), {name: part.state_dict() for name, part in parts.items()}
        try:
            for name, part in parts.items():
                part.load_state_dict(states[name])
            there = order()
            if there is not None:  # after the sampler's state, which may be that of draws made ahead of time
                self._pipeline.go_to(there)
            load_storage()
            if "writer" in states:  # its cursor counts where the storage's state has none
                self._writer.load_state_dict(states["writer"])
        except BaseException:
            for name, part in parts.items():
                part.load_state_dict(before[name])
            self._pipeline.go_to(here)
            raise

    # -- processes ---------------------------------------------------------------------------------------------------

    def share(self, shared: bool = True) -> Self:
        """Put the storage and the write state of transforms in shared memory. Warns where the storage cannot be shared."""
        if not shared:
            self.shared = False
            return self
        check_consumption(self._sampler, self._storage, self._writer, shared=True)
        if hasattr(self._storage, "share_memory_"):
            self._share_storage()
        elif not self._storage.immutable:
            warnings.warn(f"a {type(self._storage).__name__} is copied to other processes, not shared", stacklevel=2)
        share_state(self._transforms)
        self.shared = True
        return self

    def _share_storage(self) -> None:
        if not self._storage.is_shared:
            with self._writing():  # memory moves
                self._storage.share_memory_()  # type: ignore[attr-defined]

    def split(self, rank: int, world_size: int, epoch: int = 0) -> None:
        """Make this buffer the share ``rank`` of ``world_size`` of what it has been: what a data loader's worker does.

        ``epoch``: of the iterators of the loader, 0 for the first. Each has another pass, or other numbers of the seed.
        """
        check_consumption(self._sampler, self._storage, self._writer, world_size=world_size)
        seed = int(self._rng.initial_seed())
        with self._exclusive():
            self._rank, self._world = self._rank * world_size + rank, self._world * world_size
            passes = getattr(self._sampler, "passes", None)
            if passes is not None and passes.position()[0] < 0:
                passes.seed(seed)
            if passes is not None and epoch:
                passes.skip(epoch)
            own = rank_seed(seed, self._rank)
            self._make_pipeline(make_generator(rank_seed(own, epoch) if epoch else own))

    def _change_spec(self, **changes: Any) -> None:
        with self._exclusive():
            self._spec = replace(self._spec, **changes)
            self._make_pipeline(self._rng)

    def as_iterable(self, batches: int | None = None) -> Any:
        """A ``torch.utils.data.IterableDataset`` of this buffer's batches; see `iterable`."""
        from ..iterable import ReplayIterable

        return ReplayIterable(self, batches)

    def as_map(self) -> Any:
        """A map-style ``torch.utils.data.Dataset`` of this buffer's records; see `iterable`."""
        from ..iterable import ReplayMap

        return ReplayMap(self)

    def close(self) -> None:
        """Stop the prefetch threads, if there are any; sampling starts them again."""
        with self._exclusive():
            self._pipeline.close()

    service_backend = "direct"
    is_alive = True

    def client(self) -> Self:
        """The buffer itself."""
        return self

    start = client

    def shutdown(self, timeout: float | None = None) -> None:
        """As `close`; ``is_alive`` is False afterwards."""
        self.close()
        self.is_alive = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._unmade is not None:
            return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_saving")}
        if get_spawning_popen() is not None and getattr(self._storage, "initialized", False):
            self._share_storage()  # the pickler would do it, beside threads that write
        with self._lock:
            order, seed = self._pipeline.state(), self._rng.initial_seed()
        left_out = ("_lock", "_saving", "_pipeline", "_rng")
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        return {**state, "_order": (order.generator.numpy().tobytes(), order.sampler, seed, order.batches)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator, position, seed, batches = state.pop("_order", (None, None, None, 0))
        self.__dict__.update(state)
        self._make_lock()
        if self._unmade is not None:
            return
        if parent_process() is not None:  # a process of multiprocessing: other processes have the same rows
            self._made_in = state["_made_in"]
        self._make_pipeline(make_generator(seed))
        self._pipeline.go_to(OrderState(torch.frombuffer(bytearray(generator), dtype=torch.uint8), position, batches))
