"""Models for tests of tracing, and calls to them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import tritonclient.grpc
import tritonclient.http

from isochrone.observe.tracing.trace_parent import write_trace_parent
from sample_models import write_config, write_python

_TENSORS = """
    input { name: "X" data_type: TYPE_FP32 dims: [1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [1] }
"""
#: X below 0: it raises; otherwise it takes X milliseconds.
_SLEEPS = """
import time


class Model:
    def infer(self, inputs):
        if (inputs["X"] < 0).any():
            raise ValueError("a negative number")
        time.sleep(float(inputs["X"].max()) / 1000)
        return {"Y": inputs["X"] + 1}
"""


def write_sleeps(directory: Path, more: str = "") -> None:
    """Y = X + 1 after X milliseconds; below 0 it fails."""
    write_config(directory, f'backend: "python"\n{_TENSORS}{more}')
    write_python(directory, _SLEEPS)


def write_batched(directory: Path, requests: int) -> None:
    """The same, in batches of exactly so many requests of one row."""
    write_sleeps(
        directory,
        f"""
        max_batch_size: {requests}
        dynamic_batching {{ preferred_batch_size: [{requests}] max_queue_delay_microseconds: 20000000 }}
        """,
    )


def write_ensemble(directory: Path, *steps: str) -> None:
    """Steps one after the other, each X → Y."""
    names = ["X", *(f"between{number}" for number in range(1, len(steps))), "Y"]
    scheduled = "".join(
        f"""
          step {{
            model_name: "{model}"
            model_version: -1
            input_map {{ key: "X" value: "{names[number]}" }}
            output_map {{ key: "Y" value: "{names[number + 1]}" }}
          }}"""
        for number, model in enumerate(steps)
    )
    write_config(directory, f'platform: "ensemble"\n{_TENSORS}ensemble_scheduling {{{scheduled}\n}}')
    (directory / "1").mkdir()


def write_remote(directory: Path, endpoint: str, model: str) -> None:
    parameters = {"endpoints": endpoint, "remote_model": model}
    text = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
    )
    write_config(directory, f'backend: "remote"\n{_TENSORS}{text}')
    (directory / "1").mkdir()


def call_http(address: str, model: str, value: float, rows: int = 0, **headers: str) -> int:
    """The status of one request over HTTP; ``rows``: of a model with batches."""
    data = {"name": "X", "datatype": "FP32", "shape": [rows, 1] if rows else [1], "data": [value] * (rows or 1)}
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    body = json.dumps({"id": sent.pop("request-id", ""), "inputs": [data]}).encode()
    asked = urllib.request.Request(f"http://{address}/v2/models/{model}/infer", body, sent)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.read()
        return error.code


def call_grpc(address: str, model: str, value: float, headers: dict[str, str]) -> Any:
    import numpy as np

    with tritonclient.grpc.InferenceServerClient(address) as client:
        given = tritonclient.grpc.InferInput("X", [1], "FP32")
        given.set_data_from_numpy(np.array([value], np.float32))
        return client.infer(model, [given], headers=headers)


def context(trace_id: int, span_id: int = 0xABC, *, is_sampled: bool = True) -> str:
    return write_trace_parent(trace_id, span_id, is_sampled)


def identity(value: int, size: int) -> bytes:
    """As spans carry it."""
    return value.to_bytes(size, "big")
