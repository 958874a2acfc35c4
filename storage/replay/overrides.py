"""Methods that users override in subclasses: they act as in TorchRL, or the class is refused when a buffer is made.

Some methods have two names here, ours and TorchRL's (``empty`` and ``_empty``). `link` makes both names of a subclass refer to
the method that the subclass defines. TorchRL's classes call further methods that nothing here calls: `check_part` refuses
classes that define one of these, because the method would have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import UsageError

ROOT = __name__.partition(".")[0]

#: Marks methods that `link` made from the one that a class defines.
MADE = "_made_from"

#: Results of `is_overridden` by class and name, with the attribute that was examined: classes may be changed later.
_known: dict[tuple[type, str], tuple[Any, bool]] = {}
_MOST_KNOWN = 1024


def _is_defined_by_users(cls: type, name: str) -> bool:
    """Whether the definition of a name for ``cls`` comes from a class or a function outside of this package."""
    for base in cls.__mro__[:-1]:
        value = vars(base).get(name, _NOTHING)
        if value is not _NOTHING and not hasattr(value, MADE):
            return base.__module__.partition(".")[0] != ROOT or _module_of(value).partition(".")[0] != ROOT
    return False


_NOTHING = object()


def _module_of(value: Any) -> str:
    """The module that defines a method; a module of this package for objects that are not functions."""
    function = getattr(value, "fget", value)
    module: str = getattr(getattr(function, "__func__", function), "__globals__", {}).get("__name__", ROOT)
    return module


def is_overridden(part: Any, name: str) -> bool:
    """Whether a subclass from outside of this package, or the instance itself, defines a method of this name."""
    kind: Any = type(part)
    value = getattr(kind, name, None)
    answer = _known.get((kind, name))
    if answer is None or answer[0] is not value:
        if len(_known) >= _MOST_KNOWN:  # notebooks may redefine classes many times
            _known.clear()
        answer = _known[kind, name] = (value, _is_defined_by_users(kind, name))
    return answer[1] or name in part.__dict__


def link(cls: type, ours: str, theirs: str, make: Callable[[str, Any], Any] | None = None) -> None:
    """Let both names of a method refer to the method that ``cls`` (or the first of its bases) defines.

    ``make`` makes the other method from the name and the definition of the given one; by default both are the same function.
    """
    first, second = (_place(cls, name) for name in (ours, theirs))
    if first == second:
        return
    given, other = (ours, theirs) if first < second else (theirs, ours)
    value = vars(cls.__mro__[min(first, second)])[given]
    type.__setattr__(cls, other, value if make is None else make(given, value))


def _place(cls: type, name: str) -> int:
    bases = cls.__mro__
    return next((place for place, base in enumerate(bases) if name in vars(base)), len(bases))


def is_own_code(function: Any) -> bool:
    """Whether a callable, or the class of an object, comes from outside of this package."""
    module: str = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] != ROOT


def reads_by_get(storage: Any) -> bool:
    """Whether records of a storage must be read by a ``get`` that a user defined instead of leaf by leaf."""
    return is_overridden(storage, "get") and not is_overridden(storage, "fields")


#: Methods that TorchRL's classes (0.14) call but this package does not, by class, with their replacements.
_UNUSED: dict[str, tuple[str, str]] = {
    "Sampler": (
        "override sample(storage, batch_size)",
        "_get_sample_list _single_sample _get_index _finalize_index _sample_slices _sample_fragmented _adjusted_batch_size "
        "_tensor_slices_from_startend _get_stop_and_length _find_start_stop_traj _end_to_start_stop _start_to_end "
        "_end_signal_from_keys _resolve_traj_key _maybe_emit_init_marker _padded_indices _preceding_stop_idx _end_stream "
        "_num_sampleable _pop_consumed_indices _ensure_state _mark_indices_live _update_remaining_batches "
        "_rebuild_free_indices _compact_free_indices _index_to_tensor _get_versions _maybe_erase_max_priority _tree_argmax "
        "_retransform_priority_trees _recompute_max_priority_from_tree _maybe_init_from_storage _add_or_extend",
    ),
    "Storage": (
        "override get(index) and set(cursor, data, set_cursor=True)",
        "_get_item _get_slice _get_list _set_item _set_slice _contains_int _rand_given_ndim _rand_given_ndim_impl "
        "_compress_item _decompress_item _default_compression_fn _default_decompression_fn to_bytestream "
        "_max_size_along_dim0 _get_new_len _set_tree_map _init_standard _init_coordinator _set_last_cursor "
        "_conditional_patch_leaf _validate_conditional_patch _apply_conditional_patch attach",
    ),
    "Writer": (
        "override add(data) and extend(data)",
        "get_insert_index _replicate_index _bump_generation _ensure_generation _mark_update_entities "
        "_update_storage_len_for_write_at",
    ),
    "ReplayBuffer": (
        "override sample(), add() and extend(), or give a sampler, storage, writer or transform of your own",
        "_add _extend _transpose _get_batch_size _get_collate_fn _cat_write_indices _cursor_write_indices "
        "_get_priority_item _get_priority_vector _set_index_in_td _maybe_make_storage _maybe_make_sampler "
        "_maybe_make_writer _maybe_make_transform _initialize_prioritized_sampler _catch_up_prioritized_sampler "
        "_stage_conditional_update submit_update_if_present synchronize _get_episode_ends _build_episode_cache "
        "_get_episode_range _sample_goal_indices",
    ),
}
UNUSED = {kind: (instead, frozenset(names.split())) for kind, (instead, names) in _UNUSED.items()}


#: Abstract members that a storage must define; a read-only storage needs only the first three.
_NEEDED = ("get", "filled", "version", "newest", "set", "seek")


def check_part(part: Any) -> None:
    """Raise UsageError if the class of a buffer or part defines methods that are never called, or lacks required ones."""
    kind: Any = type(part)
    for base in kind.__mro__:
        instead, unused = UNUSED.get(base.__name__, ("", frozenset()))
        if base.__module__.partition(".")[0] != ROOT or not unused:
            continue
        if names := sorted(name for name in unused if name in vars(part) or _is_defined_by_users(kind, name)):
            method = f"{type(part).__name__}.{names[0]}()"
            message = f"{method} would never be called: TorchRL's {base.__name__} has it, and this one has not"
            raise UsageError(message, hint=instead)
        needed = _NEEDED[:3] if getattr(part, "immutable", False) else _NEEDED
        missing = [name for name in needed if base.__name__ == "Storage" and getattr(kind, name) is vars(base)[name]]
        if missing:
            message = f"{kind.__name__} lacks {', '.join(missing)}: a buffer needs more of a storage than TorchRL does"
            hint = "define them (see `Storage`), or derive the class from ListStorage or LazyTensorStorage"
            raise UsageError(message, hint=hint)
