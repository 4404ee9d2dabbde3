"""The process that runs ``auto_complete_config`` of one model:
``python -m isochrone.worker.backends.python.triton.completion_child``.

The configuration comes as JSON by standard input; the answer goes to a descriptor of its own, since models print.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from isochrone.worker.backends.processes import forks
from isochrone.worker.backends.python.triton import shared_module
from isochrone.worker.backends.python.triton.auto_complete import ModelConfig
from isochrone.worker.backends.python.triton.failures import TritonError, TritonModelException, described
from isochrone.worker.backends.python.triton.model import CLASS_NAME
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.backends.python.triton.server import Cancel, Deliver, ModelCall
from isochrone.worker.backends.python.triton.utilities import MODULE_NAMES, make_module
from isochrone.worker.backends.version_modules import VersionModules

_NOT_NOW = "the server cannot be asked while a configuration is completed"


class NoServer:
    """No model is served yet."""

    may_block = True

    def call(self, call: ModelCall, deliver: Deliver) -> Cancel:
        deliver(InferenceResponse(error=TritonError(_NOT_NOW)), True)
        return lambda: None

    def is_model_ready(self, name: str, version: str) -> bool:
        raise TritonModelException(_NOT_NOW)

    def load_model(self, name: str, config: str, files: Mapping[str, bytes] | None) -> None:
        raise TritonModelException(_NOT_NOW)

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        raise TritonModelException(_NOT_NOW)

    def metric(
        self, name: str, description: str, kind: str, labels: Mapping[str, str], buckets: Sequence[float]
    ) -> None:
        raise ValueError(_NOT_NOW)

    def log(self, level: str, message: str) -> None:
        print(f"{level}: {message}", file=sys.stderr)


def completed(config: str, model_name: str, directory: Path, filename: str) -> dict[str, object]:
    """``config``: the configuration, or ``error``: why there is none."""
    module = make_module(NoServer(), directory)
    modules = VersionModules(model_name, directory.name, directory, dict.fromkeys(MODULE_NAMES, module))
    shared_module.add(modules.package, module)
    try:
        model_class = getattr(modules.import_module(Path(filename).stem), CLASS_NAME)
        completing = getattr(model_class, "auto_complete_config", None)
        if completing is None:
            return {"config": json.loads(config)}
        result = completing(ModelConfig(config))
    except BaseException as error:
        return {"error": described(error)}
    if not isinstance(result, ModelConfig):
        expected = "must return a valid pb.ModelConfig object."
        return {"error": f"auto_complete_config function in model '{model_name}' {expected}"}
    return {"config": result.as_dict()}


def main(arguments: list[str]) -> int:
    descriptor, model_name, directory, filename = arguments
    original = forks.generation
    answer = json.dumps(completed(sys.stdin.read(), model_name, Path(directory), filename)).encode()
    forks.end_if_copy(original)
    with os.fdopen(int(descriptor), "wb") as file:
        file.write(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
