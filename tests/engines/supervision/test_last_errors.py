"""Which line of a dead process's log is shown as its error."""

from __future__ import annotations

import pytest

from isochrone.engines.supervision.last_errors import last_error

INFO = "2026-11-15 18:34:44 [info     ] model ready                    model=m versions=[2]"
ERROR = "2026-11-15 18:34:44 [error    ] model failed to load           error=no such file"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], ""),
        ([INFO], ""),
        ([INFO, "Killed"], "Killed"),
        (["Killed", INFO], ""),
        ([ERROR, INFO, "hello"], ERROR),
        (["2026-11-15T18:34:44.123Z [info] the error rate is 0"], ""),
        (['{"event": "x", "level": "info"}', '{"event": "an error", "level": "warning"}'], ""),
        (['{"event": "x", "level": "error"}', INFO], '{"event": "x", "level": "error"}'),
        (
            [INFO, "Traceback (most recent call last):", '  File "x"', "ImportError: no x"],
            "ImportError: no x",
        ),
        (["my.pkg.TooLarge: 3", "KeyError: 'x'", "  raise KeyError"], "KeyError: 'x'"),
        (
            ["Fatal Python error: Segmentation fault", "", "Current thread 0x1 (most recent call first):", "  File x"],
            "Fatal Python error: Segmentation fault",
        ),
        (["isochrone serve: port 8000 is in use", INFO], "isochrone serve: port 8000 is in use"),
    ],
)
def test_the_last_line_that_reports_an_error_is_found(lines: list[str], found: str) -> None:
    assert last_error(lines) == found
