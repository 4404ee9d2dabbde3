"""Where Prometheus finds the metrics pages of a fleet. Pure.

Every target has the labels ``fleet``, ``role`` (worker, gateway, controller) and ``name``, which the rules use. The
controllers can name the targets themselves (``http``): that follows every change of the fleet, and free ports. A list
in the file (``static``) needs fixed ports. In a cluster, Kubernetes knows the pods (``kubernetes``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from isochrone.control.api.answers.scrape_targets import TARGETS_PATH
from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.derived.outside_servers import outside_servers
from isochrone.control.fleet.settings.process_names import controller_names, gateway_names, worker_names
from isochrone.control.fleet.settings.process_ports import (
    EVERYWHERE,
    WORKER_HOST,
    counted_addresses,
    ports_of_worker,
)
from isochrone.control.fleet.settings.quantities import join_address, split_address
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.engines.kubernetes import names
from isochrone.errors import ConfigError, FlagError

Discovery = Literal["http", "static", "kubernetes"]
DISCOVERIES: Final[tuple[Discovery, ...]] = ("http", "static", "kubernetes")

#: How often Prometheus asks for it. A new worker is scraped after at most this long.
_REFRESH: Final = "15s"
#: How often pages are read. The shortest window of the rules, five minutes, then has twenty readings.
INTERVAL: Final = "15s"
_HTTPS: Final = "https://"
_LOOPBACK: Final = "127.0.0.1"
#: A name, an IPv4 address or an IPv6 address in brackets, and a port. No scheme and no path: Prometheus adds them.
_ADDRESS: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.%]+\]):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Target:
    """One metrics page."""

    address: str
    role: str
    name: str
    pool: str = ""
    is_tls: bool = False

    @property
    def labels(self) -> dict[str, str]:
        found = {"role": self.role, "name": self.name, **({"__scheme__": "https"} if self.is_tls else {})}
        return {**found, "pool": self.pool} if self.pool else found


def plain_configs(
    fleet: str, workers: Sequence[str], gateways: Sequence[str], ca: Path | None = None
) -> list[dict[str, Any]]:
    """Of servers without a fleet.yaml, by the addresses of their metrics pages. ``ca``: of those with https://."""
    pages = [("--worker", "worker", each) for each in workers] + [("--gateway", "gateway", each) for each in gateways]
    _check_addresses([(flag, address.removeprefix(_HTTPS)) for flag, _, address in pages], "a metrics page")
    targets = [
        Target(address.removeprefix(_HTTPS), role, address.removeprefix(_HTTPS), is_tls=address.startswith(_HTTPS))
        for _, role, address in pages
    ]
    return [{**_static(fleet, targets), **({"tls_config": {"ca_file": str(ca.absolute())}} if ca is not None else {})}]


def _check_addresses(given: Sequence[tuple[str, str]], what: str) -> None:
    """(flag, address). Raise ``FlagError`` for the first that Prometheus could not read, or would read twice."""
    seen: dict[str, str] = {}
    for flag, address in given:
        found = _ADDRESS.fullmatch(address)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise FlagError(flag, f"HOST:PORT of {what}, with an IPv6 address in brackets", repr(address))
        if address in seen:
            raise FlagError(flag, "each address once", f"{address}, as {seen[address]} already")
        seen[address] = flag


def scrape_configs(
    fleet: Fleet, discovery: Discovery, controllers: Sequence[str] = (), directory: Path = Path()
) -> list[dict[str, Any]]:
    """``controllers``: addresses in place of those of the file, where Prometheus runs on another machine.
    ``directory``: of the file."""
    if discovery == "kubernetes":
        if controllers:
            expected = "no --discovery kubernetes beside it: Prometheus does not read controllers in a cluster"
            raise FlagError("--controller", expected, controllers[0])
        tls = _tls_config(fleet, directory)
        return [{**_pods(fleet), **({"scheme": "https", **tls} if tls else {})}]
    _check_addresses([("--controller", each) for each in controllers], "a controller")
    if len(controllers) > fleet.control.count:
        expected = f"at most {fleet.control.count}, by control.count of the file"
        raise FlagError("--controller", expected, f"{len(controllers)} addresses")
    found = list(_controllers(fleet, controllers))
    tls = _tls_config(fleet, directory)
    if discovery == "static":
        found += [*_gateways(fleet), *_workers(fleet)]
        outside = list(_outside(fleet))
        if not tls:
            return [_static(fleet.name, [*found, *outside])]
        # Servers that the fleet did not start are plain.
        plain = [_static(fleet.name, outside, "-outside")] if outside else []
        return [{**_static(fleet.name, found), "scheme": "https", **tls}, *plain]
    scheme = "https" if tls else "http"
    targets = [
        {"url": f"{scheme}://{each.address}{TARGETS_PATH}", "refresh_interval": _REFRESH, **tls}
        for each in found
        if each.role == "controller"
    ]
    # Every controller gives the same list; targets that are equal are scraped once.
    job = {
        "job_name": f"isochrone-{fleet.name}-processes",
        "http_sd_configs": targets,
        # The controllers say which targets have TLS.
        **tls,
        "relabel_configs": [{"target_label": "fleet", "replacement": fleet.name}],
    }
    own = {"scheme": "https", **tls} if tls else {}
    return [{**_static(fleet.name, found, "-controllers"), **own}, job]


def _tls_config(fleet: Fleet, directory: Path) -> dict[str, Any]:
    """Of a job: Prometheus shows the fleet's certificate, as the fleet's processes do. {}: the fleet is plain."""
    tls = fleet.security.tls
    if tls.ca is None or tls.cert is None or tls.key is None:
        return {}
    files = {"ca_file": tls.ca, "cert_file": tls.cert, "key_file": tls.key}
    named = {"server_name": tls.server_name} if tls.server_name else {}
    return {"tls_config": {**{key: str(absolute(file, directory)) for key, file in files.items()}, **named}}


def with_credentials(configs: Sequence[dict[str, Any]], file: str) -> list[dict[str, Any]]:
    """The same for a fleet that checks callers: Prometheus reads its token from a file of its own machine."""
    authorization = {"authorization": {"credentials_file": file}}
    return [
        {
            **config,
            **authorization,
            **({"http_sd_configs": [{**each, **authorization} for each in found]} if found else {}),
        }
        for config in configs
        for found in [config.get("http_sd_configs", ())]
    ]


def _static(fleet: str, targets: Sequence[Target], suffix: str = "") -> dict[str, Any]:
    configs = [{"targets": [each.address], "labels": {"fleet": fleet, **each.labels}} for each in targets]
    return {"job_name": f"isochrone-{fleet}{suffix}", "static_configs": configs}


def _controllers(fleet: Fleet, given: Sequence[str]) -> Iterator[Target]:
    for index, (name, listen) in enumerate(counted_addresses(controller_names(fleet), fleet.control.listen)):
        if given:
            if index < len(given):
                yield Target(given[index], "controller", name)
            continue
        host, port = split_address(listen)
        if not port:
            raise _free_port("control.listen", "the controllers")
        yield Target(join_address(_reached(host), port), "controller", name)


def _gateways(fleet: Fleet) -> Iterator[Target]:
    for group, gateway in fleet.gateways.items():
        if gateway.metrics_port < 0:
            continue
        if not gateway.metrics_port:
            raise _free_port(f"gateways.{group}.metrics_port", f"the gateways {group}")
        if gateway.processes > 1:
            raise ConfigError(
                "fleet.yaml",
                f"gateways.{group}.processes",
                "1, for --discovery static: only the first process of a gateway has a known metrics port",
                str(gateway.processes),
            )
        for index, (name, listen) in enumerate(counted_addresses(gateway_names(fleet, group), gateway.listen)):
            host, _ = split_address(listen)
            yield Target(join_address(_reached(host), gateway.metrics_port + index), "gateway", name)


def _workers(fleet: Fleet) -> Iterator[Target]:
    for pool, spec in fleet.pools.items():
        for index, name in enumerate(worker_names(fleet, pool)):
            port = ports_of_worker(spec, index)[2]
            if not port:
                raise _free_port(f"pools.{pool}.first_port", f"the pool {pool}")
            yield Target(join_address(WORKER_HOST, port), "worker", name, pool)


def _outside(fleet: Fleet) -> Iterator[Target]:
    for server in outside_servers(fleet).values():
        if server.upstream.metrics_port:
            address = join_address(server.upstream.host, server.upstream.metrics_port)
            yield Target(address, "worker", server.name, server.pool)


def _reached(host: str) -> str:
    return _LOOPBACK if host in EVERYWHERE else host


def _free_port(key: str, what: str) -> ConfigError:
    return ConfigError(
        "fleet.yaml",
        key,
        f"a fixed port, by which Prometheus finds {what}; with --discovery http the controllers name the ports",
        "0, a free port",
    )


def _pods(fleet: Fleet) -> dict[str, Any]:
    """Pods whose annotations say that they have a metrics page. The network policies of ``render kubernetes`` let
    Prometheus read workers and gateways; the control API is not open to it."""
    label, annotation = "__meta_kubernetes_pod_label_", "__meta_kubernetes_pod_annotation_prometheus_io_"
    selector = ",".join(f"{key}={value}" for key, value in names.fleet_selector(fleet).items())
    return {
        "job_name": f"isochrone-{fleet.name}",
        "kubernetes_sd_configs": [
            {
                "role": "pod",
                "namespaces": {"names": [names.namespace(fleet)]},
                "selectors": [{"role": "pod", "label": selector}],
            }
        ],
        "relabel_configs": [
            {"source_labels": [f"{annotation}scrape"], "action": "keep", "regex": "true"},
            # A pod that has ended stays an object, perhaps for days: it is no worker that is down.
            {
                "source_labels": ["__meta_kubernetes_pod_phase"],
                "action": "drop",
                "regex": "Succeeded|Failed",
            },
            # A pod is a target once per port of its containers: the one of the metrics page is kept.
            {
                "source_labels": ["__meta_kubernetes_pod_container_port_name"],
                "action": "keep",
                "regex": "metrics",
            },
            {"target_label": "fleet", "replacement": fleet.name},
            {"source_labels": [label + _meta(names.ROLE_LABEL)], "target_label": "role"},
            {"source_labels": [label + _meta(names.POOL_LABEL)], "target_label": "pool"},
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "name"},
            # The Prometheus adapter, which scales pools, looks series up by these.
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        ],
    }


def _meta(label: str) -> str:
    """A label of Kubernetes in the name of one of Prometheus."""
    return "".join(each if each.isalnum() else "_" for each in label)
