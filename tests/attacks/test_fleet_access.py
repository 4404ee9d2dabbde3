"""A fleet with an access file: its gateways and its control API ask every caller, and it works otherwise."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

from guarded_servers import ask, inference, write_access

from bench.ports import ports_in_a_row
from sample_models import write_models
from up_process import ISOCHRONE, SECONDS, start_up


def test_a_fleet_asks_every_caller(tmp_path: Path, tried: Counter[str]) -> None:
    tokens = write_access(tmp_path / "access.yaml")
    write_models(tmp_path / "models", "identity_fp32")
    control, gateway = ports_in_a_row(1), ports_in_a_row(1)
    (tmp_path / "fleet.yaml").write_text(
        f"""
name: guarded
repository: models
control: {{listen: "127.0.0.1:{control}"}}
gateways: {{front: {{listen: "127.0.0.1:{gateway}", metrics_port: 0}}}}
pools: {{cpu: {{workers: 1, first_port: 0}}}}
security: {{access: access.yaml}}
models: {{identity_fp32: {{version: 1}}}}
"""
    )

    def command(token: str, *words: str) -> tuple[int, str]:
        found = subprocess.run(
            [*ISOCHRONE, *words, "--api", f"http://127.0.0.1:{control}"],
            env={**os.environ, "ISOCHRONE_API_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return found.returncode, found.stdout + found.stderr

    with start_up(str(tmp_path / "fleet.yaml"), log=tmp_path / "up.log") as up:
        said = up.wait_for("Ctrl-C stops everything")
        assert f"http://127.0.0.1:{control}/console/" in said
        path = "/v2/models/identity_fp32/infer"
        assert ask(gateway, "POST", path, {"authorization": f"Bearer {tokens['caller']}"}, inference())[0] == 200
        for caller, status in (("", 401), ("expired", 401), ("revoked", 401), ("reader", 403), ("nothing", 403)):
            headers = {"authorization": f"Bearer {tokens[caller]}"} if caller else {}
            assert ask(gateway, "POST", path, headers, inference())[0] == status, caller
            answer = ask(control, "GET", "/console/history", headers)
            assert answer[0] == (200 if caller == "reader" else 403 if caller == "nothing" else 401)
            tried["a fleet's gateway and console"] += 2
        assert command(tokens["reader"], "status")[0] == 0
        for caller, words in (
            ("", "status"),
            ("caller", "status"),
            ("reader", "drain cpu-1"),
            ("operator", "forget front"),
        ):
            code, text = command(tokens.get(caller, ""), *words.split())
            assert code != 0, (caller, words)
            assert "needs a credential" in text or "does not allow fleet-" in text, text
            tried["commands on a fleet without the right"] += 1
        code, text = command(tokens["operator"], "drain", "cpu-1")
        assert code == 0, text
        for process in tmp_path.glob("state/logs/*.log"):
            assert not any(token in process.read_text() for token in tokens.values())


def test_a_wrong_access_file_is_an_error_of_the_fleet_file(tmp_path: Path) -> None:
    write_models(tmp_path / "models", "identity_fp32")
    (tmp_path / "fleet.yaml").write_text("name: g\nrepository: models\nsecurity: {access: access.yaml}\n")
    for text, words in (
        (None, "security.access: expected a file at"),
        ("roles: {r: [{may: [all]}]}", "security.access: expected an access file without errors, given"),
    ):
        if text is not None:
            (tmp_path / "access.yaml").write_text(text)
        found = subprocess.run(
            [*ISOCHRONE, "validate", str(tmp_path / "fleet.yaml")], capture_output=True, text=True, timeout=SECONDS
        )
        assert found.returncode == 1
        assert words in " ".join((found.stdout + found.stderr).split()), found.stdout
