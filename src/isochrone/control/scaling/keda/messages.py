"""The messages of KEDA's external scalers, as protobuf classes.

Field numbers and names are those of ``externalscaler.proto`` of KEDA 2 (github.com/kedacore/keda, pkg/scalers/
externalscaler). They are built here, because no package carries them.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

_Field = descriptor_pb2.FieldDescriptorProto
_STRING, _BOOL, _INT64, _DOUBLE = _Field.TYPE_STRING, _Field.TYPE_BOOL, _Field.TYPE_INT64, _Field.TYPE_DOUBLE

#: Message → fields in the order of their numbers: (name, type or message, whether it is repeated).
_MESSAGES: dict[str, tuple[tuple[str, Any, bool], ...]] = {
    "ScaledObjectRef": (("name", _STRING, False), ("namespace", _STRING, False)),
    "IsActiveResponse": (("result", _BOOL, False),),
    "MetricSpec": (("metricName", _STRING, False), ("targetSize", _INT64, False), ("targetSizeFloat", _DOUBLE, False)),
    "GetMetricSpecResponse": (("metricSpecs", "MetricSpec", True),),
    "GetMetricsRequest": (("scaledObjectRef", "ScaledObjectRef", False), ("metricName", _STRING, False)),
    "MetricValue": (
        ("metricName", _STRING, False),
        ("metricValue", _INT64, False),
        ("metricValueFloat", _DOUBLE, False),
    ),
    "GetMetricsResponse": (("metricValues", "MetricValue", True),),
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="externalscaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, repeated) in enumerate(fields, 1):
            _add(message, field, number, kind, repeated)
    reference = file.message_type[0]
    # A map is a repeated message with a key and a value.
    entry = reference.nested_type.add(name="ScalerMetadataEntry")
    _add(entry, "key", 1, _STRING, False)
    _add(entry, "value", 2, _STRING, False)
    entry.options.map_entry = True
    _add(reference, "scalerMetadata", 3, "ScaledObjectRef.ScalerMetadataEntry", True)
    return file


def _add(message: Any, name: str, number: int, kind: Any, repeated: bool) -> None:
    field = message.field.add(name=name, number=number)
    field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    if isinstance(kind, str):
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = kind


# A pool of its own: a process may have KEDA's generated modules as well.
_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ScaledObjectRef = _class("ScaledObjectRef")
IsActiveResponse = _class("IsActiveResponse")
GetMetricSpecResponse = _class("GetMetricSpecResponse")
GetMetricsRequest = _class("GetMetricsRequest")
GetMetricsResponse = _class("GetMetricsResponse")
