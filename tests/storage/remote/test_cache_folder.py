"""Claims of blocks, which threads and processes take."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rbdata.storage.remote.cache_folder import Claims


@pytest.fixture
def many_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_no_claim_outlives_its_release(tmp_path, many_switches):
    """Threads that open the file of claims at one time once left one of the claims for ever: who wanted the block then hung."""
    with ThreadPoolExecutor(8) as pool:
        for _ in range(100):
            claims, together = Claims(tmp_path), threading.Barrier(8)

            def take_and_release(number, claims=claims, together=together):
                together.wait()
                assert claims.take(number)
                claims.release(number)

            list(pool.map(take_and_release, range(8)))
            other = Claims(tmp_path)
            for number in range(8):
                assert other.take(number)
                other.release(number)


def test_a_claim_ends_with_its_process(tmp_path):
    claims = Claims(tmp_path)
    claims.release(0)  # the file is open before the fork
    begun, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(begun[1], b"1" if claims.take(0) else b"0")
        os.read(go_on[0], 1)
        os._exit(0)
    assert os.read(begun[0], 1) == b"1"
    assert not claims.take(0) and claims.take(1)
    os.write(go_on[1], b"1")
    os.waitpid(child, 0)
    assert claims.take(0)
    for end in (*begun, *go_on):
        os.close(end)
