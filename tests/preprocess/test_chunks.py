"""Chunks and batches cover all steps once."""

from __future__ import annotations

from itertools import pairwise

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.preprocess.chunks import chunk_size, cut, cut_sections, split, view_episodes
from storage_tools import make_episodes, table


class TestChunks:
    @settings(max_examples=examples(200), deadline=None)
    @given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 40), st.integers(1, 8), st.booleans())
    def test_cover_everything_once(self, lengths, batch, times, whole):
        episodes = view_episodes(table(make_episodes(lengths)), None, None)
        chunks = cut(episodes, batch * times, whole)
        assert chunks[0].start == 0 and chunks[-1].stop == sum(lengths)
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert all(a.stop == b.start for a, b in pairwise(chunks))
        for chunk in chunks:
            parts = split(chunk, episodes, batch, whole)
            assert [parts[0].start, parts[-1].stop] == [chunk.start, chunk.stop]
            assert all(a.stop == b.start for a, b in pairwise(parts))
            for part in parts:
                start, stop, first, last = part.start, part.stop, part.first, part.last
                assert episodes.starts[first] <= start < episodes.starts[first + 1]
                assert episodes.starts[last - 1] < stop <= episodes.starts[last]
                if whole:
                    assert (start, stop) == (episodes.starts[first], episodes.starts[last])
                    assert stop - start <= batch or last - first == 1
                else:
                    assert stop - start <= batch

    @settings(max_examples=examples(30), deadline=None)
    @given(
        st.lists(st.integers(1, 30), min_size=1, max_size=40),
        st.integers(1, 40),
        st.integers(1, 8),
        st.booleans(),
    )
    def test_whole_batches_or_episodes_of_a_section(self, lengths, batch, times, whole):
        """Chunks cover all sections, and the batches are those of the sections."""
        episodes = view_episodes(table(make_episodes(lengths)), None, None)
        sections = cut(episodes, batch * times, whole)
        size = chunk_size(sum(lengths), batch, batch * times, whole)
        chunks = cut_sections(sections, episodes, size, whole)
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert all(a.stop == b.start for a, b in pairwise(chunks))
        assert {section.start for section in sections} <= {chunk.start for chunk in chunks}
        unit = 1 if whole else batch

        def units(pieces):
            return [(one.start, one.stop) for piece in pieces for one in split(piece, episodes, unit, whole)]

        assert units(chunks) == units(sections)
