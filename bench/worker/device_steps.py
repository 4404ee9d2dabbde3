"""`python -m bench.worker.device_steps`: a tensor that stays on the GPU between two steps, beside one that does not.

Needs torch with CUDA. Two ensembles of the same two models in Triton's style: `expand` makes a large tensor on the GPU,
`reduce` reads it there and returns its mean. In the ensemble `kept`, `reduce` takes tensors on devices
(`FORCE_CPU_ONLY_INPUT_TENSORS: "no"`), and the program checks that it gets the memory that `expand` wrote. In
`copied` it does not, which is the default: the tensor goes to the host and back. Requests run inside one process,
without a transport, one at a time, the two ensembles in turns.
"""

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from bench.worker.machine import RESULTS, describe
from isochrone.clock import now_ns
from isochrone.errors import IsochroneError
from isochrone.models.repository.repository import Repository
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters, Plan
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters

KEPT, COPIED = "kept", "copied"

EXPAND = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.base = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        size, factor = pb_utils.get_input_tensor_by_name(request, "ASKED").as_numpy().tolist()
        if size not in self.base:
            self.base[size] = torch.ones(size, dtype=torch.float32, device="DEVICE")
        made = self.base[size] * factor
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor.from_dlpack("LARGE", made),
                pb_utils.Tensor("WROTE", np.array([made.data_ptr()], np.int64)),
            ]
        )
"""
REDUCE = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "LARGE")
        tensor = torch.from_dlpack(given)
        read, is_cuda = tensor.data_ptr(), tensor.is_cuda
        mean = tensor.to("DEVICE").mean().item()
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("MEAN", np.array([mean], np.float32)),
                pb_utils.Tensor("READ", np.array([read, is_cuda], np.int64)),
            ]
        )
"""


def write_models(directory: Path, device: str) -> Path:
    expand = (
        'backend: "python" input { name: "ASKED" data_type: TYPE_INT64 dims: [ 2 ] }\n'
        'output { name: "LARGE" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "WROTE" data_type: TYPE_INT64 dims: [ 1 ] }\n'
    )
    reduce = (
        'backend: "python" input { name: "LARGE" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "MEAN" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        'output { name: "READ" data_type: TYPE_INT64 dims: [ 2 ] }\n'
    )
    on_device = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
    for name, config, source in (
        ("expand", expand, EXPAND),
        ("reduce_kept", reduce + on_device, REDUCE),
        ("reduce_copied", reduce, REDUCE),
    ):
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "1" / "model.py").write_text(source.replace("DEVICE", device))
        (directory / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    for name in (KEPT, COPIED):
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(
            f"""name: "{name}" platform: "ensemble"
            input {{ name: "ASKED" data_type: TYPE_INT64 dims: [ 2 ] }}
            output {{ name: "MEAN" data_type: TYPE_FP32 dims: [ 1 ] }}
            output {{ name: "WROTE" data_type: TYPE_INT64 dims: [ 1 ] }}
            output {{ name: "READ" data_type: TYPE_INT64 dims: [ 2 ] }}
            ensemble_scheduling {{
              step {{ model_name: "expand" model_version: -1 input_map {{ key: "ASKED" value: "ASKED" }}
                output_map {{ key: "LARGE" value: "large" }} output_map {{ key: "WROTE" value: "WROTE" }} }}
              step {{ model_name: "reduce_{name}" model_version: -1 input_map {{ key: "LARGE" value: "large" }}
                output_map {{ key: "MEAN" value: "MEAN" }} output_map {{ key: "READ" value: "READ" }} }}
            }}"""
        )
    return directory


class Request(InferRequest):
    """Its answer is the result of a future."""

    def __init__(self, plan: Plan, inputs: dict[str, Any]) -> None:
        super().__init__(plan, "", inputs, now_ns())
        self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def complete(self, outputs: dict[str, Any], parameters: Parameters = NO_PARAMETERS) -> None:
        self.answered.set_result(outputs)

    def fail(self, error: IsochroneError) -> None:
        self.answered.set_exception(error)


async def ask(catalog: Catalog, model: str, size: int) -> tuple[dict[str, Any], int]:
    """The outputs, and the time in ns."""
    started = now_ns()
    request = Request(Plan(model, "", (("ASKED", "INT64", (2,)),), None), {"ASKED": np.array([size, 3])})
    catalog.find(model, "").submit(request)
    outputs = await request.answered
    return outputs, now_ns() - started


def check(outputs: dict[str, Any], model: str, on_gpu: bool) -> None:
    """Raises SystemExit: a tensor was not where it must be."""
    if outputs["MEAN"].item() != 3.0:
        sys.exit(f"{model}: expected a mean of 3, given {outputs['MEAN'].item()}")
    wrote = outputs["WROTE"].item()
    read, is_cuda = outputs["READ"].tolist()
    if model == KEPT and (bool(is_cuda), read) != (on_gpu, wrote):
        sys.exit(f"{model}: expected the tensor at {wrote:#x}, on the GPU: {on_gpu}; given {read:#x}, {bool(is_cuda)}")
    if model == COPIED and is_cuda:
        sys.exit(f"{model}: expected a tensor of the host, given one on the GPU")


async def measure(repository: Path, sizes: list[int], requests: int, on_gpu: bool) -> dict[int, dict[str, list[int]]]:
    """ns of every request, by size in bytes and ensemble."""
    catalog = Catalog(Repository([repository]), None, 60)
    found: dict[int, dict[str, list[int]]] = {}
    try:
        names = ("expand", "reduce_kept", "reduce_copied", KEPT, COPIED)
        problems = await catalog.load_all({name: LoadParameters() for name in names})
        if problems:
            sys.exit(f"cannot load: {problems}")
        for size in sizes:
            times: dict[str, list[int]] = {KEPT: [], COPIED: []}
            for number in range(requests + 10):
                for model, own in times.items():
                    outputs, taken = await ask(catalog, model, size // 4)
                    check(outputs, model, on_gpu)
                    if number >= 10:
                        own.append(taken)
            found[size] = times
    finally:
        await catalog.close(10)
    return found


def report(found: dict[int, dict[str, list[int]]]) -> list[str]:
    lines = [f"{'bytes':>12} {'kept µs p50':>12} {'p99':>9} {'copied µs p50':>14} {'p99':>9} {'copied ÷ kept':>14}"]
    for size, times in found.items():
        figures = []
        for name in (KEPT, COPIED):
            ordered = sorted(times[name])
            figures += [statistics.median(ordered) / 1e3, ordered[int(len(ordered) * 0.99)] / 1e3]
        kept, kept_p99, copied, copied_p99 = figures
        lines.append(
            f"{size:12,} {kept:12,.0f} {kept_p99:9,.0f} {copied:14,.0f} {copied_p99:9,.0f} {copied / kept:14.2f}"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.worker.device_steps", description=__doc__)
    parser.add_argument("--device", default="cuda", help="of torch; cpu shows only that the program works")
    parser.add_argument(
        "--sizes", default="4096,1048576,16777216,67108864", help="bytes of the tensor between the steps"
    )
    parser.add_argument("--requests", type=int, default=300, help="of each ensemble and size")
    given = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("device_steps: torch is missing")
    on_gpu = given.device != "cpu"
    if on_gpu and not torch.cuda.is_available():
        sys.exit("device_steps: torch finds no GPU")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sizes = [int(size) for size in given.sizes.split(",")]
    with tempfile.TemporaryDirectory() as directory:
        repository = write_models(Path(directory), given.device)
        found = asyncio.run(measure(repository, sizes, given.requests, on_gpu))
    where = torch.cuda.get_device_name() if on_gpu else "cpu"
    print(f"{where}, torch {torch.__version__}; {KEPT}: the second step reads the memory that the first one wrote")
    print("\n".join(report(found)))
    RESULTS.mkdir(parents=True, exist_ok=True)
    content = {"machine": describe(), "device": where, "torch": torch.__version__, "ns": found}
    (RESULTS / "device-steps.json").write_text(json.dumps(content, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
