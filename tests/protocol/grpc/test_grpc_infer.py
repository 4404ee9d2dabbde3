"""ModelInfer's decoder and encoder: the memoised way must say exactly what upb says, for good and for bad messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.protocol.grpc.answers import Answer, plain_answer, render
from isochrone.protocol.grpc.infer import GrpcInferRequest
from isochrone.protocol.grpc.plan import InferDecoder, plan_of, split_raw
from isochrone.protocol.messages import InferRequest


class NoMemory:
    """The one thing a decoder asks of a service."""

    shared_memory = None


class Served:
    model_name = "m"
    model_version = "3"
    batched = True
    fixed_size = True


NAMES = st.text(alphabet="abcXYZ_0", min_size=1, max_size=6)
NUMBERS = {"FP32": np.float32, "INT64": np.int64, "UINT8": np.uint8, "FP16": np.float16}


@st.composite
def messages(draw: st.DrawFn) -> Any:
    message = service_pb2.ModelInferRequest(model_name=draw(NAMES), model_version=draw(st.sampled_from(["", "1"])))
    message.id = draw(st.sampled_from(["", "", "request-7"]))
    if draw(st.booleans()):
        message.parameters["priority"].uint64_param = draw(st.integers(0, 3))
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        shape = draw(st.lists(st.integers(0, 40), min_size=0, max_size=3))
        datatype = draw(st.sampled_from(sorted(NUMBERS)))
        count = int(np.prod(shape)) if shape else 1
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        data = draw(st.binary(min_size=1, max_size=8)) * count * 8
        message.raw_input_contents.append(data[: count * np.dtype(NUMBERS[datatype]).itemsize])
    if draw(st.booleans()):
        message.outputs.add(name="out")
    return message


def decoded(decoder: InferDecoder, body: bytes) -> tuple[Any, Any]:
    plan, inputs = decoder.decode(body, 0)
    shown = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in inputs.items()}
    return (plan.model_name, plan.model_version, plan.request_id, plan.inputs, plan.outputs, plan.priority), shown


@given(st.lists(messages(), min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_any_order_of_messages_decodes_as_upb_decodes_each(pool: list[Any], order: list[int]) -> None:
    decoder = InferDecoder(NoMemory())  # type: ignore[arg-type]
    for index in order:
        message = pool[index % len(pool)]
        head, inputs = decoded(decoder, message.SerializeToString())
        assert head[:3] == (message.model_name, message.model_version, message.id)
        assert head[5] == (message.parameters["priority"].uint64_param if "priority" in message.parameters else 0)
        for item, raw in zip(message.inputs, message.raw_input_contents, strict=True):
            dtype = np.dtype(NUMBERS[item.datatype]).newbyteorder("<")
            assert inputs[item.name] == (dtype.str, tuple(item.shape), raw)


@given(messages(), st.data())
def test_a_damaged_tail_behind_a_known_head_gets_the_verdict_of_a_fresh_decoder(
    message: Any, data: st.DataObject
) -> None:
    body = message.SerializeToString()
    warm = InferDecoder(NoMemory())  # type: ignore[arg-type]
    warm.decode(body, 0)
    index = data.draw(st.integers(0, len(body) - 1))
    damaged = data.draw(
        st.sampled_from(
            [body[:index], body + body[index:], body[:index] + bytes([body[index] ^ 0x5A]) + body[index + 1 :]]
        )
    )
    outcomes = []
    for decoder in (warm, InferDecoder(NoMemory())):  # type: ignore[arg-type]
        try:
            outcomes.append(decoded(decoder, damaged))
        except IsochroneError as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_never_anything_else(body: bytes) -> None:
    try:
        InferDecoder(NoMemory()).decode(body, 0)  # type: ignore[arg-type]
    except IsochroneError:
        pass


def test_fields_behind_the_raw_contents_belong_to_the_head() -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="UINT8", shape=[2])
    message.raw_input_contents.append(b"ab")
    late = message.SerializeToString() + service_pb2.ModelInferRequest(id="late").SerializeToString()
    head, spans, ordered = split_raw(late, 0)
    assert (head.endswith(b"late"), [late[a:b] for a, b in spans], ordered) == (True, [b"ab"], False)
    plan, inputs = InferDecoder(NoMemory()).decode(late, 0)  # type: ignore[arg-type]
    assert plan.request_id == "late"
    assert inputs["x"].tobytes() == b"ab"


def test_raw_and_typed_contents_do_not_mix() -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="INT32", shape=[1]).contents.int_contents.append(1)
    message.raw_input_contents.append(b"\0\0\0\0")
    with pytest.raises(InvalidArgument, match="contents field must not be specified when using raw_input_contents"):
        InferDecoder(NoMemory()).decode(message.SerializeToString(), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("given_count", [0, 2])
def test_the_number_of_raw_contents_must_match(given_count: int) -> None:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="INT32", shape=[1])
    message.raw_input_contents.extend([b"\0\0\0\0"] * given_count)
    with pytest.raises(InvalidArgument, match="raw_input_contents"):
        InferDecoder(NoMemory()).decode(message.SerializeToString(), 0)  # type: ignore[arg-type]


def _plan(**fields: Any) -> Any:
    message = service_pb2.ModelInferRequest(model_name="m", **fields)
    message.inputs.add(name="x", datatype="FP32", shape=[1])
    return plan_of(message)


def _request(plan: Any, request_id: str = "") -> InferRequest:
    request = InferRequest(plan, request_id, {}, 0)
    request.served_by = Served()
    return request


@given(st.permutations(["a", "b", "c"]), st.integers(0, 4), st.sampled_from(["", "id-1"]))
def test_answers_parse_back_to_the_outputs_in_whatever_order_a_model_gives_them(
    names: list[str], rows: int, request_id: str
) -> None:
    plan = _plan()
    for order in (names, names[::-1]):
        outputs = {name: np.full((rows, 2), index, np.float32) for index, name in enumerate(order)}
        request = _request(plan, request_id)
        if request_id:
            parts, size = render(request, plan, outputs, {"n": 1}, NoMemory())  # type: ignore[arg-type]
            body = b"".join(bytes(part) for part in parts)
            assert len(body) == size
        else:
            answer: Answer = plain_answer(request, plan, outputs)
            framed = GrpcInferRequest._join(answer, outputs)
            assert int.from_bytes(framed[1:5], "big") == len(framed) - 5 == answer.size
            body = framed[5:]
        message = service_pb2.ModelInferResponse.FromString(body)
        assert (message.model_name, message.model_version, message.id) == ("m", "3", request_id)
        assert [output.name for output in message.outputs] == order
        for output, raw in zip(message.outputs, message.raw_output_contents, strict=True):
            assert tuple(output.shape) == (rows, 2)
            assert raw == outputs[output.name].tobytes()
