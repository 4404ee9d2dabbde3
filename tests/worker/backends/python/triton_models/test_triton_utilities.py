"""``triton_python_backend_utils``: its functions and constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from called_server import RecordedServer
from hypothesis import given
from hypothesis import strategies as st

from isochrone.worker.backends.python.triton.failures import TritonModelException
from isochrone.worker.backends.python.triton.utilities import make_module

SERVER = RecordedServer()
pb_utils: Any = make_module(SERVER, Path("/models/m/1"))


def test_constants() -> None:
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.get_model_dir() == "/models/m/1"
    memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 3)
    assert (memory.preferred_memory_type, memory.preferred_device_id) == (
        pb_utils.MemoryType.TRITONSERVER_MEMORY_GPU,
        3,
    )


def test_each_instance_has_a_module_of_its_own() -> None:
    other: Any = make_module(RecordedServer(), Path("/models/m/2"))
    assert other.InferenceRequest is not pb_utils.InferenceRequest
    assert other.get_model_dir() == "/models/m/2"
    assert other.Tensor is pb_utils.Tensor


@pytest.mark.parametrize("number", range(1, 14))
def test_types_both_ways(number: int) -> None:
    kind = pb_utils.triton_to_numpy_type(number)
    assert pb_utils.numpy_to_triton_type(kind) == number
    assert pb_utils.numpy_to_triton_type(np.dtype(kind)) == number


def test_types_that_are_not_known() -> None:
    assert pb_utils.triton_to_numpy_type(0) is None
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("TYPE_FP12")


@given(st.lists(st.one_of(st.binary(max_size=20), st.text(max_size=20), st.integers()), min_size=1, max_size=8))
def test_text_is_written_and_read_back(elements: list[Any]) -> None:
    array = np.empty(len(elements), object)
    array[:] = elements
    expected = [each if isinstance(each, bytes) else str(each).encode() for each in elements]
    assert pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(array)).tolist() == expected


def test_text_of_no_elements_and_numbers() -> None:
    assert pb_utils.serialize_byte_tensor(np.zeros(0, object)) == ()
    assert pb_utils.serialize_byte_tensor(np.zeros(2)) is None
    assert pb_utils.deserialize_bytes_tensor(b"").tolist() == []


def test_look_ups() -> None:
    config = {"input": [{"name": "A"}], "output": [{"name": "B"}], "model_transaction_policy": {"decoupled": True}}
    assert pb_utils.get_input_config_by_name(config, "A") == {"name": "A"}
    assert pb_utils.get_input_config_by_name(config, "B") is None
    assert pb_utils.get_output_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_output_config_by_name({}, "B") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config)
    assert not pb_utils.using_decoupled_model_transaction_policy({})
    tensor = pb_utils.Tensor("A", np.zeros(1))
    request = pb_utils.InferenceRequest(model_name="m", inputs=[tensor], requested_output_names=[])
    assert pb_utils.get_input_tensor_by_name(request, "A") is tensor
    assert pb_utils.get_input_tensor_by_name(request, "B") is None
    response = pb_utils.InferenceResponse([tensor])
    assert pb_utils.get_output_tensor_by_name(response, "A") is tensor
    assert pb_utils.get_output_tensor_by_name(response, "B") is None


def test_readiness_and_loads() -> None:
    assert pb_utils.is_model_ready("there")
    assert pb_utils.is_model_ready(model_name="there", model_version="1")
    assert not pb_utils.is_model_ready("there", "2")
    pb_utils.load_model("m", config="{}", files={"file:1/model.py": b"x"})
    pb_utils.unload_model("m", unload_dependents=True)
    assert SERVER.loaded == [("m", "{}", {"file:1/model.py": b"x"}), ("m", True)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pb_utils.load_model("nobody"), "Failed to load model: not found"),
        (lambda: pb_utils.unload_model("nobody"), "Failed to unload model: not found"),
        (lambda: pb_utils.is_model_ready("m", "first"), "Failed to check model readiness: no such number"),
    ],
)
def test_what_failed_is_named(call: Any, words: str) -> None:
    with pytest.raises(TritonModelException, match=words):
        call()


def test_logger() -> None:
    logger = pb_utils.Logger
    logger.log("a")
    logger.log("b", logger.ERROR)
    logger.log(message="c", level=logger.LogLevel.VERBOSE)
    logger.log_info("d")
    logger.log_warn("e")
    logger.log_error("f")
    logger.log_verbose("g")
    levels = ["info", "error", "debug", "info", "warning", "error", "debug"]
    assert SERVER.logged == list(zip(levels, "abcdefg", strict=True))
