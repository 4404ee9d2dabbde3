"""``CoreAway`` fires in a real Prometheus when the core of a divided model hangs, and when it is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from monitored_fleet import until
from prometheus_server import start_rendered

from divided_repository import NAME, write_divided
from server_process import start_server

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

#: Of each division on the edge and in the core: the core is the present one.
_SECONDS = {"core": (0.0, 0.001), "edge": (0.002, 0.0)}
_ANSWERS = "isochrone_division_core_answers"


def test_a_core_that_hangs_and_one_that_is_killed(tmp_path: Path) -> None:
    # The core's part does not depend on its own address, which is known only when it runs.
    write_divided(tmp_path / "first", "127.0.0.1:1", _SECONDS)
    with start_server(tmp_path / "first" / "core", check_exit=False, log_path=tmp_path / "core.log") as core:
        write_divided(tmp_path / "second", core.http_url, _SECONDS)
        with (
            start_server(tmp_path / "second" / "edge", log_path=tmp_path / "edge.log") as edge,
            start_rendered(tmp_path / "prometheus", "--worker", f"127.0.0.1:{edge.metrics_port}") as prometheus,
        ):
            until(lambda: prometheus.values(_ANSWERS, model=NAME) == [1.0], "the core to answer")
            until(lambda: prometheus.readings(_ANSWERS, model=NAME) >= 5, "figures of the division")
            until(lambda: not prometheus.firing("CoreAway"), "silence")
            os.kill(core.pid, signal.SIGSTOP)
            try:
                (found,) = until(lambda: prometheus.firing("CoreAway", model=NAME), "CoreAway of a core that hangs")
                assert NAME in found["annotations"]["summary"]
            finally:
                os.kill(core.pid, signal.SIGCONT)
            until(lambda: not prometheus.firing("CoreAway"), "the end of CoreAway")
            core.kill()
            until(lambda: prometheus.firing("CoreAway", model=NAME), "CoreAway of a core that was killed")
