"""A file that wants a port which another process has is not applied to a fleet that runs on this machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from real_fleets import ask, command, rewritten, small_fleet

from bench.control.running_fleet import GATEWAY


@pytest.mark.long
def test_a_port_of_another_process_refuses_the_file_and_the_fleets_own_do_not(tmp_path: Path) -> None:
    with small_fleet(tmp_path) as fleet, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]

        def another_gateway(document: dict[str, Any]) -> None:
            document["gateways"]["gw2"] = {"listen": f"127.0.0.1:{port}", "metrics_port": -1}

        original = fleet.file.read_text()
        rewritten(fleet, another_gateway)
        for words in (("--dry-run",), ("--yes",)):
            ended = command(fleet, "apply", str(fleet.file), *words)
            assert ended.status == 1
            expected = f"gateways.gw2.listen: expected a free port, given 127.0.0.1:{port}, which another process has"
            assert expected in ended.said
        assert fleet.api.status()["generation"] == 1
        fleet.file.write_text(original)
        # The fleet's own processes hold all of its ports.
        rewritten(fleet, lambda document: document["models"]["solo"].update(slo={"deadline_ms": 5000}))
        assert command(fleet, "apply", str(fleet.file), "--yes").status == 0
        assert ask(fleet.of(GATEWAY)[0].address, "solo").status == 200
