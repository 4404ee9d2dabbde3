"""Adapts a model that OpenVINO has read to its configuration: sizes of batches, reshaped inputs, element types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isochrone.errors import ConfigError
from isochrone.models.openvino_file import DATATYPE_BY_ELEMENT
from isochrone.models.signature import TensorSpec
from isochrone.models.unnamed_tensors import chosen_names
from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.tensors.file_shapes import check_dims

_ELEMENT_BY_DATATYPE = {datatype: element for element, datatype in DATATYPE_BY_ELEMENT.items()}


def adapt(context: LoadContext, openvino: Any, model: Any, path: Path, fixed_rows: int) -> Any:
    """The model as the configuration declares it; ``fixed_rows``: the size of every batch, 0: any."""
    _name_tensors(context, model)
    _check_names(context, model, path)
    _reshape(context, openvino, model, fixed_rows)
    model = _convert_types(context, openvino, model)
    _check_shapes(context, model)
    return model


def _name_tensors(context: LoadContext, model: Any) -> None:
    """Gives names to tensors that have none: those of the configuration, or of their positions."""
    signature = context.signature
    for kind, specs, ports in (("input", signature.inputs, model.inputs), ("output", signature.outputs, model.outputs)):
        names = [port.get_names() for port in ports]
        for number, name in chosen_names(kind, names, [spec.name for spec in specs]).items():
            ports[number].set_names({name})


def _check_names(context: LoadContext, model: Any, path: Path) -> None:
    where = parameters.where(context)
    for kind, specs, ports in (
        ("input", context.signature.inputs, model.inputs),
        ("output", context.signature.outputs, model.outputs),
    ):
        names = {name for port in ports for name in port.get_names()}
        for spec in specs:
            if spec.name not in names:
                expected = f"one of the {kind}s of {path.name}: " + ", ".join(sorted(names))
                raise ConfigError(where, f"{kind}.name", expected, repr(spec.name))
            if spec.datatype not in _ELEMENT_BY_DATATYPE:
                expected = "one of " + ", ".join(_ELEMENT_BY_DATATYPE)
                raise ConfigError(where, f"{kind} '{spec.name}' data_type", expected, spec.datatype)
    declared = {spec.name for spec in context.signature.inputs}
    for port in model.inputs:
        if not declared & port.get_names():
            expected = f"every input of {path.name}"
            raise ConfigError(where, "input", expected, f"none for {port.get_any_name()}")


def _reshape(context: LoadContext, openvino: Any, model: Any, fixed_rows: int) -> None:
    """Frees or fixes the first dimension of a batching model, and sets the dims of ``RESHAPE_IO_LAYERS``."""
    batched = context.signature.max_batch_size > 0
    set_dims = parameters.boolean(context, "RESHAPE_IO_LAYERS", False)
    if not batched and not set_dims:
        return
    shapes = {}
    for spec in context.signature.inputs:
        port = model.input(spec.name)
        given = port.get_partial_shape()
        if set_dims:
            own = list(_model_dims(spec))
        elif given.rank.is_dynamic or len(given) == 0:
            continue
        else:
            own = list(given)[1:] if batched else list(given)
        rows = [fixed_rows or -1] if batched else []
        shapes[port] = openvino.PartialShape([*rows, *own])
    try:
        model.reshape(shapes)
    except Exception as error:
        key = "RESHAPE_IO_LAYERS" if set_dims else "SKIP_OV_DYNAMIC_BATCHSIZE"
        expected = (
            "dims that the model can be reshaped to"
            if set_dims
            else "YES, or max_batch_size 0, since OpenVINO cannot free the model's first dimension"
        )
        raise ConfigError(
            parameters.where(context), f'parameters["{key}"]', expected, str(error).strip()[-500:]
        ) from error


def _convert_types(context: LoadContext, openvino: Any, model: Any) -> Any:
    """OpenVINO converts tensors whose declared type is not the model's."""
    wanted = [("input", spec) for spec in context.signature.inputs]
    wanted += [("output", spec) for spec in context.signature.outputs]
    steps = openvino.preprocess.PrePostProcessor(model)
    converts = False
    for kind, spec in wanted:
        element = _ELEMENT_BY_DATATYPE[spec.datatype]
        if getattr(model, kind)(spec.name).get_element_type().get_type_name() != element:
            getattr(steps, kind)(spec.name).tensor().set_element_type(getattr(openvino.Type, element))
            converts = True
    return steps.build() if converts else model


def _check_shapes(context: LoadContext, model: Any) -> None:
    signature = context.signature
    batched = signature.max_batch_size > 0
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            shape = getattr(model, kind)(spec.name).get_partial_shape()
            if shape.rank.is_dynamic:
                continue
            sizes = tuple(-1 if size.is_dynamic else size.get_length() for size in shape)
            if batched and sizes:
                sizes = (-1, *sizes[1:])  # set above
            check_dims(signature.model, spec.name, sizes, _model_dims(spec), batched=batched, output=kind == "output")


def _model_dims(spec: TensorSpec) -> tuple[int, ...]:
    return spec.dims if spec.reshape is None else spec.reshape
