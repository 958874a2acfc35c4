"""HDF5 files whose texts state more than there is. Everything else is tested by whole conversions (D4RL, Minari)."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from rbdata.datasets.formats.hdf5_checks import check_lengths, check_storage
from rbdata.errors import CorruptSourceError


@pytest.mark.parametrize("stored", ["contiguous", "chunks", "packed", "shuffled", "square"])
@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_texts_that_state_too_much(tmp_path, stored, kind):
    """HDF5 allocates the length that is stated, up to 32 GB, before it looks whether there are as many bytes."""
    options = {"contiguous": {}, "square": {"chunks": (3, 2)}}.get(stored, {"chunks": (3,)})
    options |= {"packed": {"compression": "gzip"}, "shuffled": {"compression": "gzip", "shuffle": True}}.get(stored, {})
    shape = (5, 3) if stored == "square" else (5,)
    with h5py.File(tmp_path / "x", "w") as file:
        dtype = h5py.string_dtype() if kind == "text" else h5py.vlen_dtype(np.float64)
        made = file.create_dataset("x", shape, dtype, **options)
        for place in np.ndindex(shape):
            made[place] = "a" * place[0] if kind == "text" else np.zeros(place[0])
        file.flush()
        check_storage(made.id, "x", least=0, size=1 << 20)
        check_lengths(made.id, 0, 5, 1000, "x")
        check_lengths(made.id, 1, 2, 24, "x")
        with pytest.raises(CorruptSourceError, match="x states values of"):
            check_lengths(made.id, 3, 5, 3, "x")
