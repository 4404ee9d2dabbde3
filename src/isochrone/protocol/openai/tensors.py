"""The inputs of a model from a call, under the names of Triton's vLLM backend. Pure.

``text_input`` or ``messages`` has the prompt, ``sampling_parameters`` the sampling parameters as JSON. Inputs that a
model does not declare are left out. A model without ``sampling_parameters`` gets each of them as an input of that name
or as a request parameter, so that any model from text to text can be called.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from isochrone.errors import IsochroneError, RejectedParameter
from isochrone.protocol.openai.answers import InvalidParameter
from isochrone.protocol.openai.call import CompletionCall, unsupported
from isochrone.protocol.rest.generate_objects import GenerateRequest, InputDeclaration, read_generate

if TYPE_CHECKING:
    from isochrone.protocol.services.service import InferenceService

TEXT_INPUT, MESSAGES, TEXT_OUTPUT = "text_input", "messages", "text_output"
_SAMPLING, _LOGPROBS = "sampling_parameters", "logprobs"


@dataclass(frozen=True, slots=True)
class TextModel:
    """What a model declares, as far as calls need it."""

    name: str
    version: str
    inputs: Sequence[InputDeclaration]
    max_batch_size: int
    outputs: Collection[str]

    @property
    def is_served(self) -> bool:
        """Whether it can answer any call of this front."""
        names = self.input_names
        return TEXT_OUTPUT in self.outputs and (TEXT_INPUT in names or MESSAGES in names)

    @property
    def input_names(self) -> frozenset[str]:
        return frozenset(name for name, _, _ in self.inputs)


def text_model(service: InferenceService, name: str, version: str) -> TextModel:
    """Raises if the model is not served."""
    inputs, max_batch_size = service.declared_inputs(name, version)
    outputs = frozenset(output.name for output in service.model_metadata(name, version).outputs)
    return TextModel(name, version, inputs, max_batch_size, outputs)


def check(call: CompletionCall, model: TextModel) -> None:
    """Raise if the model has not the tensors that the call needs."""
    names = model.input_names
    if TEXT_OUTPUT not in model.outputs:
        raise _missing(model, f"no output '{TEXT_OUTPUT}': it does not generate text")
    if call.is_chat and MESSAGES not in names:
        hint = "; use /v1/completions" if TEXT_INPUT in names else ""
        raise _missing(model, f"no input '{MESSAGES}': it has no chat template{hint}")
    if not call.is_chat and TEXT_INPUT not in names:
        raise _missing(model, f"no input '{TEXT_INPUT}': it takes no text")
    if call.logprobs is not None and (_LOGPROBS not in model.outputs or "return_logprobs" not in names):
        raise unsupported("logprobs", f"model '{model.name}' returns none")
    if len(call.sampling.get("stop", ())) > 1 and not names & {_SAMPLING, "stop"}:
        raise unsupported("stop", f"model '{model.name}' takes one stop string at most")


def _missing(model: TextModel, what: str) -> InvalidParameter:
    return InvalidParameter("model", f"model '{model.name}' has {what}", "model_not_supported")


def choice_inputs(call: CompletionCall, model: TextModel, prompt: str, number: int) -> GenerateRequest:
    """The inputs and parameters of one choice. ``number``: its place among the choices of its prompt."""
    sampling = dict(call.sampling)
    if "seed" in sampling:
        # With one seed all choices would be the same.
        sampling["seed"] = _next_seed(sampling["seed"], number)
    if call.logprobs is not None:
        sampling[_LOGPROBS] = call.logprobs
    names = model.input_names
    given: dict[str, Any] = {
        MESSAGES if call.is_chat else TEXT_INPUT: prompt,
        "stream": call.streams,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_logprobs": call.logprobs is not None,
    }
    given = {name: value for name, value in given.items() if name in names}
    if _SAMPLING in names:
        given[_SAMPLING] = msgspec.json.encode(sampling).decode()
    else:
        for name, value in sampling.items():
            given[name] = value[0] if name == "stop" and name not in names else value
    return read_generate({**given, **call.parameters}, model.inputs, model.max_batch_size)


def in_terms_of_call(error: IsochroneError, call: CompletionCall) -> IsochroneError:
    """The error of a model, with the caller's name of the option where the model rejects a parameter."""
    if not isinstance(error, RejectedParameter):
        return error
    option = "top_logprobs" if call.is_chat and error.parameter == _LOGPROBS else error.parameter
    rejected = InvalidParameter(option, f"'{option}': expected {error.expected}, given {error.given}", "invalid_value")
    rejected.unprocessed = error.unprocessed
    return rejected


def _next_seed(seed: int, number: int) -> int:
    """The seed of a choice, within 64 bits."""
    return (seed + number + (1 << 63)) % (1 << 64) - (1 << 63)
