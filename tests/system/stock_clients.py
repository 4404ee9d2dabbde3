"""The four stock clients behind one face, so that one test speaks to all of them.

``StockClient.call`` names a method of the client; where the client is asyncio's, it runs to its end here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from server_process import ServerProcess

Array = np.ndarray[Any, np.dtype[Any]]

KINDS = ("http", "grpc", "http.aio", "grpc.aio")

_MODULES: dict[str, Any] = {
    "http": tritonclient.http,
    "grpc": tritonclient.grpc,
    "http.aio": tritonclient.http.aio,
    "grpc.aio": tritonclient.grpc.aio,
}

NUMPY_BY_DATATYPE: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
    "BYTES": np.object_,
}


class StockClient:
    """One client of tritonclient, connected to a server."""

    def __init__(self, kind: str, server: ServerProcess, url: str = "", **arguments: Any) -> None:
        self.kind = kind
        self.is_http = kind.startswith("http")
        self.module = _MODULES[kind]
        self._runner = asyncio.Runner() if kind.endswith("aio") else None
        url = url or (server.http_url if self.is_http else server.grpc_url)
        self.raw: Any = self.call_function(lambda: self.module.InferenceServerClient(url, **arguments))

    def call_function(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Calls with a loop running where the client wants one, and waits for what it returns."""
        if self._runner is None:
            return function(*arguments, **keywords)

        async def run() -> Any:
            result = function(*arguments, **keywords)
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(run())

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return self.call_function(getattr(self.raw, method), *arguments, **keywords)

    def input(self, name: str, array: Array, datatype: str = "", *, binary: bool = True) -> Any:
        datatype = datatype or tritonclient.utils.np_to_triton_dtype(array.dtype)
        made = self.module.InferInput(name, list(array.shape), datatype)
        if self.is_http:
            made.set_data_from_numpy(array, binary_data=binary)
        else:
            made.set_data_from_numpy(array)
        return made

    def output(self, name: str, *, binary: bool = True, class_count: int = 0) -> Any:
        if self.is_http:
            return self.module.InferRequestedOutput(name, binary_data=binary, class_count=class_count)
        return self.module.InferRequestedOutput(name, class_count=class_count)

    def infer(
        self,
        model: str,
        inputs: dict[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        binary: bool = True,
        **keywords: Any,
    ) -> Any:
        """One inference; the stock ``InferResult``."""
        requested = None if outputs is None else [self.output(name, binary=binary) for name in outputs]
        sent = [self.input(name, array, binary=binary) for name, array in inputs.items()]
        return self.call("infer", model, sent, outputs=requested, **keywords)

    def control(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """A call that answers with data, as the JSON form both transports share."""
        if not self.is_http:
            keywords["as_json"] = True
        return self.call(method, *arguments, **keywords)

    def count(self, model: str, version: str = "") -> dict[str, Any]:
        """The statistics of one model version, with numbers as numbers."""
        answer = self.control("get_inference_statistics", model, version)
        (statistics,) = answer["model_stats"]
        return {
            "inferences": int(statistics.get("inference_count", 0)),
            "executions": int(statistics.get("execution_count", 0)),
            **{
                key: int(value.get("count", 0))
                for key, value in statistics["inference_stats"].items()
                if isinstance(value, dict)
            },
            "batches": {
                int(row["batch_size"]): int(row["compute_infer"]["count"]) for row in statistics.get("batch_stats", ())
            },
        }

    def close(self) -> None:
        self.call("close")
        if self._runner is not None:
            self._runner.close()
