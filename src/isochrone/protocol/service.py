"""The one interface both transports call, and the only thing they know of a server.

The worker implements it over models it runs. Control messages are the protocol's own protobuf messages; REST renders
them as JSON. ``infer`` is the hot path: it answers through the request's own methods, later or before it returns.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tritonclient.grpc import service_pb2

    from isochrone.protocol.access.fencing import Fence
    from isochrone.protocol.messages import InferRequest
    from isochrone.protocol.tensors.shared_memory import SharedMemoryRegions


class InferenceService(abc.ABC):
    """What a server of the Open Inference Protocol can do. Errors are raised as ``IsochroneError``."""

    #: System shared-memory regions clients registered; None where shared memory is switched off.
    shared_memory: SharedMemoryRegions | None = None
    #: What calls that change the server must carry (see ``control_token``); "": any call may.
    control_token: str = ""
    #: Which leader may change the server: see ``fencing``.
    fence: Fence

    @abc.abstractmethod
    def infer(self, request: InferRequest) -> None:
        """Takes a request; answers it through its methods. Raises only before it has taken it."""

    @abc.abstractmethod
    def is_decoupled(self, model_name: str, model_version: str) -> bool:
        """Whether the model answers a request any number of times."""

    @abc.abstractmethod
    def declared_inputs(
        self, model_name: str, model_version: str
    ) -> tuple[tuple[tuple[str, str, tuple[int, ...]], ...], int]:
        """(name, datatype, dims without batch) of each input, and max_batch_size: for raw and generate requests."""

    @abc.abstractmethod
    def is_live(self) -> bool: ...

    @abc.abstractmethod
    def is_ready(self) -> bool: ...

    @abc.abstractmethod
    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        """False for a model that the server does not know, too. Raises for a version that is no number."""

    @abc.abstractmethod
    def server_metadata(self) -> service_pb2.ServerMetadataResponse: ...

    @abc.abstractmethod
    def model_metadata(self, model_name: str, model_version: str) -> service_pb2.ModelMetadataResponse: ...

    @abc.abstractmethod
    def model_config(self, model_name: str, model_version: str) -> service_pb2.ModelConfigResponse: ...

    @abc.abstractmethod
    def model_statistics(self, model_name: str, model_version: str) -> service_pb2.ModelStatisticsResponse:
        """An empty name means every model."""

    @abc.abstractmethod
    def repository_index(self, only_ready: bool) -> service_pb2.RepositoryIndexResponse: ...

    @abc.abstractmethod
    def model_digest(self, model_name: str, model_version: str) -> str:
        """SHA-256 of a version's artifact and configuration, for metadata and the index; "" if not loaded."""

    @abc.abstractmethod
    async def load(self, model_name: str, parameters: Mapping[str, Any]) -> None:
        """Returns when the model is ready. Parameters as Triton's: ``config`` (str), ``file:…`` (bytes)."""

    @abc.abstractmethod
    async def unload(self, model_name: str, unload_dependents: bool) -> None:
        """Returns when in-flight requests are done and the memory is free."""

    @abc.abstractmethod
    def trace_setting(self, model_name: str, changes: Mapping[str, list[str] | None]) -> dict[str, list[str]]:
        """Applies changes (None resets a key to its default) and returns the settings."""

    @abc.abstractmethod
    def log_settings(self, changes: Mapping[str, bool | int | str]) -> dict[str, bool | int | str]: ...

    @abc.abstractmethod
    def load_report(self, model_name: str = "", model_version: str = "") -> Mapping[str, float]:
        """This server's load now, for ORCA reports: queue depth, requests in flight, estimated wait, free memory.

        With a model's name, wait and run are that model's.
        """
