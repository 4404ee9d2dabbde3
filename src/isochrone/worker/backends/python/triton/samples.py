"""Runs without a caller: samples of ``model_warmup``, and steps of a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from isochrone.errors import InvalidArgument, IsochroneError, ModelFailed
from isochrone.protocol.messages import InferRequest, Plan

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.python.triton.outputs import Answer


def sample_request(model_name: str, inputs: Tensors, outputs: tuple[str, ...] | None) -> InferRequest:
    described = tuple((name, "", array.shape) for name, array in inputs.items())
    return InferRequest(Plan(model_name, "", described, outputs), "", inputs, 0)


def sample_outputs(model_name: str, answer: Answer) -> Tensors:
    if isinstance(answer, IsochroneError):
        raise answer
    if answer is None:
        raise ModelFailed(f"model '{model_name}': expected a response as the result of execute")
    return answer


def no_outlet(request: InferRequest) -> NoReturn:
    raise InvalidArgument("a warm-up sample has no caller: the response must be the result of execute")
