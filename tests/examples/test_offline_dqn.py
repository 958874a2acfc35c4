"""The example that trains: from the recorded folder alone to a better player than the one recorded."""

from __future__ import annotations

import pytest


def test_offline_dqn_beats_its_data(tmp_path, capsys):
    pytest.importorskip("gymnasium")
    import offline_dqn

    args = offline_dqn.Args(root=str(tmp_path), steps=8_000, updates=1_200, eval_episodes=4)
    offline_dqn.main(args)
    last = capsys.readouterr().out.splitlines()[-2]  # "the data: 86, learnt from them: 477 of 500"
    data, learnt = (int(part.split()[0]) for part in last.replace("the data: ", "").split(", learnt from them: "))
    assert learnt > 1.5 * data, last
