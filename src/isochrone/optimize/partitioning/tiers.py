"""A worker of a tier, as a place to measure: models are loaded into it, timed and unloaded again.

The worker must run with ``--model-control-mode explicit --allow-file-overrides``. Models are loaded one after
the other under a name of their own, so that nothing that the worker serves is touched, and unloaded whatever happens. A
worker of a fleet wants the token that its record has; the fleet's controllers leave such models alone for a while.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np

from isochrone.errors import InvalidArgument, Unavailable
from isochrone.models.repository.names import MEASURED_SECONDS, measured_name
from isochrone.optimize.partitioning.facts import Arrays
from isochrone.protocol.access import control_token
from isochrone.protocol.compression import zstd
from isochrone.protocol.headers.timing import parse_server_timing
from isochrone.protocol.tensors.datatypes import name_of

_FORBIDDEN, _TOO_LARGE = 403, 413
#: A load of a large model takes a while.
_PATIENCE = 120.0
_UNLOAD_PATIENCE = 20.0


class Rejected(InvalidArgument):
    """The worker answered, and did not do what was asked."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request: the worker's times, and what it sent.

    ``dispatch`` is the time before the queue, with decompression; ``serialise`` the time behind the run, with
    compression.
    """

    dispatch_seconds: float
    compute_seconds: float
    serialise_seconds: float
    encoding: str
    sent_bytes: int
    #: Decompressed.
    body: bytes


class TierWorker:
    """``with TierWorker("edge", "http://edge-1:8000") as worker``.

    Raises ``Rejected`` or, without an answer, ``Unavailable``; both name the tier.
    """

    def __init__(
        self,
        tier: str,
        url: str,
        reached: str = "",
        token: str = "",
        pool: str = "",
        fields: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        certificates: Mapping[str, str] | None = None,
    ) -> None:
        """``reached``: the address that the other tier sends to, if it is not ``url``. ``token`` and ``pool``: of a
        worker of a fleet. ``fields``: headers with the caller's own token. ``transport``: knows the authorities of
        ``https``. ``certificates``: parameters of a remote model on the other tier that calls this worker: ``ca``,
        ``cert``, ``key``."""
        self.tier = tier
        self.url = url if "://" in url else f"http://{url}"
        self.reached = reached or self.url
        self.certificates = dict(certificates or {})
        self._control = {control_token.HEADER: token} if token else {}
        self._pool = pool
        #: When the model that is measured was loaded; 0: none was.
        self._loaded_at = 0.0
        self._client = httpx.Client(
            base_url=self.url, timeout=_PATIENCE, trust_env=False, headers=dict(fields or {}), transport=transport
        )

    def __enter__(self) -> TierWorker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    @contextmanager
    def loaded(self, config: Mapping[str, Any], model: bytes | None = None) -> Iterator[str]:
        """Loads a model, without a file if it needs none; yields its name.

        A load that was not answered, or was interrupted, may still take place: it is unloaded too.
        """
        name = measured_name(secrets.token_hex(8))
        self._loaded_at = 0.0
        parameters: dict[str, str] = {"config": json.dumps({**config, "name": name})}
        file = b"" if model is None else model
        parameters["file:1/model.onnx"] = base64.b64encode(file).decode()
        try:
            self._call(
                "POST", f"/v2/repository/models/{name}/load", json={"parameters": parameters}, headers=self._control
            )
        except Rejected:
            raise
        except BaseException:
            with suppress(Rejected):
                self._unload(name)
            raise
        self._loaded_at = time.monotonic()
        try:
            yield name
        finally:
            self._unload(name)

    def _unload(self, name: str) -> None:
        # A tier that is gone takes its models with it.
        with suppress(Unavailable):
            path = f"/v2/repository/models/{name}/unload"
            self._call("POST", path, json={}, headers=self._control, timeout=_UNLOAD_PATIENCE)

    def compute_seconds(self, model: str, inputs: Arrays) -> float:
        """The computing time of one request, as the worker reports it: no network, no queue."""
        return self.answer(model, inputs).compute_seconds

    def answer(self, model: str, inputs: Arrays, *, in_zstd: bool = False, as_zstd: bool = False) -> Answer:
        """``as_zstd``: send the request so; ``in_zstd``: ask for the answer so."""
        body, length = request_body(inputs)
        headers = {
            "inference-header-content-length": str(length),
            "x-isochrone-timing": "1",
            "accept-encoding": "zstd" if in_zstd else "identity",
        }
        if as_zstd:
            body = b"".join(zstd.compress([body]))
            headers["content-encoding"] = "zstd"
        answer = self._call("POST", f"/v2/models/{quote(model, safe='')}/infer", content=body, headers=headers)
        stages = parse_server_timing(answer.headers.get("server-timing", ""))
        if "compute" not in stages:
            raise Unavailable(f"{self.tier}: {self.url} reports no compute time: expected a worker of Isochrone")
        return Answer(
            stages.get("dispatch", 0.0) / 1e3,
            stages["compute"] / 1e3,
            stages.get("serialise", 0.0) / 1e3,
            answer.headers.get("content-encoding", "identity"),
            int(answer.headers.get("content-length", "0")),
            answer.content,
        )

    def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **more)
        except httpx.HTTPError as error:
            raise Unavailable(
                f"{self.tier}: {self.url} does not answer ({type(error).__name__}: {error}); nothing was written"
            ) from None
        if answer.status_code == _TOO_LARGE:
            raise Rejected(
                f"{self.tier}: {self.url}{path} answered 413: {answer.text[:200]}; start the worker with a larger "
                "--max-body-bytes: a load request carries a model in base64, which is 4/3 of its size"
            )
        if answer.status_code == _FORBIDDEN:
            remedy = self._remedy(answer.text)
            raise Rejected(f"{self.tier}: {self.url}{path} answered 403: {answer.text[:500]}{remedy}")
        if answer.status_code != 200:
            reason = f"{self.tier}: {self.url}{path} answered {answer.status_code}: {answer.text[:500]}"
            if self._control and self._loaded_at and time.monotonic() - self._loaded_at > MEASURED_SECONDS:
                reason += (
                    f"; the fleet's controllers unload a measured model after {MEASURED_SECONDS:.0f} s, and this one "
                    "took longer: measure it on workers outside the fleet, with --edge and --core"
                )
            raise Rejected(reason)
        return answer

    def _remedy(self, reason: str) -> str:
        if "belongs to a fleet" in reason:
            return "; run the command again" if self._control else "; measure it with --tiers NEAR,FAR"
        if self._pool:
            return f"; in fleet.yaml: pools.{self._pool}.arguments: [--allow-file-overrides]"
        return ""


def request_body(inputs: Arrays) -> tuple[bytes, int]:
    """With the length of its JSON part."""
    arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    described = [
        {
            "name": name,
            "datatype": name_of(array.dtype),
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(array.tobytes() for array in arrays.values()), len(head)
