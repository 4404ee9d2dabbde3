"""The tensors a model declares, as numpy sees them.

Backends ask here which outputs an execution must give and which inputs the scheduler adds, and for the name of a type.
Read once per load; nothing here runs per request. It must stay light to import (no protobuf, no gRPC): the process of
an isolated python model starts with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isochrone.protocol.datatypes import NUMPY_BY_NAME

if TYPE_CHECKING:
    import numpy as np

    from isochrone.worker.backends import LoadContext


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy type; numpy's own name where the protocol has none."""
    return next((name for name, known in NUMPY_BY_NAME.items() if known == dtype), str(dtype))


def declared_outputs(context: LoadContext) -> dict[str, str]:
    """Name and datatype of every output an execution gives: the declared ones, then a sequence's implicit state.

    The scheduler keeps the state between the requests of a sequence; to a backend it is an output like any other.
    """
    outputs = {spec.name: spec.datatype for spec in context.signature.outputs}
    # Read here, not at the top: python_process imports this module and must not pay for tritonclient.
    from isochrone.models.signature import OIP_NAME_BY_DATA_TYPE

    for state in context.config.sequence_batching.state:
        outputs[state.output_name] = OIP_NAME_BY_DATA_TYPE[state.data_type]
    return outputs


def scheduler_inputs(context: LoadContext) -> set[str]:
    """Names of the inputs no request carries: control tensors and implicit state of a sequence model."""
    sequences = context.config.sequence_batching
    return {control.name for control in sequences.control_input} | {state.input_name for state in sequences.state}
