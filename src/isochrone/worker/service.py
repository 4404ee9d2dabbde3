"""The worker's implementation of every call of the protocol, for both transports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from tritonclient.grpc import service_pb2

import isochrone
from isochrone.devices import losses
from isochrone.devices.cuda.library import process_driver
from isochrone.errors import InvalidArgument, IsochroneError, PermissionDenied, Unavailable
from isochrone.observe.logs import REQUEST_LINES
from isochrone.observe.snapshot import CapturedGraphs, DeviceMemory, PaddedRows, ServerSnapshot, WireSnapshot
from isochrone.protocol.access.fencing import Fence
from isochrone.protocol.services.service import InferenceService
from isochrone.protocol.shared_memory_requests import (
    register_cuda_region,
    registered_regions,
    unregister_cuda_region,
)
from isochrone.protocol.tensors.cuda_memory import CudaMemory
from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions
from isochrone.worker.access_lines import WorkerAccessLines
from isochrone.worker.audited_requests import AuditedRequest, AuditedStream
from isochrone.worker.backends.devices.memory_ledger import ledgers
from isochrone.worker.catalog.load_parameters import FILE_PREFIX
from isochrone.worker.catalog.off_loop import in_thread
from isochrone.worker.catalog.states import is_unloaded
from isochrone.worker.divided.runner import DividedRunner
from isochrone.worker.flights import WorkerFlights
from isochrone.worker.generation.runner import GenerationRunner
from isochrone.worker.load import WorkerLoad
from isochrone.worker.request_wrappers import LoggedRequest, LoggedStream
from isochrone.worker.tracing.worker_tracing import WorkerTracing

if TYPE_CHECKING:
    from isochrone.observe.access_log.writer import AccessLog
    from isochrone.observe.logs import Settings as LogSettings
    from isochrone.protocol.headers.orca import LoadReport
    from isochrone.protocol.messages import InferRequest
    from isochrone.protocol.services.service import Deferrable
    from isochrone.secure.audit.audit import Audit
    from isochrone.worker.catalog.catalog import Catalog
    from isochrone.worker.served_version import ServedVersion

log = structlog.get_logger(__name__)

_EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
)


class WorkerService(InferenceService):
    """Serves the models of a catalog."""

    def __init__(
        self,
        catalog: Catalog,
        log_settings: LogSettings,
        *,
        server_name: str,
        allow_shared_memory: bool,
        allow_cuda_shared_memory: bool = False,
        allow_control: bool,
        strict_readiness: bool,
        allow_file_overrides: bool = False,
        control_token: str = "",
        trace: Mapping[str, list[str]] | None = None,
        process: tuple[int, int] = (0, 1),
        access_log: AccessLog | None = None,
        audit: Audit | None = None,
        counts_latencies: bool = True,
        is_complete: Callable[[], bool] | None = None,
    ) -> None:
        self.catalog = catalog
        if allow_shared_memory or allow_cuda_shared_memory:
            cuda = CudaMemory(process_driver) if allow_cuda_shared_memory else None
            self.shared_memory = SharedMemoryRegions(allows_system=allow_shared_memory, cuda=cuda)
        self._log_settings = log_settings
        self._server_name = server_name
        self._allow_control = allow_control
        self._allow_file_overrides = allow_file_overrides
        self.control_token = control_token
        self.fence = Fence()
        self._strict_readiness = strict_readiness
        self._is_complete = is_complete
        self.tracing = WorkerTracing(
            trace or {}, lambda: [each.statistics for each in catalog.all_versions()], process=process
        )
        self._access_log = access_log
        #: None: requests are not logged.
        self.access_lines = None if access_log is None else WorkerAccessLines(access_log)
        #: None: requests are not recorded in an audit log.
        self._audit = audit
        self._counts_latencies = counts_latencies
        catalog.on_served = self._attach
        #: None: requests are not recorded. Set before the first model is loaded.
        self.flights: WorkerFlights | None = None
        #: True once start-up is done; False again when stopping.
        self.accepting = False
        self.stopping = False
        self._find = catalog.find
        self._served = catalog.served
        self._load = WorkerLoad(catalog)
        self._apply_verbosity()

    def _attach(self, served: ServedVersion) -> None:
        """A version is served."""
        statistics = served.statistics
        self.tracing.attach(statistics)
        statistics.access_lines = self.access_lines
        statistics.counts = self._counts_latencies
        if self.flights is not None:
            self.flights.attach(served)

    # The hot path.

    def infer(self, request: InferRequest) -> None:
        if self._observes_requests:
            self._infer_observed(request)
        else:
            self._infer(request)

    def _infer(self, request: InferRequest) -> None:
        plan = request.plan
        served = self._served(plan.key)
        if served is None:
            served = self._find(plan.model_name, plan.model_version)
        if served.decoupled and not request.takes_many:
            served.reject_unary(request.endpoint())
        served.submit(request)

    def _infer_observed(self, request: InferRequest) -> None:
        """At verbose level 2 and above, while a model is traced, or with an access log or an audit log."""
        audited: AuditedRequest | None = None
        if self._audit is not None:
            if (refusal := self._audit.refusal()) is not None:
                raise refusal
            audited = (AuditedStream if request.takes_many else AuditedRequest)(request, self._audit)
        given = request if audited is None else audited
        logged = (LoggedStream if request.takes_many else LoggedRequest)(given) if self._logs_requests else None
        submitted = given if logged is None else logged
        try:
            self._infer(submitted)
        except IsochroneError as error:
            if submitted.served_by is None:
                # No version has seen it: one that has records it itself.
                self.tracing.rejected(submitted, error)
                if self.access_lines is not None:
                    self.access_lines.failed(submitted, error)
            if logged is not None:
                logged.log(error.code, error=str(error))
            if audited is not None:
                audited.log(error.code)
            raise

    def _apply_verbosity(self) -> None:
        self._logs_requests = int(self._log_settings.current()["log_verbose_level"]) >= REQUEST_LINES
        self._observes_requests = self._logs_requests or self.tracing.is_on
        self._observes_requests = self._observes_requests or self.access_lines is not None or self._audit is not None

    # Metadata of models.

    def is_decoupled(self, model_name: str, model_version: str) -> bool:
        return self._find(model_name, model_version).decoupled

    def takes_device_arrays(self, model_name: str, model_version: str) -> bool:
        return self._find(model_name, model_version).takes_device_arrays

    def declared_inputs(
        self, model_name: str, model_version: str
    ) -> tuple[tuple[tuple[str, str, tuple[int, ...]], ...], int]:
        signature = self._find(model_name, model_version).signature
        return tuple((spec.name, spec.datatype, spec.dims) for spec in signature.inputs), signature.max_batch_size

    def model_metadata(self, model_name: str, model_version: str) -> service_pb2.ModelMetadataResponse:
        served = self._find(model_name, model_version)
        config = served.description.config
        response = service_pb2.ModelMetadataResponse(name=model_name, platform=config.platform or config.backend)
        response.versions.extend(each.model_version for each in self.catalog.versions(model_name))
        batch = [-1] if served.batched else []
        for specs, target in ((served.signature.inputs, response.inputs), (served.signature.outputs, response.outputs)):
            for spec in specs:
                target.add(name=spec.name, datatype=spec.datatype, shape=[*batch, *spec.dims])
        return response

    def model_config(self, model_name: str, model_version: str) -> service_pb2.ModelConfigResponse:
        return service_pb2.ModelConfigResponse(config=self._find(model_name, model_version).description.config)

    def model_digest(self, model_name: str, model_version: str) -> str:
        try:
            return self._find(model_name, model_version).digest
        except IsochroneError:
            return ""

    def model_provenance(self, model_name: str, model_version: str) -> dict[str, str]:
        provenance = self.catalog.provenance(model_name, model_version)
        found: dict[str, str] = {} if provenance is None else msgspec.to_builtins(provenance)
        return found

    def model_statistics(self, model_name: str, model_version: str) -> service_pb2.ModelStatisticsResponse:
        versions = self.catalog.versions(model_name) if model_name else self.catalog.all_versions()
        if model_name and not versions:
            raise InvalidArgument(f"requested model '{model_name[:200]}' is not available")
        if model_name and model_version:
            versions = [served for served in versions if served.model_version == model_version]
            if not versions:
                raise InvalidArgument(f"requested model version is not available for model '{model_name[:200]}'")
        response = service_pb2.ModelStatisticsResponse()
        response.model_stats.extend(served.statistics.to_protobuf() for served in versions)
        return response

    # The server.

    def is_live(self) -> bool:
        return not losses.is_lost()

    def is_ready(self) -> bool:
        if not self.accepting or self.stopping or losses.is_lost():
            return False
        if self._audit is not None and not self._audit.is_writable:
            return False
        return not self._strict_readiness or not any(row[2] == "UNAVAILABLE" for row in self._requested())

    def is_committed(self) -> bool:
        return self.is_ready() and (self._is_complete is None or self._is_complete())

    def _requested(self) -> list[tuple[str, str, str, str]]:
        """Rows of the index, without models that were unloaded on request."""
        return [row for row in self.catalog.index() if row[2] and not is_unloaded(row[3])]

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        return self.catalog.is_ready(model_name, model_version)

    def server_metadata(self) -> service_pb2.ServerMetadataResponse:
        response = service_pb2.ServerMetadataResponse(name=self._server_name, version=isochrone.__version__)
        response.extensions.extend(_EXTENSIONS)
        if self.shared_memory is not None and self.shared_memory.allows_system:
            response.extensions.append("system_shared_memory")
        if self.shared_memory is not None and self.shared_memory.cuda is not None:
            response.extensions.append("cuda_shared_memory")
        return response

    def repository_index(self, only_ready: bool) -> service_pb2.RepositoryIndexResponse:
        response = service_pb2.RepositoryIndexResponse()
        for name, version, state, reason in self.catalog.index():
            if state == "READY" or not only_ready:
                response.models.add(name=name, version=version, state=state, reason=reason)
        return response

    async def load(self, model_name: str, parameters: Mapping[str, Any]) -> None:
        self._check_control()
        if not self._allow_file_overrides and any(name.startswith(FILE_PREFIX) for name in parameters):
            raise PermissionDenied(
                f"model '{model_name}': a load request may not carry files, since they may contain code; "
                "start the server with --allow-file-overrides to allow it"
            )
        await self.catalog.load(model_name, parameters)

    async def unload(self, model_name: str, unload_dependents: bool) -> None:
        self._check_control()
        await self.catalog.unload(model_name, dependents=unload_dependents)

    def _check_control(self) -> None:
        if self.stopping:
            raise Unavailable("the server is stopping")
        if not self._allow_control:
            raise Unavailable(
                "explicit model load / unload is not allowed if polling is enabled or control is off; "
                "start the server with --model-control-mode=explicit"
            )

    def trace_setting(self, model_name: str, changes: Mapping[str, list[str] | None]) -> dict[str, list[str]]:
        if model_name and not self.catalog.versions(model_name):
            raise InvalidArgument(f"Request for unknown model : {model_name[:200]}")
        settings = self.tracing.apply(model_name, changes)
        self._apply_verbosity()
        if changes.get("trace_level") and settings["trace_level"] != ["OFF"] and not self.tracing.exports:
            log.warning(
                "trace_level is kept and shown, but no traces are written; start the server with"
                " --trace-config mode=opentelemetry",
                model=model_name or "all",
            )
        return settings

    def log_settings(self, changes: Mapping[str, bool | int | str]) -> dict[str, bool | int | str]:
        settings = self._log_settings.apply(changes)
        self._apply_verbosity()
        return settings

    def register_region(self, name: str, key: str, offset: int, byte_size: int) -> None:
        registered_regions(self).register(name, key, offset, byte_size)

    def unregister_region(self, name: str) -> None:
        registered_regions(self).unregister(name)

    def register_cuda_region(self, name: str, handle: bytes, device_id: int, byte_size: int) -> Deferrable[None]:
        cuda = None if self.shared_memory is None else self.shared_memory.cuda
        if cuda is not None and name and not cuda.is_prepared(device_id):
            return self._register_first(cuda, name, handle, device_id, byte_size)
        register_cuda_region(self, name, handle, device_id, byte_size)
        return None

    async def _register_first(self, cuda: CudaMemory, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """The first region on a device: its context is made off the event loop."""
        await in_thread(partial(cuda.prepare, device_id))
        register_cuda_region(self, name, handle, device_id, byte_size)

    def unregister_cuda_region(self, name: str) -> None:
        unregister_cuda_region(self, name)

    # Load and metrics.

    def begin_stop(self) -> None:
        """Report not ready and draining; requests in flight continue."""
        self.stopping = True
        self._load.drain()

    def load_report(self, model_name: str = "", model_version: str = "") -> LoadReport:
        return self._load.report(model_name, model_version)

    def snapshot(self, wire: WireSnapshot | None = None) -> ServerSnapshot:
        """For the metrics page."""
        versions = self.catalog.all_versions()
        models = [served.statistics.snapshot(served.digest, served.runner.pending) for served in versions]
        generating = [served.runner for served in versions if isinstance(served.runner, GenerationRunner)]
        return ServerSnapshot(
            tuple(models),
            wire,
            self.catalog.cache_snapshot(),
            self.catalog.metrics_of_models(),
            tuple(runner.snapshot() for runner in generating),
            _device_memory(),
            _padded_rows(versions),
            _captured_graphs(versions),
            tuple(served.activations.snapshot() for served in versions if served.activations is not None),
            tuple(served.runner.snapshot() for served in versions if isinstance(served.runner, DividedRunner)),
            self.tracing.snapshot(),
            None if self._access_log is None else self._access_log.snapshot(),
        )

    @property
    def in_flight(self) -> int:
        return sum(served.in_flight for served in self.catalog.all_versions())


def _device_memory() -> tuple[DeviceMemory, ...]:
    return tuple(
        DeviceMemory(ledger.device, account.model, account.version, account.instance, str(holding), size)
        for ledger in ledgers()
        for account, holding, size in ledger
    )


def _padded_rows(versions: Iterable[ServedVersion]) -> tuple[PaddedRows, ...]:
    """Of the versions whose instances pad."""
    padded = []
    for served in versions:
        executables = [instance.executable for instance in getattr(served.runner, "instances", ())]
        if any(executable.pads for executable in executables):
            rows = sum(executable.padded_rows for executable in executables)
            padded.append(PaddedRows(served.model_name, served.model_version, rows))
    return tuple(padded)


def _captured_graphs(versions: Iterable[ServedVersion]) -> tuple[CapturedGraphs, ...]:
    """Of the versions whose instances pad, to which graphs belong, or have captured any in a process of their own."""
    captured = []
    for served in versions:
        executables = [instance.executable for instance in getattr(served.runner, "instances", ())]
        graphs = sum(executable.captured_graphs for executable in executables)
        if graphs or any(executable.pads for executable in executables):
            captured.append(CapturedGraphs(served.model_name, served.model_version, graphs))
    return tuple(captured)
