"""The service of a process that is one of several: requests are its own, control calls are everybody's.

Changes go to the coordinator; statistics, index and readiness of models are asked of the processes directly, so that
they are answered while the coordinator restarts. The private socket serves the process's own service.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from google.protobuf import json_format
from tritonclient.grpc import service_pb2

from isochrone.clock import now_ns
from isochrone.errors import ConnectionLost, IsochroneError, Unavailable
from isochrone.multiprocess.coordination.control_record import Change
from isochrone.multiprocess.coordination.indexes import common_index
from isochrone.multiprocess.group.board import LISTENING
from isochrone.multiprocess.group.private_calls import NotReached, call_json, gather
from isochrone.protocol.merging import merge_messages
from isochrone.protocol.services.service import InferenceService
from isochrone.protocol.shared_memory_requests import registered_regions

if TYPE_CHECKING:
    from isochrone.multiprocess.group.group import ProcessGroup
    from isochrone.protocol.headers.orca import LoadReport
    from isochrone.protocol.messages import InferRequest

_READ_SECONDS = 5.0
_CHANGE_SECONDS = 3600.0
#: Seconds to wait for a coordinator that restarts, and between attempts. Until it is reached, nothing was sent.
_COORDINATOR_SECONDS = 10.0
_PAUSE = 0.05


class SharedService(InferenceService):
    """Process ``number`` of a group, as its public ports see it."""

    def __init__(self, local: InferenceService, group: ProcessGroup, number: int) -> None:
        self._local = local
        self._group = group
        self._number = number
        self.shared_memory = local.shared_memory
        self.control_token = local.control_token
        self.fence = local.fence

    # Requests and what describes a model: this process's.

    def infer(self, request: InferRequest) -> None:
        self._local.infer(request)

    def is_decoupled(self, model_name: str, model_version: str) -> bool:
        return self._local.is_decoupled(model_name, model_version)

    def takes_device_arrays(self, model_name: str, model_version: str) -> bool:
        return self._local.takes_device_arrays(model_name, model_version)

    def declared_inputs(
        self, model_name: str, model_version: str
    ) -> tuple[tuple[tuple[str, str, tuple[int, ...]], ...], int]:
        return self._local.declared_inputs(model_name, model_version)

    def is_live(self) -> bool:
        return self._local.is_live()

    def server_metadata(self) -> service_pb2.ServerMetadataResponse:
        return self._local.server_metadata()

    def model_metadata(self, model_name: str, model_version: str) -> service_pb2.ModelMetadataResponse:
        return self._local.model_metadata(model_name, model_version)

    def model_config(self, model_name: str, model_version: str) -> service_pb2.ModelConfigResponse:
        return self._local.model_config(model_name, model_version)

    def model_digest(self, model_name: str, model_version: str) -> str:
        return self._local.model_digest(model_name, model_version)

    def model_provenance(self, model_name: str, model_version: str) -> dict[str, str]:
        return self._local.model_provenance(model_name, model_version)

    def load_report(self, model_name: str = "", model_version: str = "") -> LoadReport:
        return self._local.load_report(model_name, model_version)

    # What all processes say together.

    def is_ready(self) -> bool:
        return self._local.is_ready() and self._group.board.all_ready(now_ns())

    async def is_model_ready(self, model_name: str, model_version: str) -> bool:
        here = self._local.is_model_ready(model_name, model_version)
        if not (await here if isinstance(here, Awaitable) else here):
            return False
        version = f"/versions/{quote(model_version, safe='')}" if model_version else ""
        answers = await self._ask("GET", f"/v2/models/{quote(model_name, safe='')}{version}/ready")
        return not any(isinstance(answer, IsochroneError) for answer in answers.values())

    async def model_statistics(self, model_name: str, model_version: str) -> service_pb2.ModelStatisticsResponse:
        # Raises for a model that is not served.
        here = self._local.model_statistics(model_name, model_version)
        version = f"/versions/{quote(model_version, safe='')}" if model_version else ""
        target = f"/v2/models/{quote(model_name, safe='')}{version}/stats" if model_name else "/v2/models/stats"
        messages = [await here if isinstance(here, Awaitable) else here]
        for number, answer in (await self._ask("GET", target)).items():
            if isinstance(answer, Unavailable):
                raise answer.within(f"process {number}")
            if not isinstance(answer, IsochroneError):
                response = service_pb2.ModelStatisticsResponse()
                messages.append(json_format.ParseDict(answer, response, ignore_unknown_fields=True))
        return merge_messages(messages, ("name", "version"))

    async def repository_index(self, only_ready: bool) -> service_pb2.RepositoryIndexResponse:
        here = self._local.repository_index(False)
        own = await here if isinstance(here, Awaitable) else here
        rows = {self._number: [(row.name, row.version, row.state, row.reason) for row in own.models]}
        for number, answer in (await self._ask("POST", "/v2/repository/index", {})).items():
            if isinstance(answer, IsochroneError):
                rows[number] = [
                    (name, version, "UNAVAILABLE", str(answer)) for name, version, _, _ in rows[self._number]
                ]
            else:
                rows[number] = [(row["name"], row["version"], row["state"], row["reason"]) for row in answer]
        response = service_pb2.RepositoryIndexResponse()
        for name, version, state, reason in common_index(rows):
            if state == "READY" or not only_ready:
                response.models.add(name=name, version=version, state=state, reason=reason)
        return response

    async def _ask(self, method: str, target: str, value: Any = None) -> dict[int, Any]:
        """The answers of the other processes that accept connections."""
        group = self._group
        others = [number for number in group.board.those(LISTENING) if number != self._number]
        return await gather(
            {number: call_json(group.socket(number), method, target, value, seconds=_READ_SECONDS) for number in others}
        )

    # Changes: by the coordinator, in every process.

    async def load(self, model_name: str, parameters: Mapping[str, Any]) -> None:
        encoded = {
            key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for key, value in parameters.items()
        }
        await self._change(Change("load", model_name, {"parameters": encoded} if encoded else {}))

    async def unload(self, model_name: str, unload_dependents: bool) -> None:
        value = {"parameters": {"unload_dependents": True}} if unload_dependents else {}
        await self._change(Change("unload", model_name, value))

    async def register_region(self, name: str, key: str, offset: int, byte_size: int) -> None:
        registered_regions(self)
        if not name:
            # Has no path; the process itself names the error.
            self._local.register_region(name, key, offset, byte_size)
        await self._change(Change("register", name, {"key": key, "offset": offset, "byte_size": byte_size}))

    async def unregister_region(self, name: str) -> None:
        registered_regions(self)
        await self._change(Change("unregister", name, {}))

    async def register_cuda_region(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        if self.shared_memory is None or self.shared_memory.cuda is None or not name:
            # The process itself names the error: without a name, the call has no path.
            self._local.register_cuda_region(name, handle, device_id, byte_size)
        given = {"b64": base64.b64encode(handle).decode()}
        value = {"raw_handle": given, "device_id": device_id, "byte_size": byte_size}
        await self._change(Change("register_cuda", name, value))

    async def unregister_cuda_region(self, name: str) -> None:
        if self.shared_memory is not None and self.shared_memory.cuda is not None:
            await self._change(Change("unregister_cuda", name, {}))

    async def trace_setting(self, model_name: str, changes: Mapping[str, list[str] | None]) -> dict[str, list[str]]:
        if changes:
            await self._change(Change("trace", model_name, dict(changes)))
        here = self._local.trace_setting(model_name, {})
        settings = await here if isinstance(here, Awaitable) else here
        if settings.get("trace_count", ["-1"]) == ["-1"]:
            return settings
        # Each process has its share of the count, and what is left of that.
        target = f"/v2/models/{quote(model_name, safe='')}/trace/setting" if model_name else "/v2/trace/setting"
        left = int(settings["trace_count"][0])
        for answer in (await self._ask("GET", target)).values():
            if not isinstance(answer, IsochroneError):
                left += int(_last(answer.get("trace_count", "0")))
        return {**settings, "trace_count": [str(left)]}

    async def log_settings(self, changes: Mapping[str, bool | int | str]) -> dict[str, bool | int | str]:
        if changes:
            await self._change(Change("log", "", dict(changes)))
        settings = self._local.log_settings({})
        return await settings if isinstance(settings, Awaitable) else settings

    async def _change(self, change: Change) -> None:
        await call_coordinator(self._group, change.target, change.value, seconds=_CHANGE_SECONDS)


async def call_coordinator(group: ProcessGroup, target: str, value: Any = None, *, seconds: float) -> Any:
    """Wait for a coordinator that restarts; a call that it may have begun is not repeated."""
    ends = now_ns() + int(_COORDINATOR_SECONDS * 1e9)
    while True:
        try:
            return await call_json(group.coordinator_socket, "POST", target, value, seconds=seconds)
        except ConnectionLost:
            raise Unavailable(
                "the coordinator of the processes ended during the call, which its successor undoes where that is"
                " possible; repeat the call"
            ) from None
        except NotReached as error:
            if now_ns() > ends:
                raise Unavailable(f"the coordinator of the processes does not run: {error}").not_begun() from None
        await asyncio.sleep(_PAUSE)


def _last(value: str | list[str]) -> str:
    """A setting as the trace API writes it: a text, or a list of them."""
    return value[-1] if isinstance(value, list) else value
