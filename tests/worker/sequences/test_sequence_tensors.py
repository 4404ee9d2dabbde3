"""Control and state tensors of sequence models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError, InvalidArgument
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.sequences.batcher import SequenceBatcher
from isochrone.worker.sequences.tensors import SequenceTensors


def config_of(batching: str, max_batch_size: int = 4) -> Any:
    text = f'name: "m" max_batch_size: {max_batch_size} sequence_batching {{ {batching} }}'
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def request_of(sequence_id: int | str, inputs: dict[str, Any] | None = None) -> InferRequest:
    plan = Plan("m", "", (), None, sequence_id=sequence_id, sequence_start=True)
    return InferRequest(plan, "", inputs or {"X": np.zeros((1, 1), np.float32)}, arrived=0)


def correlation(data_type: str) -> str:
    return f'control_input {{ name: "ID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {data_type} }} }}'


class TestCorrelationId:
    @pytest.mark.parametrize(
        ("data_type", "sequence_id", "expected"),
        [
            ("TYPE_UINT64", 2**64 - 1, 2**64 - 1),
            ("TYPE_INT64", 2**64 - 1, -1),
            ("TYPE_INT64", 2**63 - 1, 2**63 - 1),
            ("TYPE_UINT32", 2**32 - 1, 2**32 - 1),
            ("TYPE_INT32", 2**31, -(2**31)),
            ("TYPE_STRING", "naïve", "naïve".encode()),
            ("TYPE_STRING", 12, b"12"),
        ],
    )
    def test_reaches_the_model(self, data_type: str, sequence_id: int | str, expected: Any) -> None:
        batcher = SequenceBatcher(config_of(correlation(data_type)), 1)
        batcher.push(request_of(sequence_id), 0)
        batch = batcher.take(0, 0)
        assert batch is not None
        assert batch.inputs()["ID"].tolist() == [[expected]]

    @pytest.mark.parametrize(
        ("data_type", "sequence_id"),
        [("TYPE_UINT32", 2**32), ("TYPE_INT32", 2**32), ("TYPE_UINT64", "seven"), ("TYPE_UINT64", -1)],
    )
    def test_is_refused_where_it_does_not_fit(self, data_type: str, sequence_id: int | str) -> None:
        batcher = SequenceBatcher(config_of(correlation(data_type)), 1)
        with pytest.raises(InvalidArgument, match=r"control input 'ID': expected an integer of .* bits, got"):
            batcher.push(request_of(sequence_id), 0)
        assert batcher.pending() == 0

    def test_may_be_anything_where_the_model_does_not_ask(self) -> None:
        batcher = SequenceBatcher(config_of(""), 1)
        batcher.push(request_of("seven"), 0)
        assert batcher.take(0, 0) is not None


class TestGather:
    def test_one_row_is_not_copied(self) -> None:
        request = request_of(1)
        inputs = SequenceTensors(config_of(""), None).gather([request], [()], [0], 1)
        assert inputs["X"] is request.inputs["X"]

    def test_bytes_of_an_empty_row_are_empty_strings(self) -> None:
        requests = [request_of(i, {"X": np.array([[name]], object)}) for i, name in ((1, b"a"), (2, b"bc"))]
        tensors = SequenceTensors(config_of(correlation("TYPE_STRING")), None)
        inputs = tensors.gather(requests, [(), ()], [0, 2], 3)
        assert inputs["X"].tolist() == [[b"a"], [b""], [b"bc"]]
        assert inputs["ID"].tolist() == [[b"1"], [b""], [b"2"]]

    def test_false_and_true_values_are_the_configured_ones(self) -> None:
        batching = """
          control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [-1, 0.5] } }
          control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [7, 8] } }
        """
        inputs = SequenceTensors(config_of(batching), None).gather([request_of(1)], [()], [1], 2)
        assert inputs["S"].tolist() == [[-1], [0.5]]
        assert inputs["R"].tolist() == [[7], [8]]


def state(initial: str = "", data_type: str = "TYPE_FP32", dims: str = "[2]") -> str:
    text = f'input_name: "IN" output_name: "OUT" data_type: {data_type} dims: {dims}'
    return f"state {{ {text} {initial} }}"


def initial_state(source: str, data_type: str = "TYPE_FP32", dims: str = "[2]") -> str:
    return f'initial_state {{ name: "first" data_type: {data_type} dims: {dims} {source} }}'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "numbers").write_bytes(np.array([1.5, 2.5], "<f4").tobytes())
    (tmp_path / "initial_state" / "words").write_bytes(b"\x01\x00\x00\x00a\x00\x00\x00\x00")
    return tmp_path


class TestInitialState:
    def test_is_zero_unless_told_with_free_sizes_of_one(self) -> None:
        tensors = SequenceTensors(config_of(state(dims="[-1, 3]", data_type="TYPE_BF16")), None)
        (initial,) = tensors.initial
        assert (initial.shape, initial.dtype) == ((1, 1, 3), ml_dtypes.bfloat16)
        assert not initial.astype(np.float32).any()
        assert tensors.variable

    def test_has_no_batch_dimension_where_the_model_has_none(self) -> None:
        (initial,) = SequenceTensors(config_of(state(), max_batch_size=0), None).initial
        assert initial.shape == (2,)

    def test_zero_data_may_size_a_free_dimension(self) -> None:
        batching = state(initial_state("zero_data: true", dims="[5]"), dims="[-1]")
        assert SequenceTensors(config_of(batching), None).initial[0].shape == (1, 5)

    def test_comes_from_a_file(self, directory: Path) -> None:
        batching = state(initial_state('data_file: "numbers"'))
        (initial,) = SequenceTensors(config_of(batching), directory).initial
        assert initial.tolist() == [[1.5, 2.5]]
        assert not initial.flags.writeable

    def test_strings_come_from_a_file(self, directory: Path) -> None:
        batching = state(initial_state('data_file: "words"', "TYPE_STRING"), "TYPE_STRING")
        (initial,) = SequenceTensors(config_of(batching), directory).initial
        assert initial.tolist() == [[b"a", b""]]

    @pytest.mark.parametrize(
        ("file", "data_type", "given"),
        [
            ("absent", "TYPE_FP32", "No such file"),
            ("words", "TYPE_FP32", "got 9"),
            ("numbers", "TYPE_STRING", "is truncated"),
        ],
    )
    def test_a_wrong_file_is_rejected_by_key(self, directory: Path, file: str, data_type: str, given: str) -> None:
        batching = state(initial_state(f'data_file: "{file}"', data_type), data_type)
        with pytest.raises(ConfigError) as caught:
            SequenceTensors(config_of(batching), directory)
        assert caught.value.key == "sequence_batching.state[0].initial_state.data_file"
        assert given in caught.value.given

    def test_a_file_needs_a_directory(self) -> None:
        with pytest.raises(ConfigError, match="a model that lies in a directory"):
            SequenceTensors(config_of(state(initial_state('data_file: "numbers"'))), None)


def test_sequences_whose_states_differ_in_shape_do_not_share_a_batch() -> None:
    batcher = SequenceBatcher(config_of(state(dims="[-1]")), 1)
    for sequence_id in (1, 2):
        batcher.push(request_of(sequence_id), 0)
    batch = batcher.take(0, 0)
    assert batch is not None
    assert batcher.state_outputs == ("OUT",)
    batcher.finished(batch, {"OUT": np.ones((2, 3), np.float32)}, 0)
    # Sequence 1 restarts with one element; sequence 2 continues with three.
    again = request_of(2)
    again.plan.sequence_start = False
    for request in (request_of(1), again):
        batcher.push(request, 0)
    shapes = []
    while (batch := batcher.take(0, 0)) is not None:
        shapes.append((len(batch.requests), batch.row_of(0), batch.inputs()["IN"].shape))
        batcher.finished(batch, {"OUT": np.ones((batch.rows, 3), np.float32)}, 0)
    assert shapes == [(1, 0, (1, 1)), (1, 1, (2, 3))]


def test_a_kept_state_does_not_hold_its_batch_in_memory() -> None:
    tensors = SequenceTensors(config_of(state()), None)
    output = np.arange(6, dtype=np.float32).reshape(3, 2)
    ((first,), (third,)) = tensors.scatter({"OUT": output}, [0, 2], 3)
    assert (first.tolist(), third.tolist()) == ([[0, 1]], [[4, 5]])
    assert first.base is None
