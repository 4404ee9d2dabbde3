"""The engine of ``isochrone up``: what to check before a fleet starts, and how the engine is made.

Ray and the client of Kubernetes are imported only if they are chosen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.state.records import KUBERNETES, LOCAL, FleetRecord
from isochrone.engines.base import Engine
from isochrone.engines.launching import Launch, check_ports
from isochrone.engines.local.engine import LocalEngine
from isochrone.engines.local.log_files import LogFiles
from isochrone.errors import ConfigError
from isochrone.settings.problems import settings_error

RAY = "ray"
ENGINES = (LOCAL, RAY, KUBERNETES)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """``check`` raises an error for a fleet that the engine cannot run; ``make`` gets a way to read the present fleet;
    ``logs`` says where its logs are."""

    name: str
    check: Callable[[FleetRecord, str], Awaitable[None]]
    make: Callable[[Launch, Callable[[], Fleet]], Engine]
    logs: Callable[[Launch], str]
    #: Its processes go on when the command ends.
    outlived: bool = False
    #: Address of the Ray cluster; "": another engine.
    ray: str = ""


@contextmanager
def chosen_engine(name: str, address: str | None, kubeconfig: Path | None = None) -> Iterator[EngineChoice]:
    """Connected as long as the block lasts. Raise ``ConfigError``."""
    if name not in ENGINES:
        raise ConfigError("--engine", "name", f"one of {', '.join(ENGINES)}", repr(name))
    for flag, given, of in (("--address", address, RAY), ("--kubeconfig", kubeconfig, KUBERNETES)):
        if given is not None and name != of:
            raise ConfigError(flag, "engine", f"--engine {of} with it", f"--engine {name}")
    if name == KUBERNETES:
        yield _kubernetes(kubeconfig)
        return
    if name == LOCAL:
        yield EngineChoice(LOCAL, check_ports, _local_engine, lambda launch: str(launch.state / "logs"))
        return
    from isochrone.engines.ray.cluster import RayCluster
    from isochrone.engines.ray.cluster_rules import check_cluster
    from isochrone.engines.ray.connecting import AUTO, connect, disconnect
    from isochrone.engines.ray.engine import RayEngine

    connected = connect(address or AUTO)
    try:
        yield EngineChoice(
            RAY,
            check_cluster,
            lambda launch, present: RayEngine(RayCluster(launch.fleet.name, launch.environment)),
            lambda launch: f"session_latest/logs/isochrone/{launch.fleet.name} of Ray's directory on each node",
            ray=connected,
        )
    finally:
        disconnect()


def _local_engine(launch: Launch, present: Callable[[], Fleet]) -> Engine:
    return LocalEngine(LogFiles(launch.state / "logs"), environment=launch.environment)


def _kubernetes(kubeconfig: Path | None) -> EngineChoice:
    from isochrone.engines.kubernetes import names
    from isochrone.engines.kubernetes.pods.cluster_api import ClusterApi
    from isochrone.engines.kubernetes.pods.engine import KubernetesEngine
    from isochrone.engines.kubernetes.pods.process_pods import pod_of
    from isochrone.engines.kubernetes.problems import problems

    async def check(record: FleetRecord, where: str) -> None:
        fleet = fleet_of(record.spec)
        if found := problems(fleet):
            raise settings_error(found, where, None)
        api = ClusterApi(names.namespace(fleet), kubeconfig)
        await api.connect()
        await api.close()

    def make(launch: Launch, present: Callable[[], Fleet]) -> Engine:
        api = ClusterApi(names.namespace(launch.fleet), kubeconfig)
        return KubernetesEngine(api, launch.fleet.name, lambda spec: pod_of(present(), spec))

    def logs(launch: Launch) -> str:
        return f"kubectl logs PROCESS --namespace {names.namespace(launch.fleet)}"

    return EngineChoice(KUBERNETES, check, make, logs, outlived=True)
