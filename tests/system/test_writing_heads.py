"""Ensembles whose second step writes to its input, after a step whose outputs a cache keeps: answers do not change."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.http

from sample_models import write_config, write_python
from server_process import StartServer

#: The features are too large to be copied only because a copy of little is cheap.
SIDE = 64
SIZE = 3 * SIDE * SIDE

BACKBONE = """
    class Model:
        def infer(self, inputs):
            picture = inputs["picture"].astype("float32")
            return {"features": picture.reshape(len(picture), -1)}
"""


class Head(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1.0)


def write_pipeline(root: Path, caching: str) -> None:
    write_python(root / "backbone", BACKBONE)
    write_config(
        root / "backbone",
        f"""
        backend: "python"
        max_batch_size: 8
        input [ {{ name: "picture" data_type: TYPE_UINT8 dims: [ {SIDE}, {SIDE}, 3 ] }} ]
        output [ {{ name: "features" data_type: TYPE_FP32 dims: [ {SIZE} ] }} ]
        {caching}
        """,
    )
    (root / "head" / "1").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Head()).save(str(root / "head" / "1" / "model.pt"))
    write_config(
        root / "head",
        f"""
        backend: "pytorch"
        max_batch_size: 8
        input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {SIZE} ] }} ]
        output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {SIZE} ] }} ]
        """,
    )
    write_config(
        root / "pipeline",
        f"""
        platform: "ensemble"
        max_batch_size: 8
        input [ {{ name: "image" data_type: TYPE_UINT8 dims: [ {SIDE}, {SIDE}, 3 ] }} ]
        output [ {{ name: "result" data_type: TYPE_FP32 dims: [ {SIZE} ] }} ]
        ensemble_scheduling {{ step [
          {{ model_name: "backbone" model_version: -1
            input_map {{ key: "picture" value: "image" }} output_map {{ key: "features" value: "features" }} }},
          {{ model_name: "head" model_version: -1
            input_map {{ key: "x" value: "features" }} output_map {{ key: "y" value: "result" }} }} ] }}
        """,
    )
    (root / "pipeline" / "1").mkdir()


@pytest.mark.long
@pytest.mark.parametrize(
    "caching",
    [
        'parameters { key: "activation_cache" value { string_value: "temporal" } }'
        ' parameters { key: "activation_cache_age_ms" value { string_value: "3600000" } }'
        ' parameters { key: "activation_cache_sample_share" value { string_value: "0" } }',
        "response_cache { enable: true }",
    ],
    ids=["activation_cache", "response_cache"],
)
def test_a_head_that_writes_leaves_cached_outputs_alone(
    tmp_path: Path, server_factory: StartServer, caching: str
) -> None:
    write_pipeline(tmp_path / "models", caching)
    picture = np.full((1, SIDE, SIDE, 3), 10, np.uint8)
    entry = tritonclient.http.InferInput("image", [1, SIDE, SIDE, 3], "UINT8")
    entry.set_data_from_numpy(picture)
    flags = ("--cache-config", "local,size=10485760")
    with (
        server_factory(tmp_path / "models", *flags) as server,
        tritonclient.http.InferenceServerClient(server.http_url) as client,
    ):
        answers = []
        for _ in range(4):
            values = client.infer("pipeline", [entry], parameters={"camera": "front"}).as_numpy("result")
            assert values is not None
            answers.append((float(values.min()), float(values.max())))
        computed = client.get_inference_statistics("backbone")["model_stats"][0]["inference_count"]
    assert answers == [(11.0, 11.0)] * 4
    # The others came from the cache.
    assert computed == 1
