"""What the GPU benches send: contents, messages, configurations; and what they read of an answer."""

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from bench.gpu.load.messages import RegionPair, answered, heading, infer_message, messages_of
from bench.gpu.models.specs import (
    ENCODER,
    FULL,
    MODELS,
    NO_GRAPHS,
    NO_OVERLAP,
    OVERLAP,
    TINY,
    TWO_TOWER,
    VARIANTS,
    config_text,
    spec_of,
    variant_name,
)


@pytest.mark.parametrize("model", MODELS)
def test_samples_are_repeatable_distinct_and_of_the_declared_type(model: str) -> None:
    spec = spec_of(model, TINY)
    samples = spec.samples(8)
    for tensor in spec.inputs:
        rows = samples[tensor.name]
        assert rows.shape == (8, *tensor.dims)
        assert rows.dtype == tensor.dtype
        assert np.array_equal(rows, spec.samples(8)[tensor.name])
    assert len({b"".join(rows[at].tobytes() for rows in samples.values()) for at in range(8)}) == 8


def test_a_message_has_its_tensors_and_a_place_for_the_id() -> None:
    spec = spec_of(TWO_TOWER, TINY)
    message = messages_of(spec)[3]
    assert message.data[message.id_at : message.id_at + 12] == b"0" * 12
    request = service_pb2.ModelInferRequest.FromString(message.data[5:])
    assert [each.name for each in request.inputs] == [each.name for each in spec.inputs]
    assert request.raw_input_contents[1] == spec.samples()["history"][3].tobytes()


def test_inputs_in_shared_memory_follow_each_other() -> None:
    spec = spec_of(TWO_TOWER, TINY)
    message = infer_message(spec, {}, RegionPair("in", "out"))
    request = service_pb2.ModelInferRequest.FromString(message.data[5:])
    assert not request.raw_input_contents
    places = [
        (each.parameters["shared_memory_offset"].int64_param, each.parameters["shared_memory_byte_size"].int64_param)
        for each in request.inputs
    ]
    assert places == [(0, 4), (4, 128), (132, 64), (196, 400)]
    assert request.outputs[0].parameters["shared_memory_region"].string_param == "out"


@pytest.mark.parametrize("order", [(1, 2, 3), (1, 3, 2)])
def test_version_and_id_are_read_in_any_order(order: tuple[int, ...]) -> None:
    fields = {1: b"\x0a\x07encoder", 2: b"\x12\x0212", 3: b"\x1a\x0c000000000042"}
    head = b"".join(fields[number] for number in order)
    rest = service_pb2.ModelInferResponse(raw_output_contents=[np.zeros(TINY.hidden, np.float32).tobytes()])
    body = b"\0\0\0\0\0" + head + rest.SerializeToString()
    assert heading(body) == (b"12", b"000000000042")
    assert heading(b"\0\0\0\0\0" + head) == (b"12", b"000000000042")
    assert answered(spec_of(ENCODER, TINY), body).shape == (TINY.hidden,)


def test_variants_differ_in_their_configuration_alone() -> None:
    for variant in VARIANTS:
        text = config_text(spec_of(variant_name(ENCODER, variant), FULL), "cuda", variant)
        graphs, overlap = variant in (OVERLAP, NO_OVERLAP), variant in (OVERLAP, NO_GRAPHS)
        assert f'key: "overlap" value: {{ string_value: "{str(overlap).lower()}" }}' in text
        assert f"graphs: {str(graphs).lower()}" in text
        assert ('string_value: "1,2,4,8,16,32,64"' in text) == graphs
    assert "KIND_CPU" in config_text(spec_of(ENCODER, TINY), "cpu")


def test_resnet_has_the_weights_of_resnet_50() -> None:
    pytest.importorskip("torch")
    from bench.gpu.models.networks import ResNet

    network = ResNet(FULL.blocks, FULL.width, FULL.classes)
    # torchvision's resnet50.
    assert sum(each.numel() for each in network.parameters()) == 25_557_032
    assert "layer4.2.bn3.weight" in dict(network.named_parameters())
