"""The trace context of a caller reaches the second stage: over HTTP and gRPC, alone and from inside an ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isochrone
from recording_core import grpc_core, http_core
from server_process import StartServer

CONTEXT = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    "baggage": "agent=7,site=north%20hall",
}
TENSORS = """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""


def write(repository: Path, endpoint: str) -> None:
    for name, config in (
        ("m", f'backend: "remote" parameters {{ key: "endpoints" value {{ string_value: "{endpoint}" }} }}'),
        (
            "whole",
            'platform: "ensemble" ensemble_scheduling { step { model_name: "m" model_version: -1 '
            'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }',
        ),
    ):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{TENSORS}{config}\n')


@pytest.mark.parametrize("make", [http_core, grpc_core])
def test_it_travels_through_a_remote_model(make: Any, tmp_path: Path, server_factory: StartServer) -> None:
    with make() as core:
        write(tmp_path, core.address)
        with server_factory(tmp_path) as edge:
            for url in (f"http://{edge.http_url}", f"grpc://{edge.grpc_url}"):
                with isochrone.Client(url, retries=0) as client:
                    for model in ("m", "whole"):
                        rows = {"x": np.ones((1, 2), np.float32)}
                        np.testing.assert_array_equal(client.infer(model, rows, headers=CONTEXT)["y"], rows["x"])
                        assert CONTEXT.items() <= core.headers.pop().items(), (url, model)
                        client.infer(model, rows)
                        assert not CONTEXT.keys() & core.headers.pop().keys(), (url, model)
    assert not core.headers
