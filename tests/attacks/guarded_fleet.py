"""A whole fleet with an access file and a key: a controller, a gateway and two workers, on known ports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

import psutil
from guarded_servers import write_access

from bench.ports import ports_in_a_row
from isochrone.secure.access.internal import InternalCallers
from isochrone.secure.fleet_key import FleetKey
from sample_models import write_models
from up_process import ISOCHRONE, SECONDS, Up, start_up

KEY = "00112233445566778899aabbccddeeff"
INFER = "/v2/models/identity_fp32/infer"


@dataclass(frozen=True)
class GuardedFleet:
    up: Up
    directory: Path
    tokens: Mapping[str, str]
    control: int
    gateway: int
    gateway_metrics: int
    #: Of two workers: HTTP, gRPC and metrics, one after the other.
    first_port: int

    @property
    def access(self) -> Path:
        return self.directory / "access.yaml"

    @property
    def workers(self) -> tuple[int, int]:
        """HTTP ports."""
        return self.first_port, self.first_port + 3

    @property
    def worker_metrics(self) -> tuple[int, int]:
        return self.first_port + 2, self.first_port + 5

    @property
    def internal(self) -> InternalCallers:
        return InternalCallers(FleetKey(KEY.encode()))

    def credential(self, caller: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[caller]}"} if caller else {}

    def command(self, caller: str, *words: str) -> tuple[int, str]:
        """Status and output of ``isochrone`` on this fleet."""
        found = subprocess.run(
            [*ISOCHRONE, *words, "--api", f"http://127.0.0.1:{self.control}"],
            env={**os.environ, "ISOCHRONE_API_TOKEN": self.tokens.get(caller, "")},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return found.returncode, found.stdout + found.stderr

    def change(self, old: str, new: str) -> None:
        """Another access file in place of this one, as an editor leaves it."""
        text = self.access.read_text()
        assert old in text
        written = self.access.with_suffix(".new")
        written.write_text(text.replace(old, new))
        written.replace(self.access)

    def process(self, name: str) -> psutil.Process:
        return next(each for each in self.up.children() if name in each.cmdline())

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.directory.glob("state/logs/*.log"))


@contextmanager
def guarded_fleet(
    directory: Path, models: str = "{identity_fp32: {version: 1}, identity_int32: {version: 1}}", more: str = ""
) -> Iterator[GuardedFleet]:
    """Running when it is entered. ``more``: lines of fleet.yaml."""
    tokens = write_access(directory / "access.yaml")
    key = directory / "fleet.key"
    key.write_text(KEY)
    key.chmod(0o600)
    for each in ("identity_fp32", "identity_int32"):
        write_models(directory / "models", each)
        copytree(directory / "models" / each / "1", directory / "models" / each / "2")
    first = ports_in_a_row(9)
    fleet = directory / "fleet.yaml"
    fleet.write_text(
        f"""
name: guarded
repository: models
control: {{listen: "127.0.0.1:{first}"}}
gateways: {{front: {{listen: "127.0.0.1:{first + 1}", metrics_port: {first + 2}}}}}
pools: {{cpu: {{workers: 2, first_port: {first + 3}}}}}
security: {{access: access.yaml, key: fleet.key, sandbox: false}}
models: {models}
{more}"""
    )
    with start_up(str(fleet), log=directory / "up.log") as up:
        up.wait_for("Ctrl-C stops everything")
        yield GuardedFleet(up, directory, tokens, first, first + 1, first + 2, first + 3)
