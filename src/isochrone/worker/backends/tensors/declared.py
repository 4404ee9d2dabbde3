"""Tensors beside a model's signature: outputs that an execution must give, inputs that the scheduler adds.

Read once per load; nothing here runs per request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.models.signature import OIP_NAME_BY_DATA_TYPE

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext


def declared_outputs(context: LoadContext) -> dict[str, str]:
    """Name and datatype of every output of an execution: the declared outputs, then a sequence's implicit state.

    The sequence batcher keeps the state between requests; to a backend it is an ordinary output.
    """
    outputs = {spec.name: spec.datatype for spec in context.signature.outputs}
    for state in context.config.sequence_batching.state:
        outputs[state.output_name] = OIP_NAME_BY_DATA_TYPE[state.data_type]
    return outputs


def scheduler_inputs(context: LoadContext) -> set[str]:
    """Names of the inputs that no request carries: control tensors and implicit state of a sequence model."""
    sequences = context.config.sequence_batching
    return {control.name for control in sequences.control_input} | {state.input_name for state in sequences.state}
