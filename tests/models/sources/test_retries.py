"""When a failed call is repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.models.sources.retries import Patience, is_lasting


@given(st.integers(1, 1000), st.floats(0, 60), st.floats(0, 1))
def test_pauses_are_bounded_and_end_within_the_patience(failures: int, elapsed: float, random: float) -> None:
    pause = Patience(60).pause(failures, elapsed, random)
    if pause is None:
        assert elapsed > 55
    else:
        assert 0.1 <= pause <= 5
        assert elapsed + pause <= 60


def test_pauses_grow_and_half_of_each_is_random() -> None:
    patience = Patience(60)
    assert [patience.pause(failures, 0, 1) for failures in (1, 2, 3, 4)] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert patience.pause(1, 0, 0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "lasting"),
    [
        ("Server returned non-2xx status code: 503 Service Unavailable: SlowDown", False),
        ("Server returned non-2xx status code: 429 Too Many Requests", False),
        ("Server returned non-2xx status code: 408 Request Timeout", False),
        ("Server returned non-2xx status code: 500 Internal Server Error", False),
        ("Server returned non-2xx status code: 403 Forbidden", True),
        ("Server returned non-2xx status code: 404 Not Found: NoSuchBucket", True),
        ("status code: 400 Bad Request: <Error><Code>RequestTimeout</Code></Error>", False),
        ("status code: 400 Bad Request: <?xml?>\n<Error>\n<Code>RequestTimeout</Code></Error>", False),
        ("status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>", True),
        ("status code: 400 Bad Request: <Error><Code>InvalidRequest</Code></Error>", True),
        ("HTTP error: error sending request", False),
        ("HTTP error: builder error", True),
        ("Error performing PUT http://169.254.169.254/latest/api/token in 1ms", False),
        ("http://metadata.google.internal/computeMetadata in 1ms: status code: 404 Not Found", False),
    ],
)
def test_what_would_fail_again_is_not_repeated(text: str, lasting: bool) -> None:
    assert is_lasting(RuntimeError(text)) is lasting
