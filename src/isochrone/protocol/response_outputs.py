"""The outputs of a model that gives its response parameters of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.protocol.messages import NO_PARAMETERS, Parameters

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors


class ResponseOutputs(dict[str, "Tensor"]):
    """Tensors by name, and the parameters of the response. Most models give none, and return a plain dict."""

    def __init__(self, outputs: Tensors, parameters: Parameters) -> None:
        super().__init__(outputs)
        self.parameters = parameters


def parameters_of(outputs: Tensors) -> Parameters:
    return outputs.parameters if isinstance(outputs, ResponseOutputs) else NO_PARAMETERS
