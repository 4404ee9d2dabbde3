"""fleet.yaml as types: the whole fleet in one frozen object, checked when it is made.

``reading`` makes one from a file and tells errors by line; the store holds it as JSON (``model_dump(mode="json")``,
``Fleet.model_validate``). Everything else of the control plane reads it. It never looks at the disk or the network.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from isochrone.control.fleet.checks import problems
from isochrone.control.fleet.model_spec import Model, ModelDefaults, Section, overlay
from isochrone.control.fleet.quantities import (
    Address,
    Bytes,
    FilePath,
    Milliseconds,
    Name,
    Paths,
    Seconds,
    Share,
    Upstreams,
    Words,
    file_path,
    wrong,
)
from isochrone.errors import InvalidArgument
from isochrone.models.repository.repository import validate_model_name
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


def _empty(given: Any) -> Any:
    return {} if given is None else given


def _enabled(given: Any) -> Any:
    return {"enabled": given} if isinstance(given, bool) else _empty(given)


class Store(Section):
    """Where the fleet's state is."""

    url: Annotated[str, AfterValidator(_store_url)] = "sqlite:state/fleet.db"
    """sqlite:PATH for one machine, relative to the file; etcd:http://USER@H1:2379,http://H2:2379 for many. The password
    is read from the environment: ISOCHRONE_STORE_PASSWORD."""
    lease_seconds: Seconds = Field(default=5.0, ge=1, le=600)
    """A process that has not been heard of for so long counts as gone."""


class Control(Section):
    """The controllers. One of them leads; any of them answers."""

    listen: Address = "127.0.0.1:8003"
    """Where the first one listens; the others one port up each."""
    count: int = Field(default=1, ge=1, le=16)
    """How many run on this machine."""
    hosts: Words = ()
    """Host names that their API is reached by, beside this machine's own; addresses need not be named."""


class Gateway(Section):
    """A group of equal gateways."""

    listen: Address = "127.0.0.1:8000"
    """Where the first one listens, for HTTP and gRPC; the others one port up each. Port 0: each a free one."""
    count: int = Field(default=1, ge=1, le=256)
    """How many run on this machine."""
    metrics_port: int = Field(default=9000, ge=-1, le=65535)
    """Port for /metrics of the first one; the others one port up each. 0: each a free one, -1: none."""
    tier: str = ""
    """Where they stand: edge, region, core ... Not yet used."""
    processes: int = Field(default=1, ge=1, le=256)
    """Processes that share each one's port."""


class Pool(Section):
    """Equal workers: those that are started here, or servers that run already."""

    workers: int = Field(default=1, ge=0, le=4096)
    """How many are started. 1 if left out; 0 where addresses are given."""
    min: int = Field(default=0, ge=0)
    """Never fewer, whoever asks."""
    max: int | None = Field(default=None, ge=0)
    """Never more; left out: no limit."""
    warm: int = Field(default=0, ge=0)
    """Started workers to spare, beyond what the load needs. For the autoscaler."""
    tier: str = ""
    """Where they stand: edge, region, core ... The gateway's tier rules go by it."""
    device: str = "cpu"
    """What they compute on: cpu, gpu ..."""
    memory: Bytes = 0
    """What one worker may use for models; 0: not stated."""
    cpus: float = Field(default=1.0, gt=0, le=4096)
    """Cores for one worker. For engines that place workers on machines."""
    distance_ms: Milliseconds = 0.0
    """The network's way from the gateways to them, one way."""
    region: str = ""
    """Where they are: eu-west, factory-3 ..."""
    repository: Paths = ()
    """Model repositories of this pool; left out: the fleet's."""
    first_port: int = Field(default=0, ge=0, le=65535)
    """Ports count up from here, three for each worker (HTTP, gRPC, metrics); 0: free ones."""
    addresses: Upstreams = ()
    """Servers that run already, such as real Tritons: "10.0.0.7:8000,grpc=8001,metrics=8002"."""
    kind: Literal["isochrone", "triton"] = "isochrone"
    """What they are; triton: any other server of the protocol, which must be at addresses."""
    arguments: Words = ()
    """Further words for isochrone serve: [--cache-config, "local,size=104857600"]."""

    @model_validator(mode="before")
    @classmethod
    def _none_started_beside_addresses(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("addresses") and "workers" not in given:
            return {**given, "workers": 0}
        return given


class Traffic(Section):
    """Rules of the gateways that are not of one model."""

    outliers: Annotated[dict[str, Any], BeforeValidator(_enabled)] = Field(default={})
    """Which workers are left out for a while: outliers of the gateway's rules."""
    quota: Annotated[dict[str, Any], BeforeValidator(_empty)] = Field(default={})
    """What one caller may use over all models: quota of the gateway's rules."""


class Tls(Section):
    """Certificates, as PEM files relative to the file."""

    cert: FilePath | None = None
    """The servers' certificate."""
    key: FilePath | None = None
    """Its key."""
    client_ca: FilePath | None = None
    """Clients must show a certificate signed by this one."""


class Token(Section):
    """One caller's token."""

    file: FilePath
    """A file that holds the token; a token never stands in fleet.yaml."""
    role: Literal["read", "operate", "admin"] = "read"
    """What its bearer may do."""


class Security(Section):
    """Who may talk to the fleet. Read and checked; not yet used."""

    tls: Tls = Tls()
    """Certificates."""
    tokens: Annotated[dict[Name, Token], BeforeValidator(_empty)] = Field(default={})
    """Tokens of callers, by the caller's name."""


class Metrics(Section):
    """Metrics of all processes."""

    enabled: bool = True
    """Whether they are served."""


class Tracing(Section):
    """Traces."""

    otlp: str = ""
    """OTLP endpoint, such as http://collector:4317; "": none."""
    sample: Share = 0.01
    """Share of requests that are traced."""


class Log(Section):
    """Logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is told."""
    as_json: bool = Field(default=False, alias="json")
    """Lines as JSON."""


class Observability(Section):
    """What the fleet tells of itself. Read and checked; not yet used."""

    metrics: Metrics = Metrics()
    """Metrics."""
    tracing: Tracing = Tracing()
    """Traces."""
    log: Log = Log()
    """Logs."""


class Fleet(Section):
    """The whole file."""

    name: Name
    """Names the fleet, and its part of the store: fleets may share an etcd."""
    repository: Paths = ("models",)
    """Model repositories, in Triton's layout; relative to the file."""
    store: Store = Store()
    """Where the fleet's state is."""
    control: Control = Control()
    """The controllers."""
    gateways: Annotated[dict[Name, Gateway], BeforeValidator(_empty)] = Field(default={"gw": Gateway()})
    """Groups of gateways, by name. Left out: one, named gw, on port 8000."""
    pools: Annotated[dict[Name, Pool], BeforeValidator(_empty)] = Field(default={"cpu": Pool()})
    """Pools of workers, by name. Left out: one, named cpu, with one worker."""
    # Before models: their validator lays them over it.
    defaults: ModelDefaults = ModelDefaults()
    """What holds for models that are not named, and for what the named ones leave out."""
    models: Annotated[dict[Annotated[str, AfterValidator(_model_name)], Model], BeforeValidator(_empty)] = Field(
        default={}
    )
    """What is served, by the model's name. None named: every model of the repositories."""
    traffic: Traffic = Traffic()
    """Rules of the gateways that are not of one model."""
    security: Security = Security()
    """Who may talk to the fleet. Read and checked; not yet used."""
    observability: Observability = Observability()
    """What the fleet tells of itself. Read and checked; not yet used."""

    @field_validator("models", mode="after")
    @classmethod
    def _over_the_defaults(cls, models: dict[str, Model], info: ValidationInfo) -> dict[str, Model]:
        defaults = info.data.get("defaults")
        if not isinstance(defaults, ModelDefaults):
            return models  # it is wrong itself, and told
        return {name: _whole(defaults, model.model_dump(exclude_unset=True)) for name, model in models.items()}

    @model_validator(mode="after")
    def _fits_together(self) -> Fleet:
        if found := problems(self):
            raise PydanticCustomError("fleet", "{count} problems", {"count": len(found), "problems": found})
        return self

    def of(self, model: str) -> Model:
        """A model's settings; of one that is not named, the defaults."""
        return self.models.get(model) or _whole(self.defaults, {})

    @property
    def gateways_without_metrics(self) -> tuple[str, ...]:
        """Groups whose counts and samples nobody can read: no version can be tried out behind them."""
        return tuple(group for group, gateway in self.gateways.items() if gateway.metrics_port < 0)

    def pools_of(self, model: str) -> tuple[str, ...]:
        """The pools whose workers serve it."""
        return self.of(model).pools or tuple(self.pools)


def _whole(defaults: ModelDefaults, given: dict[str, Any]) -> Model:
    return Model.model_validate(overlay(defaults.model_dump(exclude_unset=True), given))
