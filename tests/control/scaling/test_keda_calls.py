"""What KEDA sends and gets: the bytes of its messages, and the metadata of triggers."""

from __future__ import annotations

import struct

import pytest

from isochrone.control.scaling.keda import messages
from isochrone.control.scaling.keda.scaler import Trigger, read_trigger
from isochrone.errors import InvalidArgument

POOLS = {"cpu": object(), "gpu": object()}


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field, for contents of less than 128 bytes."""
    return bytes((number << 3 | 2, len(content))) + content


def test_messages_have_kedas_field_numbers() -> None:
    metadata = field(1, b"pool") + field(2, b"cpu")
    reference = field(1, b"scaled") + field(2, b"space") + field(3, metadata)
    read = messages.ScaledObjectRef.FromString(reference)
    assert (read.name, read.namespace, dict(read.scalerMetadata)) == ("scaled", "space", {"pool": "cpu"})
    request = messages.GetMetricsRequest.FromString(field(1, reference) + field(2, b"metric"))
    assert request.scaledObjectRef == read
    assert request.metricName == "metric"
    spec = {"metricName": "m", "targetSize": 4, "targetSizeFloat": 4.5}
    encoded = messages.GetMetricSpecResponse(metricSpecs=[spec]).SerializeToString()
    assert encoded == field(1, field(1, b"m") + b"\x10\x04" + b"\x19" + struct.pack("<d", 4.5))
    value = {"metricName": "m", "metricValue": 7, "metricValueFloat": 7.0}
    encoded = messages.GetMetricsResponse(metricValues=[value]).SerializeToString()
    assert encoded == field(1, field(1, b"m") + b"\x10\x07" + b"\x19" + struct.pack("<d", 7.0))
    assert messages.IsActiveResponse(result=True).SerializeToString() == b"\x08\x01"


def test_a_trigger_has_defaults_and_ignores_kedas_own_keys() -> None:
    assert read_trigger({"pool": "cpu", "scalerAddress": "control:8004"}, POOLS) == Trigger("cpu")
    given = {"pool": "gpu", "requestsPerWorker": "2.5", "idleSeconds": "300"}
    assert read_trigger(given, POOLS) == Trigger("gpu", 2.5, 300.0)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({}, r"metadata.pool: expected one of the known pools cpu, gpu, given ''"),
        ({"pool": "cpus"}, r"metadata.pool: .*did you mean 'cpu'"),
        (
            {"pool": "cpu", "requestsPerWorker": "0"},
            r"metadata.requestsPerWorker: expected a number above 0, .*'0'",
        ),
        ({"pool": "cpu", "requestsPerWorker": "nan"}, r"metadata.requestsPerWorker: expected a number above 0"),
        ({"pool": "cpu", "idleSeconds": "a minute"}, r"metadata.idleSeconds: .*given 'a minute'"),
        ({"pool": "cpu", "target": "4"}, r"metadata.target: expected pool, requestsPerWorker or idleSeconds"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused_by_its_key(metadata: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        read_trigger(metadata, POOLS)
