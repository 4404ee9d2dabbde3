"""BOOL tensors whose bytes are neither 0 nor 1: the memoised path and the first one must give the model the same."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from isochrone.protocol.grpc.decoder import InferDecoder
from isochrone.protocol.rest.plan import decode_plan, read_inputs

BYTES = bytes([0, 1, 2, 255])
SERVICE: Any = SimpleNamespace(shared_memory=None)


def test_grpc_reads_the_same_every_time() -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="BOOL", shape=[4])
    message.inputs.add(name="y", datatype="UINT8", shape=[4])
    message.raw_input_contents.extend([BYTES, BYTES])
    body = message.SerializeToString()
    decoder = InferDecoder(SERVICE)
    for _ in range(3):
        _, _, inputs = decoder.decode(body, 0)
        assert inputs["x"].tobytes() == bytes([0, 1, 1, 1])
        assert inputs["x"].dtype == np.bool_
        assert inputs["y"].tobytes() == BYTES


@pytest.mark.parametrize("binary_outputs", [True, False])
def test_rest_reads_the_same_on_both_paths(binary_outputs: bool) -> None:
    header = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "BOOL", "shape": [2, 2], "parameters": {"binary_data_size": 4}},
                {"name": "y", "datatype": "UINT8", "shape": [4], "parameters": {"binary_data_size": 4}},
            ],
            "parameters": {"binary_data_output": binary_outputs},
        }
    ).encode()
    plan, _ = decode_plan(header, "m", "")
    # Only a request whose outputs are binary too is memoised.
    assert plan.is_plain == binary_outputs
    inputs = read_inputs(plan, header + BYTES + BYTES, len(header), SERVICE)
    assert inputs["x"].tolist() == [[False, True], [True, True]]
    assert inputs["x"].tobytes() == bytes([0, 1, 1, 1])
    assert inputs["y"].tobytes() == BYTES


def test_bytes_that_are_right_are_not_copied() -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="BOOL", shape=[4])
    message.raw_input_contents.append(bytes([0, 1, 1, 0]))
    body = message.SerializeToString()
    decoder = InferDecoder(SERVICE)
    for _ in range(2):
        decoder.decode(body, 0)
    _, _, inputs = decoder.decode(body, 0)
    assert np.shares_memory(inputs["x"], np.frombuffer(body, np.uint8))
