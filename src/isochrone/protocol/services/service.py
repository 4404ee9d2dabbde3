"""The interface that both transports call; they know nothing else about a server.

The worker implements it. Control messages are the protocol's own protobuf messages; REST renders them as JSON.
``infer`` is the hot path: it answers through the request's methods, before or after it returns.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from tritonclient.grpc import service_pb2

    from isochrone.protocol.access.fencing import Fence
    from isochrone.protocol.headers.orca import LoadReport
    from isochrone.protocol.messages import InferRequest
    from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions

_T = TypeVar("_T")
#: An answer now, or later: a server of several processes asks the others first.
Deferrable: TypeAlias = _T | Awaitable[_T]


class InferenceService(abc.ABC):
    """A server of the Open Inference Protocol. Methods raise ``IsochroneError``."""

    #: Shared-memory regions that clients registered; None: shared memory of both kinds is off.
    shared_memory: SharedMemoryRegions | None = None
    #: The token of calls that change the server (see ``access.control_token``); "": no token is required.
    control_token: str = ""
    #: Rejects control calls of earlier leaders; see ``access.fencing``.
    fence: Fence

    @abc.abstractmethod
    def infer(self, request: InferRequest) -> None:
        """Accept a request and answer it through its methods. Raises only if the request is not accepted."""

    @abc.abstractmethod
    def is_decoupled(self, model_name: str, model_version: str) -> bool:
        """Whether the model sends any number of responses to a request."""

    @abc.abstractmethod
    def declared_inputs(
        self, model_name: str, model_version: str
    ) -> tuple[tuple[tuple[str, str, tuple[int, ...]], ...], int]:
        """(name, datatype, dims without batch) of each input, and max_batch_size; for raw and generate requests."""

    @abc.abstractmethod
    def takes_device_arrays(self, model_name: str, model_version: str) -> bool:
        """Whether the version that would run takes inputs on a device (``DeviceArray``) as well as arrays."""

    @abc.abstractmethod
    def is_live(self) -> bool: ...

    @abc.abstractmethod
    def is_ready(self) -> bool: ...

    def is_committed(self) -> bool:
        """Whether it is ready and, in a fleet, serves every version that is committed for it.

        For whatever replaces servers one after the other. Gateways and controllers ask ``is_ready``: models are loaded
        into a server that is ready.
        """
        return self.is_ready()

    @abc.abstractmethod
    def is_model_ready(self, model_name: str, model_version: str) -> Deferrable[bool]:
        """False also for an unknown model. Raises if the version is not a number."""

    @abc.abstractmethod
    def server_metadata(self) -> service_pb2.ServerMetadataResponse: ...

    @abc.abstractmethod
    def model_metadata(self, model_name: str, model_version: str) -> service_pb2.ModelMetadataResponse: ...

    @abc.abstractmethod
    def model_config(self, model_name: str, model_version: str) -> service_pb2.ModelConfigResponse: ...

    @abc.abstractmethod
    def model_statistics(self, model_name: str, model_version: str) -> Deferrable[service_pb2.ModelStatisticsResponse]:
        """An empty name means every model."""

    @abc.abstractmethod
    def repository_index(self, only_ready: bool) -> Deferrable[service_pb2.RepositoryIndexResponse]: ...

    @abc.abstractmethod
    def model_digest(self, model_name: str, model_version: str) -> str:
        """SHA-256 of a version's artifact and configuration, for metadata and the index; "" if not loaded."""

    def model_provenance(self, model_name: str, model_version: str) -> dict[str, str]:
        """Who signed a version, when, and from what; {}: it is not loaded, or nobody had to sign it."""
        return {}

    @abc.abstractmethod
    async def load(self, model_name: str, parameters: Mapping[str, Any]) -> None:
        """Return when the model is ready. Parameters are Triton's: ``config`` (str), ``file:…`` (bytes)."""

    @abc.abstractmethod
    async def unload(self, model_name: str, unload_dependents: bool) -> None:
        """Return when in-flight requests have ended and the memory is free."""

    @abc.abstractmethod
    def trace_setting(
        self, model_name: str, changes: Mapping[str, list[str] | None]
    ) -> Deferrable[dict[str, list[str]]]:
        """Apply changes (None resets a key to its default) and return the settings."""

    @abc.abstractmethod
    def log_settings(self, changes: Mapping[str, bool | int | str]) -> Deferrable[dict[str, bool | int | str]]: ...

    @abc.abstractmethod
    def register_region(self, name: str, key: str, offset: int, byte_size: int) -> Deferrable[None]:
        """Raises ``Unsupported`` if shared memory is off."""

    @abc.abstractmethod
    def unregister_region(self, name: str) -> Deferrable[None]:
        """An empty name means every system region."""

    @abc.abstractmethod
    def register_cuda_region(self, name: str, handle: bytes, device_id: int, byte_size: int) -> Deferrable[None]:
        """Raises ``InvalidArgument`` if CUDA shared memory is off."""

    @abc.abstractmethod
    def unregister_cuda_region(self, name: str) -> Deferrable[None]:
        """An empty name means every CUDA region."""

    @abc.abstractmethod
    def load_report(self, model_name: str = "", model_version: str = "") -> LoadReport:
        """The server's current load, for ORCA reports: queue depth, requests in flight, estimated wait, free memory.

        With a model's name, the wait and run times are that model's.
        """
