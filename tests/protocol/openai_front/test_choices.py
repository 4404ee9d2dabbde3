"""From a model's responses to OpenAI's objects, and from a call to a model's inputs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from isochrone.errors import (
    DeadlineExceeded,
    InvalidArgument,
    IsochroneError,
    ModelFailed,
    NotFound,
    QueueFull,
    Restricted,
    Unavailable,
)
from isochrone.protocol.openai.answers import InvalidParameter, ModelNotFound, error_object
from isochrone.protocol.openai.call import CompletionCall
from isochrone.protocol.openai.choice import Choice
from isochrone.protocol.openai.model_names import pinned_model, pinned_value, split_name
from isochrone.protocol.openai.objects import AnswerForm, usage_of
from isochrone.protocol.openai.tensors import TextModel, check, choice_inputs
from isochrone.wire.exchange import Head


def response(text: bytes, **outputs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"text_output": np.array([text], object)}
    for name, value in outputs.items():
        kind = np.uint32 if name.startswith("num_") else object
        found[name] = np.array([value], kind)
    return found


class TestChoice:
    def test_pieces_are_added_up(self) -> None:
        choice = Choice(0, 0)
        texts = [
            choice.take(response(b"on", finish_reason=b"None", num_input_tokens=3, num_output_tokens=2)).text,
            choice.take(response(b"ce", finish_reason=b"length", num_input_tokens=3, num_output_tokens=1)).text,
        ]
        assert ("".join(texts), choice.end()) == ("once", "")
        assert (choice.input_tokens, choice.output_tokens, choice.finish_reason) == (3, 3, "length")

    def test_a_character_in_two_pieces(self) -> None:
        choice = Choice(0, 0)
        text = "straße €".encode()
        pieces = [choice.take(response(text[at : at + 1])).text for at in range(len(text))]
        assert "".join(pieces) == "straße €"
        assert choice.take(response("€".encode()[:2])).text == ""
        assert choice.end() == "\N{REPLACEMENT CHARACTER}"

    def test_other_reasons_are_stops(self) -> None:
        choice = Choice(0, 0)
        choice.take(response(b"", finish_reason=b"abort"))
        assert choice.finish_reason == "stop"

    def test_what_a_model_does_not_say(self) -> None:
        choice = Choice(0, 0)
        choice.take(response(b"x"))
        assert (choice.input_tokens, choice.output_tokens, usage_of([choice])) == (None, None, None)

    def test_responses_that_make_no_sense(self) -> None:
        with pytest.raises(ModelFailed, match="no output 'text_output'"):
            Choice(0, 0).take({})
        with pytest.raises(ModelFailed, match="'logprobs' cannot be read"):
            Choice(0, 0, 1).take(response(b"x", logprobs=b"{"))

    def test_log_probabilities(self) -> None:
        token = {"5": {"logprob": -2.0, "rank": 3, "decoded_token": "x"}, "6": {"logprob": -1.0, "decoded_token": "y"}}
        (found,) = Choice(0, 0, 1).take(response(b"x", logprobs=json.dumps([token]).encode())).logprobs
        assert (found.chosen, found.top) == (("x", -2.0), (("y", -1.0),))
        assert Choice(0, 0, 1).take(response(b"x", logprobs=b"null")).logprobs == []
        assert Choice(0, 0).take(response(b"x", logprobs=b"{")).logprobs == ()


@pytest.mark.parametrize("is_chat", [True, False])
def test_events_of_text_are_the_chunks(is_chat: bool) -> None:
    form, choices = AnswerForm('a "model"\\ with ü', is_chat), (Choice(0, 0), Choice(1, 0))
    for fingerprint in (None, "fp_1", "fp_2"):
        form.fingerprint = fingerprint
        for text in (
            "",
            " word",
            'quote " and \\',
            "straße\n€\u2028",
            "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
        ):
            for choice in choices:
                event = b"".join(form.text_event(choice.index, text))
                assert event.startswith(b"data: ")
                assert event.endswith(b"\n\n")
                assert json.loads(event[6:]) == form.piece(choice, text, None, 0)


def test_usage_counts_each_prompt_once() -> None:
    choices = [Choice(index, index // 2) for index in range(4)]
    for choice in choices:
        choice.take(response(b"x", num_input_tokens=5 + choice.prompt, num_output_tokens=2))
    assert usage_of(choices) == {"prompt_tokens": 11, "completion_tokens": 8, "total_tokens": 19}


def test_ids_differ() -> None:
    forms = [AnswerForm("m", is_chat) for is_chat in (True, True, False)]
    assert len({form.id for form in forms}) == 3
    assert [form.id.partition("-")[0] for form in forms] == ["chatcmpl", "chatcmpl", "cmpl"]


TEXT = ("text_input", "BYTES", (1,))


def model(*inputs: Any, outputs: tuple[str, ...] = ("text_output",), batch: int = 0) -> TextModel:
    return TextModel("m", "", inputs, batch, outputs)


class TestInputs:
    CALL = CompletionCall("m", False, ("hi",), 2, True, sampling={"seed": (1 << 63) - 1, "stop": ["a"], "top_k": 3})

    def test_what_the_model_does_not_declare_is_left_out(self) -> None:
        given = choice_inputs(self.CALL, model(TEXT, ("stream", "BOOL", (1,))), "hi", 0)
        assert {name: value.tolist() for name, value in given.inputs.items()} == {
            "text_input": [b"hi"],
            "stream": [True],
        }
        assert given.parameters == {"seed": (1 << 63) - 1, "stop": "a", "top_k": 3}

    def test_a_batched_model(self) -> None:
        assert choice_inputs(self.CALL, model(TEXT, batch=4), "hi", 0).inputs["text_input"].shape == (1, 1)

    def test_sampling_parameters_are_json(self) -> None:
        given = choice_inputs(self.CALL, model(TEXT, ("sampling_parameters", "BYTES", (1,))), "hi", 1)
        sampling = json.loads(given.inputs["sampling_parameters"][0])
        # The next seed, within 64 bits.
        assert sampling == {"seed": -(1 << 63), "stop": ["a"], "top_k": 3}
        assert given.parameters == {}

    def test_a_sampling_parameter_of_its_own(self) -> None:
        given = choice_inputs(self.CALL, model(TEXT, ("top_k", "INT32", (1,))), "hi", 0)
        assert given.inputs["top_k"].tolist() == [3]

    @pytest.mark.parametrize(
        ("call", "given", "message"),
        [
            (CompletionCall("m", True, ("[]",)), model(TEXT), "no input 'messages'.*use /v1/completions"),
            (CompletionCall("m", False, ("x",)), model(("messages", "BYTES", (1,))), "no input 'text_input'"),
            (CompletionCall("m", False, ("x",)), model(TEXT, outputs=("Y",)), "no output 'text_output'"),
            (CompletionCall("m", False, ("x",), logprobs=1), model(TEXT), "'m' returns none"),
            (CompletionCall("m", False, ("x",), sampling={"stop": ["a", "b"]}), model(TEXT), "one stop string"),
        ],
    )
    def test_what_is_missing(self, call: CompletionCall, given: TextModel, message: str) -> None:
        with pytest.raises(InvalidParameter, match=message):
            check(call, given)


class TestNames:
    @pytest.mark.parametrize(
        ("given", "known", "expected"),
        [
            ("m", (), ("m", "")),
            ("m@3", (), ("m", "3")),
            ("m@3", ("m@3",), ("m@3", "")),
            ("m@3@4", (), ("m@3", "4")),
            ("m@", (), ("m@", "")),
            ("@3", (), ("@3", "")),
            ("user@host", (), ("user@host", "")),
            ("m@³", (), ("m@³", "")),
        ],
    )
    def test_versions(self, given: str, known: tuple[str, ...], expected: tuple[str, str]) -> None:
        assert split_name(given, known.__contains__) == expected

    @pytest.mark.parametrize(("name", "version"), [("m", "3"), ("m", ""), ("ä=b, c%", "12"), ("a@2", "1")])
    def test_the_header_is_read_back(self, name: str, version: str) -> None:
        head = Head(b"POST", b"/v1/completions", ((b"x-isochrone-model", pinned_value(name, version)),))
        assert pinned_model(head) == (name, version)

    @pytest.mark.parametrize("value", [b"", b"=3", b"m=x", b"m=-1", b"%ff=1"])
    def test_a_header_that_makes_no_sense(self, value: bytes) -> None:
        with pytest.raises(InvalidArgument, match="x-isochrone-model"):
            pinned_model(Head(b"POST", b"/", ((b"x-isochrone-model", value),)))


@pytest.mark.parametrize(
    ("error", "kind", "parameter", "code"),
    [
        (InvalidParameter("n", "x", "invalid_value"), "invalid_request_error", "n", "invalid_value"),
        (InvalidArgument("x"), "invalid_request_error", None, None),
        (ModelNotFound("x"), "invalid_request_error", "model", "model_not_found"),
        (NotFound("x"), "invalid_request_error", None, "not_found"),
        (Restricted("x"), "permission_error", None, "restricted"),
        (QueueFull("x"), "rate_limit_error", None, "queue_full"),
        (ModelFailed("x"), "server_error", None, "model_failed"),
        (Unavailable("x"), "server_error", None, "unavailable"),
        (DeadlineExceeded("x"), "timeout_error", None, "deadline_exceeded"),
    ],
)
def test_error_objects(error: IsochroneError, kind: str, parameter: str | None, code: str | None) -> None:
    assert error_object(error) == {"error": {"message": "x", "type": kind, "param": parameter, "code": code}}
