"""examples/image_pipeline: decode, normalise, classify and post-process, without a copy between the steps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queued_requests import RecordedRequest
from runner_bench import until

from documented import EXAMPLES
from isochrone.clock import now_ns
from isochrone.errors import InvalidArgument
from isochrone.models.repository.repository import Repository
from isochrone.protocol.messages import Plan
from isochrone.worker.backends.onnx.backend import OnnxExecutable
from isochrone.worker.backends.python.triton.tensors import Tensor
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters

MODELS = ("decode", "normalise", "classifier", "postprocess", "image_classification")


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The modules of the example."""
    directory = str(EXAMPLES / "image_pipeline")
    sys.path.insert(0, directory)
    try:
        import picture_client as client
        import picture_models as build

        yield build, client
    finally:
        sys.path.remove(directory)
        for name in ("build", "client"):
            sys.modules.pop(name, None)


def classified(repository: Path, *pictures: list[bytes]) -> list[Any]:
    async def play() -> list[Any]:
        catalog = Catalog(Repository([repository]), None, 30)
        try:
            assert await catalog.load_all({name: LoadParameters() for name in MODELS}) == {}
            answers = []
            for files in pictures:
                images = np.array(files, np.object_).reshape(-1, 1)
                plan = Plan("image_classification", "", (("image", "BYTES", images.shape),), None)
                request = RecordedRequest(plan, {"image": images}, now_ns())
                catalog.find("image_classification", "").submit(request)
                await until(lambda request=request: request.answers)
                answers += request.answers
            return answers
        finally:
            await catalog.close(5)

    return asyncio.run(asyncio.wait_for(play(), 100))


def test_colours_of_pictures_and_of_files_that_are_none(tmp_path: Path, example: Any) -> None:
    build, client = example
    jpeg, png = client.picture("tomato"), client.picture("lime", 31, 500, "PNG")
    repository = build.build(tmp_path)
    both, cut, none = classified(repository, [jpeg, png], [jpeg[:2000]], [png, b"no picture"])
    assert both["labels"][:, 0].tolist() == [b"red", b"green"]
    assert both["scores"].shape == (2, 3)
    assert (np.diff(both["scores"]) <= 0).all()
    for answer, words in ((cut, "image 0: expected a JPEG or PNG file"), (none, "image 1: expected a JPEG or PNG")):
        assert isinstance(answer, InvalidArgument)
        assert words in str(answer)


def test_every_colour_has_its_label(tmp_path: Path, example: Any) -> None:
    build, client = example
    colours = [name if name != "green" else "lime" for name in build.LABELS]
    (answer,) = classified(build.build(tmp_path), [client.picture(name, 64, 64, "PNG") for name in colours])
    assert [label.decode() for label in answer["labels"][:, 0]] == list(build.LABELS)


@pytest.mark.interpreted
def test_every_step_reads_the_memory_that_the_step_before_wrote(
    tmp_path: Path, example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, client = example
    written: dict[str, int] = {}
    read: dict[str, int] = {}

    def address(array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    make, as_numpy, execute = Tensor.__init__, Tensor.as_numpy, OnnxExecutable.execute

    def noted_make(self: Tensor, name: str, array: Any) -> None:
        make(self, name, array)
        written[name] = address(self.host_array)

    def noted_as_numpy(self: Tensor) -> Any:
        array = as_numpy(self)
        read[self.name()] = address(array)
        return array

    def noted_execute(self: OnnxExecutable, inputs: Any, outputs: Any) -> Any:
        found = execute(self, inputs, outputs)
        read.update({name: address(array) for name, array in inputs.items()})
        written.update({name: address(array) for name, array in found.items()})
        return found

    monkeypatch.setattr(Tensor, "__init__", noted_make)
    monkeypatch.setattr(Tensor, "as_numpy", noted_as_numpy)
    monkeypatch.setattr(OnnxExecutable, "execute", noted_execute)
    (answer,) = classified(build.build(tmp_path), [client.picture()])
    assert address(answer["scores"]) == written["scores"]
    between = ("pixels", "normalised", "logits")
    assert [read[name] for name in between] == [written[name] for name in between]
