"""A program: makes the calls that its input lists, as a gRPC client without a proxy, and prints what came of each.

Input: a JSON list of [kind, target, model, version, metadata]; kind is "infer", "stream" or "ready". Output: a list of
the version that answered, or of the status and message. Its bootstrap is in GRPC_XDS_BOOTSTRAP_CONFIG.
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


def _made(kind: str, target: str, model: str, version: str, metadata: dict[str, str]) -> str:
    given = triton.InferInput("X", [1, 1], "FP32")
    given.set_data_from_numpy(np.ones((1, 1), np.float32))
    with triton.InferenceServerClient(target) as client:
        if kind == "ready":
            return str(client.is_server_ready())
        if kind == "infer":
            result = client.infer(model, [given], model_version=version, headers=metadata, client_timeout=60)
            return str(result.get_response().model_version)
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)), headers=metadata)
        client.async_stream_infer(model, [given], model_version=version)
        result, error = answers.get(timeout=60)
        client.stop_stream()
        if error is not None:
            raise error
        return str(result.get_response().model_version)


def _outcome(*call: Any) -> str:
    try:
        return _made(*call)
    except InferenceServerException as error:
        return f"{error.status()} {error.message()}"


if __name__ == "__main__":
    json.dump([_outcome(*call) for call in json.load(sys.stdin)], sys.stdout)
