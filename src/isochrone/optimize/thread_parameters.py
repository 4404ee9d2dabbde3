"""The parameters of a model's configuration that set the threads of an instance, in all their spellings."""

from __future__ import annotations

from typing import Any, Final

#: Backend → the parameter that sets the threads of an instance. Other backends have none.
THREADS_PARAMETER: Final = {
    "onnx": "intra_op_thread_count",
    "torch": "intra_op_thread_count",
    "openvino": "INFERENCE_NUM_THREADS",
}


def stated_threads(config: Any, backend: str) -> int | None:
    """None: the configuration states none that count."""
    key = THREADS_PARAMETER.get(backend)
    if key is None:
        return None
    # In the order in which backends look them up.
    found = (config.parameters[each].string_value.strip() for each in (key, key.upper()) if each in config.parameters)
    value = next(found, "")
    return int(value) if value.isdecimal() and int(value) else None


def set_threads(config: Any, backend: str, threads: int) -> None:
    """Changes ``config``; does nothing for a backend that lets nobody choose."""
    key = THREADS_PARAMETER.get(backend)
    if key is not None:
        drop_parameter(config, key)
        config.parameters[key].string_value = str(threads)


def drop_threads(config: Any) -> None:
    """Those of every backend."""
    for key in set(THREADS_PARAMETER.values()):
        drop_parameter(config, key)


def drop_parameter(config: Any, key: str) -> None:
    """Backends look a parameter up as written and in capitals."""
    for spelling in {key, key.lower(), key.upper()}:
        config.parameters.pop(spelling, None)
