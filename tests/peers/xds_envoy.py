"""A real Envoy that takes its listener, routes, clusters and endpoints from a controller."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.gateway.proxies import envoy
from bench.ports import free_ports
from bench.worker.peers.process import answers, running
from xds_fleet import envoy_bootstrap


@dataclass(frozen=True)
class XdsEnvoy:
    address: str
    admin: str
    log: Path

    def statistic(self, name: str) -> int:
        """A counter or gauge of Envoy's; 0 if there is none."""
        with urllib.request.urlopen(f"{self.admin}/stats?filter=^{re.escape(name)}$", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(int(line.rpartition(": ")[2]) for line in lines)

    def host_weights(self) -> dict[str, dict[str, int]]:
        """By cluster, by endpoint: the weight by which Envoy chooses it."""
        with urllib.request.urlopen(f"{self.admin}/clusters?format=json", timeout=10) as page:
            clusters = json.load(page)["cluster_statuses"]
        found = {}
        for cluster in clusters:
            hosts = {}
            for host in cluster.get("host_statuses", ()):
                address = host["address"]["socket_address"]
                hosts[f"{address['address']}:{address['port_value']}"] = int(host.get("weight", 1))
            found[cluster["name"]] = hosts
        return found


@contextmanager
def xds_envoy(port: int, directory: Path) -> Iterator[XdsEnvoy]:
    """``port``: of xDS. Serving when the block begins."""
    listen, admin = free_ports(2)
    configuration, log = directory / "envoy.json", directory / "envoy.log"
    configuration.write_text(json.dumps(envoy_bootstrap(port, f"127.0.0.1:{listen}", admin)))
    command: list[str | Path] = [
        *(envoy.binary(), "-c", configuration, "--concurrency", "1"),
        *("--disable-hot-restart", "--log-level", "warning"),
    ]
    url = f"http://127.0.0.1:{listen}/v2/models/solo/ready"
    with running("envoy", command, lambda: answers(url), log=log):
        yield XdsEnvoy(f"127.0.0.1:{listen}", f"http://127.0.0.1:{admin}", log)
