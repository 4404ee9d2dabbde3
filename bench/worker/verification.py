"""Sends each server one request with a real client and compares the answer with numpy or onnxruntime, before any load.

A load generator that counts errors as answers makes a broken server look fast.
"""

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http

from bench.worker.bare_onnxruntime import session
from bench.worker.models import INPUT, OUTPUT
from bench.worker.peers import Peer
from bench.worker.scenarios import Cell, Scenario, variants


class WrongAnswer(RuntimeError):
    """A server answered, but not what the model computes."""


def verify(peer: Peer, cells: list[Cell], onnx_files: Mapping[str, Path]) -> list[str]:
    """Checks every model and transport that the cells use on this server; returns what was checked."""
    checked: list[str] = []
    for cell in cells:
        for scenario in variants(peer, cell):
            label = f"{scenario.model}/{cell.transport}"
            if label in checked:
                continue
            given = _ask(peer, scenario, cell.transport)
            expected = _expected(peer, scenario, onnx_files)
            if given.shape != expected.shape or not np.allclose(given, expected, rtol=1e-4, atol=1e-4):
                raise WrongAnswer(f"{peer.name} {label}: expected {expected[..., :4]}, given {given[..., :4]}")
            checked.append(label)
    return checked


def _expected(peer: Peer, scenario: Scenario, onnx_files: Mapping[str, Path]) -> np.ndarray:
    if scenario.model in onnx_files:
        (output,) = session(onnx_files[scenario.model]).run([OUTPUT], {INPUT: scenario.tensor()})
        return np.asarray(output)
    return scenario.tensor()


def _ask(peer: Peer, scenario: Scenario, transport: str) -> np.ndarray:
    if transport == "http" and peer.identity is not None:
        # Servers of another protocol get a fixed document of ones; hand back what a tensor of theirs would be.
        return np.asarray(scenario.tensor() * _ask_json(peer))
    client_module = tritonclient.http if transport == "http" else tritonclient.grpc
    tensor = client_module.InferInput(INPUT, list(scenario.shape), "FP32")
    tensor.set_data_from_numpy(scenario.tensor())
    address = peer.http_url.removeprefix("http://") if transport == "http" and peer.http_url else peer.grpc_address
    client = client_module.InferenceServerClient(address)
    try:
        answer = client.infer(scenario.model, [tensor], outputs=[client_module.InferRequestedOutput(OUTPUT)])
        return np.asarray(answer.as_numpy(OUTPUT))
    finally:
        client.close()


def _ask_json(peer: Peer) -> np.ndarray:
    if peer.identity is None:
        raise WrongAnswer(f"{peer.name} has no request of its own")
    request = urllib.request.Request(f"{peer.http_url}{peer.identity.path}", peer.identity.body, peer.identity.headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        document = json.load(response)
    if isinstance(document, dict):
        document = document["outputs"][0]["data"] if "outputs" in document else document["values"]
    return np.asarray(document, dtype=np.float32)
