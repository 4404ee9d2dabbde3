"""The argument of ``initialize`` and of ``auto_complete_config``, as Triton passes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isochrone.errors import ConfigError
from isochrone.models.instances import configured_instances
from isochrone.protocol.control_json import model_config_json
from isochrone.worker.backends import parameters
from isochrone.worker.backends.python.triton.model import CLASS_NAME, TritonModelContext
from isochrone.worker.backends.python.triton.utilities import MODULE_NAME
from isochrone.worker.backends.tensors.declared import declared_outputs

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext


_TRITON = re.compile(
    rf"^[ \t]*(class {CLASS_NAME}\b|import [^#\n]*\b{MODULE_NAME}\b|from {MODULE_NAME}\b)", re.MULTILINE
)
_MENTIONED = re.compile(rf"\b({CLASS_NAME}|{MODULE_NAME})\b")
_OURS = re.compile(r"^class Model\b", re.MULTILINE)


def is_triton_model(path: Path) -> bool:
    """Whether a python file defines Triton's class or imports its module; or names one and does not define ours."""
    try:
        source = path.read_text(errors="replace")
    except OSError:
        return False
    if _TRITON.search(source) is not None:
        return True
    return _MENTIONED.search(source) is not None and _OURS.search(source) is None


def model_context(context: LoadContext, filename: str) -> TritonModelContext:
    environment = parameters.text(context, "EXECUTION_ENV_PATH")
    if environment is not None:
        raise ConfigError(
            parameters.where(context),
            'parameters["EXECUTION_ENV_PATH"]',
            "none: a model runs in the environment of the server; install what it imports there (pip install), or give"
            " it a worker of its own in that environment",
            f"'{environment}'",
        )
    return TritonModelContext(
        model_name=context.model_name,
        model_version=context.model_version,
        directory=context.directory,
        filename=filename,
        args={
            "model_config": config_json(context.config),
            **_instance_arguments(context),
            "model_repository": str(context.directory.parent),
            "model_version": context.model_version,
            "model_name": context.model_name,
        },
        outputs=tuple(declared_outputs(context)),
        decoupled=context.config.model_transaction_policy.decoupled,
    )


_KINDS = {0: "CPU", 1: "GPU", 2: "CPU", 3: "MODEL"}


def _instance_arguments(context: LoadContext) -> dict[str, str]:
    """Kind, name and device of an instance."""
    instances = configured_instances(context.config)
    if context.instance < len(instances):
        group, name, gpu = instances[context.instance]
        kind = _KINDS.get(group.kind, "CPU") if gpu is None else "GPU"
    else:
        name, gpu, kind = f"{context.model_name}_{context.instance}", None, "CPU"
    return {
        "model_instance_kind": kind,
        "model_instance_name": name,
        "model_instance_device_id": str(gpu or 0),
    }


def config_json(config: Any) -> str:
    """A configuration as Triton writes it, with its defaults, for ``initialize``."""
    completed = type(config)()
    completed.CopyFrom(config)
    for key in ("input_pinned_memory", "output_pinned_memory"):
        if not completed.optimization.HasField(key):
            getattr(completed.optimization, key).enable = True
    for group in completed.instance_group:
        group.kind = group.kind or (group.KIND_GPU if group.gpus else group.KIND_CPU)
    return json.dumps(model_config_json(completed), separators=(",", ":"))
