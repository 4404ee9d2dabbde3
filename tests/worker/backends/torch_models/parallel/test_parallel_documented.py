"""The model of docs/parallel.md answers, in one rank and in those that its configuration has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from load_contexts import MakeContext
from parallel_models import ranks, write_model

from documented import blocks
from isochrone.worker.backends.torch.backend import load

pytestmark = pytest.mark.usefixtures("nothing_leaks")


def block(language: str) -> str:
    (text,) = (text for page, text in blocks(language) if page.name == "parallel.md" and "tensor_parallel" in text)
    return text


def check(directory: Path, make_context: MakeContext, config: str) -> None:
    module = write_model(directory, block("python"))
    rows = np.random.default_rng(3).standard_normal((5, 256), np.float32)
    executable = load(make_context(config))
    try:
        given = executable.execute({"x": rows}, None)["y"]
        with torch.no_grad():
            np.testing.assert_allclose(given, module(torch.from_numpy(rows)).numpy(), rtol=1e-4, atol=1e-5)
    finally:
        executable.close()


def test_the_documented_model_answers_in_one_rank(tmp_path: Path, make_context: MakeContext) -> None:
    declared = block("pbtxt").partition("parameters")[0]
    check(tmp_path, make_context, declared + ranks(1, 1))


@pytest.mark.long
def test_the_documented_model_answers_as_configured(tmp_path: Path, make_context: MakeContext) -> None:
    check(tmp_path, make_context, block("pbtxt"))
