"""A real Prometheus server with a rendered configuration, in a hurry: pages are read and rules evaluated every second,
and an alert fires as soon as its condition has held for a second. Conditions and limits stay as they are rendered."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from bench.ports import ports_in_a_row
from isochrone.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 60.0


class Prometheus:
    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **query: str) -> Any:
        words = f"?{urllib.parse.urlencode(query)}" if query else ""
        with urllib.request.urlopen(f"{self._address}/api/v1/{path}{words}", timeout=_SECONDS) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/-/ready", timeout=_SECONDS) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def firing(self, alert: str, /, **labels: str) -> list[dict[str, Any]]:
        """The alerts of a name that fire, with these labels."""
        wanted = {"alertname": f"Isochrone{alert}", **labels}
        return [
            each
            for each in self.ask("alerts")["alerts"]
            if each["state"] == "firing" and wanted.items() <= each["labels"].items()
        ]

    def values(self, metric: str, /, **labels: str) -> list[float]:
        """The present values of a metric's series with these labels."""
        return [float(each["value"][1]) for each in self.ask("query", query=_series(metric, labels))["result"]]

    def readings(self, metric: str, /, **labels: str) -> int:
        """How often the one series with these labels was read; 0: never."""
        found = self.ask("query", query=f"count_over_time({_series(metric, labels)}[1h])")["result"]
        return int(found[0]["value"][1]) if found else 0

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]


def _series(metric: str, labels: Mapping[str, str]) -> str:
    return metric + "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def hurried(directory: Path) -> None:
    """Change the rendered files there."""
    path = directory / "prometheus.yml"
    configuration = yaml.safe_load(path.read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in configuration["scrape_configs"]:
        for discovery in job.get("http_sd_configs", ()):
            discovery["refresh_interval"] = "1s"
    path.write_text(yaml.safe_dump(configuration))
    for file in configuration["rule_files"]:
        document = yaml.safe_load((directory / file).read_text())
        for group in document["groups"]:
            group["interval"] = "1s"
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = "1s"
        (directory / file).write_text(yaml.safe_dump(document))


@contextmanager
def start_rendered(directory: Path, *words: str) -> Iterator[Prometheus]:
    """Prometheus in a hurry, with what ``isochrone render prometheus`` writes for these words."""
    result = CliRunner().invoke(app, ["render", "prometheus", *words, "--out", str(directory)])
    assert result.exit_code == 0, result.output
    hurried(directory)
    with start_prometheus(directory) as server:
        yield server


@contextmanager
def start_prometheus(directory: Path) -> Iterator[Prometheus]:
    """``directory``: with ``prometheus.yml``."""
    place = ROOT / ".venv-peers" / "prometheus" / "usr" / "bin" / "prometheus"
    program = str(place) if place.exists() else shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not there; make peers installs it")
    port = ports_in_a_row(1)
    command = [
        program,
        "--config.file",
        str(directory / "prometheus.yml"),
        "--storage.tsdb.path",
        str(directory / "data"),
    ]
    command += ["--web.listen-address", f"127.0.0.1:{port}"]
    log = directory / "prometheus.log"
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            server = Prometheus(port)
            ends = time.monotonic() + _SECONDS
            while not server.is_ready():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < ends, log.read_text()
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
