"""Serves KEDA's external-push scaler: how many requests a pool has, and whether it is in use at all.

KEDA and Kubernetes decide how many workers that means. The metric is the number of requests in the pool, the target the
number that one worker should have: desired workers = requests ÷ target. A pool that was scaled to zero wakes when a
gateway receives a request for one of its models: the stream tells KEDA at the next reading, not at its next poll. If
the request waits for a worker, the gateway records that in the store, and the stream tells KEDA at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.grpc_listening import GrpcCertificate, open_port
from isochrone.control.scaling.keda import messages
from isochrone.control.scaling.keda.load_reading import LoadReader
from isochrone.control.scaling.keda.pool_load import Activity, PoolLoad
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import NO_FIELDS
from isochrone.control.state.view import View
from isochrone.errors import FlagError, InvalidArgument, Unavailable
from isochrone.secure.loopback import is_loopback
from isochrone.store.mirror import Mirror
from isochrone.suggestions import suggestion

log = structlog.get_logger(__name__)

METRIC = "requests_in_pool"
#: Seconds between two readings of a pool; an older one is not used.
_READING_SECONDS = 0.5
_DEFAULT_TARGET, _DEFAULT_IDLE_SECONDS = 4.0, 60.0
#: Characters of a value that are looked up or repeated in an error: anybody may send any.
_MOST_SHOWN = 100
#: Calls at once, streams among them. KEDA has a stream and a poll for each pool.
_MOST_CALLS = 1024
#: Keys of a trigger's metadata that KEDA itself uses.
_OF_KEDA = frozenset(("scalerAddress", "scalerIndex", "tlsCertFile", "caCert", "tlsClientCert", "tlsClientKey"))


@dataclass(frozen=True, slots=True)
class Trigger:
    """The metadata of a trigger in a ScaledObject."""

    pool: str
    #: Requests that one worker should have.
    target: float = _DEFAULT_TARGET
    #: A pool is in use until no request has come for this long.
    idle_seconds: float = _DEFAULT_IDLE_SECONDS


def read_trigger(metadata: Mapping[str, str], pools: Mapping[str, object]) -> Trigger:
    """Raise ``InvalidArgument`` for metadata that makes no sense."""
    given = {key: text for key, text in metadata.items() if key not in _OF_KEDA}
    pool = given.pop("pool", "")[:_MOST_SHOWN]
    if pool not in pools:
        raise InvalidArgument(f"metadata.pool: expected {suggestion(pool, list(pools), 'pool')}, given '{pool}'")
    target = _positive(given.pop("requestsPerWorker", ""), "requestsPerWorker", _DEFAULT_TARGET)
    idle = _positive(given.pop("idleSeconds", ""), "idleSeconds", _DEFAULT_IDLE_SECONDS)
    if given:
        raise InvalidArgument(f"metadata.{min(given)[:_MOST_SHOWN]}: expected pool, requestsPerWorker or idleSeconds")
    return Trigger(pool, target, idle)


def _positive(text: str, key: str, default: float) -> float:
    try:
        number = float(text) if text else default
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise InvalidArgument(f"metadata.{key}: expected a number above 0, given '{text[:_MOST_SHOWN]}'")
    return number


class KedaScaler:
    """The loads of all pools of a fleet. Any controller can answer, not only the leader."""

    def __init__(
        self,
        mirror: Mirror,
        keys: Keys,
        reading_seconds: float = _READING_SECONDS,
        own_fields: Mapping[str, str] = NO_FIELDS,
    ) -> None:
        """``own_fields``: headers that prove to processes of the fleet that a controller asks."""
        self._mirror = mirror
        self._view = View(keys, mirror.entries, is_lasting=True)
        self._reading_seconds = reading_seconds
        self._reader = LoadReader(own_fields)
        self._activities: dict[str, Activity] = {}
        #: By pool: the last reading, and when it was made.
        self._readings: dict[str, tuple[float, PoolLoad]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        #: Of each stream: set when it must look again.
        self._streams: set[asyncio.Event] = set()
        mirror.on_change.append(self._look_if_requests_wait)

    async def close(self) -> None:
        self._mirror.on_change.remove(self._look_if_requests_wait)
        await self._reader.close()

    def trigger(self, metadata: Mapping[str, str]) -> Trigger:
        record = self._view.fleet
        if record is None:
            raise Unavailable("no fleet has been applied yet")
        return read_trigger(metadata, fleet_of(record.spec).pools)

    async def is_active(self, trigger: Trigger) -> bool:
        if not self._waiting(trigger.pool):
            await self._load(trigger.pool)
        return self._is_in_use(trigger)

    async def activity(self, trigger: Trigger) -> AsyncGenerator[bool, None]:
        """Whether a pool is in use, and each change of that: at once if requests begin to wait for one of its workers,
        otherwise at the next reading."""
        said: bool | None = None
        woken = asyncio.Event()
        self._streams.add(woken)
        reading = asyncio.ensure_future(self._keep_reading(trigger.pool, woken))
        try:
            while not reading.done():
                woken.clear()
                if trigger.pool in self._readings or self._waiting(trigger.pool):
                    active = self._is_in_use(trigger)
                    if active != said:
                        said = active
                        yield active
                await woken.wait()
            reading.result()
        finally:
            self._streams.discard(woken)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _keep_reading(self, pool: str, done: asyncio.Event) -> None:
        try:
            while True:
                await self._load(pool)
                done.set()
                await asyncio.sleep(self._reading_seconds)
        finally:
            done.set()

    async def requests(self, trigger: Trigger) -> float:
        """Raise ``Unavailable`` if no worker says how many it has: KEDA then keeps the workers."""
        load = await self._load(trigger.pool)
        if not load.is_known:
            raise Unavailable(f"no worker of pool {trigger.pool} answers")
        # Of the same requests: a page is read now and then, the record is written a little late.
        waiting = max(load.waiting, self._waiting(trigger.pool))
        return replace(load, waiting=waiting).total(trigger.target)

    def _is_in_use(self, trigger: Trigger) -> bool:
        activity, now = self._activities.setdefault(trigger.pool, Activity()), monotonic()
        if self._waiting(trigger.pool):
            activity.wake(now)
        return activity.is_active(now, trigger.idle_seconds)

    def _waiting(self, pool: str) -> int:
        """Requests that wait for a worker of a pool, as far as gateways have recorded it."""
        waiting = self._view.waiting_models
        models = self._models(pool) if waiting else ()
        return sum(count for model, count in waiting.items() if model in models)

    def _look_if_requests_wait(self) -> None:
        if any(key.startswith(self._view.keys.waiting) for key in self._mirror.recent):
            for woken in self._streams:
                woken.set()

    async def _load(self, pool: str) -> PoolLoad:
        async with self._locks.setdefault(pool, asyncio.Lock()):
            at, load = self._readings.get(pool, (float("-inf"), PoolLoad()))
            if monotonic() - at >= self._reading_seconds:
                load = await self._reader.read(self._view, pool, self._models(pool))
                self._activities.setdefault(pool, Activity()).take(load, monotonic())
                self._readings[pool] = (monotonic(), load)
            return load

    def _models(self, pool: str) -> set[str]:
        epoch = self._view.epoch
        return {name for name, model in epoch.models.items() if pool in model.pools} if epoch is not None else set()


async def serve_scaler(scaler: KedaScaler, host: str, port: int, tls: GrpcCertificate | None = None) -> None:
    """Serve until cancelled."""
    server = grpc.aio.server(maximum_concurrent_rpcs=_MOST_CALLS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(messages.SERVICE, _handlers(scaler)),))
    try:
        bound = open_port(server, host, port, tls)
    except RuntimeError as error:
        raise FlagError("--scaler-listen", "an address that is free", f"{host}:{port} ({error})") from None
    await server.start()
    log.info("listening", service="scaler", host=host, port=bound)
    if not is_loopback(host) and (tls is None or not tls.client_ca):
        log.warning(
            "KEDA's scaler is reachable from other machines and does not authenticate callers: each that reaches "
            "it learns the load of the pools; keep it in a private network, or listen on 127.0.0.1",
            host=host,
        )
    try:
        # Not wait_for_termination: once that is cancelled, stop raises CancelledError, and nothing behind it is done.
        await asyncio.get_running_loop().create_future()
    finally:
        await server.stop(0)
        await scaler.close()


def _handlers(scaler: KedaScaler) -> dict[str, Any]:
    async def is_active(request: bytes, context: Any) -> Any:
        async with _errors_as_statuses(context):
            return messages.IsActiveResponse(result=await scaler.is_active(_trigger(scaler, request)))

    async def stream_is_active(request: bytes, context: Any) -> AsyncIterator[Any]:
        async with (
            _errors_as_statuses(context),
            aclosing(scaler.activity(_trigger(scaler, request))) as activity,
        ):
            async for active in activity:
                yield messages.IsActiveResponse(result=active)

    async def get_metric_spec(request: bytes, context: Any) -> Any:
        async with _errors_as_statuses(context):
            target = _trigger(scaler, request).target
            # KEDA before 2.12 reads the whole number alone.
            spec = {"metricName": METRIC, "targetSize": max(1, round(target)), "targetSizeFloat": target}
            return messages.GetMetricSpecResponse(metricSpecs=[spec])

    async def get_metrics(request: bytes, context: Any) -> Any:
        async with _errors_as_statuses(context):
            reference = _parsed(messages.GetMetricsRequest, request).scaledObjectRef
            value = await scaler.requests(scaler.trigger(reference.scalerMetadata))
            metric = {"metricName": METRIC, "metricValue": round(value), "metricValueFloat": value}
            return messages.GetMetricsResponse(metricValues=[metric])

    # Requests are parsed here: grpcio would log a traceback for bytes that are none.
    def unary(method: Any, response: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(method, None, response.SerializeToString)

    return {
        "IsActive": unary(is_active, messages.IsActiveResponse),
        "StreamIsActive": grpc.unary_stream_rpc_method_handler(
            stream_is_active, None, messages.IsActiveResponse.SerializeToString
        ),
        "GetMetricSpec": unary(get_metric_spec, messages.GetMetricSpecResponse),
        "GetMetrics": unary(get_metrics, messages.GetMetricsResponse),
    }


def _trigger(scaler: KedaScaler, request: bytes) -> Trigger:
    return scaler.trigger(_parsed(messages.ScaledObjectRef, request).scalerMetadata)


def _parsed(kind: Any, request: bytes) -> Any:
    try:
        return kind.FromString(request)
    except DecodeError:
        raise InvalidArgument(f"expected a {kind.DESCRIPTOR.name}, given {len(request)} bytes that are none") from None


@asynccontextmanager
async def _errors_as_statuses(context: Any) -> AsyncIterator[None]:
    try:
        yield
    except InvalidArgument as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except Unavailable as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
