"""How much of what a model prints reaches the worker's log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.worker.backends.processes.output import Allowed

_LIMIT = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 3 << 19), st.integers(0, 30)), max_size=20))
def test_each_period_has_its_limit_and_what_is_dropped_is_counted(writes: list[tuple[int, int]]) -> None:
    allowed, now, passed, dropped = Allowed(), 0, 0, 0
    for size, seconds in writes:
        now += seconds * SECOND
        out = allowed.of(b"x" * size, now)
        passed += out.count(b"x")
        if b"bytes of a model's output dropped" in out:
            dropped += int(out[1:].split()[0])
    # A period begins with the first output after the one before.
    assert passed <= _LIMIT * (1 + now // (60 * SECOND))
    rest = allowed.dropped()
    dropped += int(rest[1:].split()[0]) if rest else 0
    assert passed + dropped == sum(size for size, _ in writes)


def test_a_little_output_passes_as_it_is() -> None:
    allowed = Allowed()
    assert allowed.of(b"hello\n", 1) == b"hello\n"
    assert allowed.of(b"y" * (2 << 20), 2) == b"y" * (_LIMIT - 6)
    assert allowed.of(b"more", 3) == b""
    assert allowed.of(b"z", 61 * SECOND).startswith(b"[1048586 bytes of a model's output dropped]\nz")
