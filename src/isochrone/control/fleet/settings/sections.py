"""The sections of fleet.yaml as types. Each setting is checked by itself; ``checks`` has the rules between settings.

They never access the disk or the network.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from isochrone.control.fleet.settings.autoscale_spec import Autoscale
from isochrone.control.fleet.settings.kubernetes_spec import Kubernetes
from isochrone.control.fleet.settings.model_spec import Model, ModelDefaults, overlay
from isochrone.control.fleet.settings.observability_spec import Observability
from isochrone.control.fleet.settings.quantities import (
    Address,
    Bytes,
    FilePath,
    Milliseconds,
    Name,
    Repositories,
    Seconds,
    Upstreams,
    Words,
    empty,
    file_path,
    switch,
)
from isochrone.control.fleet.settings.security_spec import Security
from isochrone.errors import InvalidArgument
from isochrone.models.repository.names import validate_model_name
from isochrone.settings.sections import Section
from isochrone.settings.validator_errors import wrong
from isochrone.store.etcd.address import split_password


def _store_url(given: str) -> str:
    scheme, colon, rest = given.partition(":")
    if not colon or scheme not in ("sqlite", "etcd") or not rest.strip("/ "):
        raise wrong("sqlite:PATH, or etcd:http://HOST:2379[,http://HOST:2379 ...]", repr(split_password(given)[0]))
    if scheme == "sqlite":
        file_path(rest)
    if scheme == "etcd" and not all(
        end.startswith(("http://", "https://")) and len(end) > 8 for end in rest.split(",")
    ):
        raise wrong("etcd:http://HOST:2379[,http://HOST:2379 ...]", repr(split_password(given)[0]))
    return given


def _model_name(given: str) -> str:
    try:
        validate_model_name(given)
    except InvalidArgument as error:
        raise wrong(str(error).partition("expected ")[2].partition(", given ")[0]) from None
    return given


def _enabled(given: Any) -> Any:
    return {"enabled": given} if isinstance(given, bool) else empty(given)


class Store(Section):
    """The database that holds the state of the fleet."""

    url: Annotated[str, AfterValidator(_store_url)] = "sqlite:state/fleet.db"
    """sqlite:PATH for one machine; etcd:http://USER@H1:2379,http://H2:2379 for several. The environment variable
    ISOCHRONE_STORE_PASSWORD holds the password of the etcd user."""
    lease_seconds: Seconds = Field(default=5.0, ge=1, le=600)
    """A process that does not renew its lease for this long counts as gone; 1 to 600."""


class NodeNeeds(Section):
    """What a process needs of its machine, for engines that place processes on machines: ray and kubernetes."""

    cpus: float = Field(default=1.0, ge=0, le=4096)
    """Cores for one process, on machines that an engine chooses. The engine local does not reserve any."""
    node_labels: Annotated[dict[str, str], BeforeValidator(empty)] = Field(default={})
    """Labels that its machine must have, such as {accelerator: h200}: Ray's node labels, Kubernetes' nodeSelector."""
    placement: Literal["any", "spread", "apart", "together"] = "spread"
    """Machines of the processes of one group: spread prefers different ones, apart requires them, together requires the
    same one. The engine local has one machine."""


class Control(NodeNeeds):
    """The controllers. One of them is the leader; all of them answer API calls."""

    listen: Address = "127.0.0.1:8003"
    """Address of the first controller. Each further one uses the next port."""
    count: int = Field(default=1, ge=1, le=16)
    """Controllers on this machine. With two, the second one takes over when the leader dies."""
    hosts: Words = ()
    """Host names under which clients reach the API, besides localhost, the name of this machine and the one in listen.
    IP addresses are always allowed."""
    console: bool | None = None
    """Serve the pages of the console at /console of every controller. Without this key they are served where NiceGUI is
    installed (pip install 'isochrone[console]')."""
    token_file: FilePath | None = None
    """File with the token that requests to the API must carry to change the fleet; see docs/console.md. Without it,
    every client that reaches the API may. It has no effect in a Kubernetes cluster."""


class Gateway(NodeNeeds):
    """A group of equal gateways. Their processes are named gw, or gw-1, gw-2 where count is above 1."""

    listen: Address = "127.0.0.1:8000"
    """Address of the first gateway, for HTTP and gRPC. Each further one uses the next port; with port 0, each uses a
    free port."""
    count: int = Field(default=1, ge=1, le=256)
    """Gateways on this machine."""
    metrics_port: int = Field(default=9000, ge=-1, le=65535)
    """Port of /metrics of the first gateway. Each further one uses the next port. 0 selects free ports. -1 opens none;
    then no model may have canary or compare, which read it."""
    tier: str = ""
    """Tier of the gateways. Not used yet."""
    processes: int = Field(default=1, ge=1, le=256)
    """Processes that share the port of each gateway."""
    tls: bool = True
    """false: callers speak plain HTTP and gRPC although the fleet has security.tls, as behind a load balancer that ends
    TLS."""


class Pool(NodeNeeds):
    """Equal workers: processes that this fleet starts, or servers that run already. The processes of pool cpu are named
    cpu-1, cpu-2."""

    workers: int = Field(default=1, ge=0, le=4096)
    """Workers to start. With addresses, the default is 0. With autoscale, the number to begin with."""
    min: int = Field(default=0, ge=0)
    """Lower limit of workers, for this file, isochrone scale and the autoscaler."""
    max: int | None = Field(default=None, ge=0)
    """Upper limit of workers. autoscale needs it."""
    autoscale: Annotated[Autoscale | None, BeforeValidator(switch)] = None
    """Let the leading controller set the number of workers, from min to max. Off by default. It has no effect in a
    Kubernetes cluster: there, kubernetes.autoscaler says what scales pools with max."""
    warm: int = Field(default=0, ge=0, le=4096)
    """Standby workers: started beside the others with all models loaded, and without requests until the pool grows or a
    worker is lost."""
    tier: str = ""
    """Tier of the workers, such as edge or core. The traffic rule tiers orders them."""
    device: str = "cpu"
    """Device of the workers, such as cpu or gpu. The gateway rule device selects by it."""
    memory: Bytes = 0
    """Memory of one worker for models. A version that does not fit is rejected before it is loaded. 0: not checked."""
    replicas: Literal["all", "planned"] = "all"
    """Models of each worker. all: every model of the pool. planned: those that the leader gives it by memory, load and
    the keys min_replicas, alone and apart of the models; see docs/placement.md."""
    gpus: float = Field(default=0.0, ge=0, le=64)
    """GPUs for one worker, on machines that an engine chooses. A share below 1 is for Ray alone."""
    resources: Annotated[dict[str, float], BeforeValidator(empty)] = Field(default={})
    """Further resources of one worker by name: Ray's custom resources, Kubernetes' extended resources such as
    nvidia.com/mig-1g.10gb."""
    distance_ms: Milliseconds = 0.0
    """Network latency from the gateways to the workers, one way. Model placement uses it until the gateways have
    measured the round trip; the traffic rule tiers uses it unless its way_ms names another."""
    region: str = ""
    """Location of the workers, such as eu-west."""
    repository: Repositories = ()
    """Model repositories of this pool: directories or URLs. The default is the repository of the fleet."""
    first_port: int = Field(default=0, ge=0, le=65535)
    """First port of the workers. Each worker takes three: HTTP, gRPC, metrics. 0 selects free ports."""
    addresses: Upstreams = ()
    """Servers that run already, written as for isochrone gateway --upstream: "10.0.0.7:8000,grpc=8001,metrics=8002"."""
    kind: Literal["isochrone", "triton"] = "isochrone"
    """Kind of the servers. triton means any other server of the protocol; it needs addresses."""
    arguments: Words = ()
    """Further arguments of isochrone serve, such as [--cache-config, "local,size=104857600"]."""

    @model_validator(mode="before")
    @classmethod
    def _none_started_beside_addresses(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("addresses") and "workers" not in given:
            return {**given, "workers": 0}
        return given

    @property
    def is_planned(self) -> bool:
        """Whether the leader decides which of its workers have each model."""
        return self.replicas == "planned"

    @property
    def processes(self) -> int:
        """Workers to start, those that stand by included."""
        return self.workers + self.warm if self.workers else 0

    @property
    def starts_workers(self) -> bool:
        """Whether the pool has workers of its own, or may get some from the autoscaler."""
        return bool(self.workers or self.autoscale is not None)

    @property
    def may_serve(self) -> bool:
        """Whether the pool has workers or servers, or may get workers from the autoscaler."""
        return self.starts_workers or bool(self.addresses)


class Traffic(Section):
    """Gateway rules that apply to all models together."""

    outliers: Annotated[dict[str, Any], BeforeValidator(_enabled)] = Field(default={})
    """When gateways eject a worker: outliers of the gateway's rules."""
    quota: Annotated[dict[str, Any], BeforeValidator(empty)] = Field(default={})
    """Limits of one caller over all models: quota of the gateway's rules."""
    agents: Annotated[dict[str, Any], BeforeValidator(empty)] = Field(default={})
    """Agents on gateways' metrics pages: agents of the gateway's rules."""


class FleetSections(Section):
    """The keys of the file, without the checks between them: use ``spec.Fleet``."""

    name: Name
    """Name of the fleet, and of its part of the store: fleets may share an etcd. a-z, 0-9 and -."""
    repository: Repositories = ("models",)
    """Model repositories in Triton's layout: directories, or URLs such as s3://bucket/prefix, gs://, az://,
    https://."""
    store: Store = Store()
    """The database that holds the state of the fleet."""
    control: Control = Control()
    """The controllers."""
    gateways: Annotated[dict[Name, Gateway], BeforeValidator(empty)] = Field(default={"gw": Gateway()})
    """Groups of gateways by name. The default is one group of one gateway, named gw, on port 8000."""
    pools: Annotated[dict[Name, Pool], BeforeValidator(empty)] = Field(default={"cpu": Pool()})
    """Pools of workers by name. The default is one pool of one worker, named cpu."""
    # Before models: their validator lays them over it.
    defaults: ModelDefaults = ModelDefaults()
    """Settings of models that the file does not name, and of keys that a named model leaves out."""
    models: Annotated[dict[Annotated[str, AfterValidator(_model_name)], Model], BeforeValidator(empty)] = Field(
        default={}
    )
    """Models to serve, by name. Where models are named, the fleet serves only those and the stages of their ensembles.
    The default is every model of the repositories."""
    traffic: Traffic = Traffic()
    """Gateway rules that apply to all models together."""
    security: Security = Security()
    """Access to the fleet, the record of it, and what may run."""
    observability: Observability = Observability()
    """Metrics, traces and logs."""
    kubernetes: Kubernetes = Kubernetes()
    """How isochrone render kubernetes writes the fleet. Other engines do not use it."""

    @field_validator("models", mode="after")
    @classmethod
    def _over_the_defaults(cls, models: dict[str, Model], info: ValidationInfo) -> dict[str, Model]:
        defaults = info.data.get("defaults")
        if not isinstance(defaults, ModelDefaults):
            return models  # the defaults are invalid themselves, and reported
        return {name: _whole(defaults, model.model_dump(exclude_unset=True)) for name, model in models.items()}

    def of(self, model: str) -> Model:
        """A model's settings; of one that is not named, the defaults."""
        return self.models.get(model) or _whole(self.defaults, {})

    @property
    def gateways_without_metrics(self) -> tuple[str, ...]:
        """Groups whose counts and samples cannot be read, so that no version can be evaluated behind them."""
        return tuple(group for group, gateway in self.gateways.items() if gateway.metrics_port < 0)

    def pools_of(self, model: str) -> tuple[str, ...]:
        """The pools whose workers serve it."""
        return self.of(model).pools or tuple(self.pools)


def _whole(defaults: ModelDefaults, given: dict[str, Any]) -> Model:
    return Model.model_validate(overlay(defaults.model_dump(exclude_unset=True), given))
