"""What a request is, from its method, path and content type: which model it names, and what else must be read. Pure.

The same calls that a gateway forwards. A picker leads each to one worker, so it rejects those that a gateway makes on
all workers: one of them alone would change, or be shown for all.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

from isochrone.errors import InvalidArgument, MethodNotAllowed, NotFound, Unsupported
from isochrone.gateway.front.paths import GENERATE, INFERENCE, MODEL_PATH, unquote
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.protocol.openai.paths import CHAT, COMPLETIONS, MODELS

_SERVICE = "/inference.GRPCInferenceService/"
#: Calls of gRPC that name a model in their message.
_OF_MODELS = frozenset(("ModelInfer", "ModelStreamInfer", "ModelMetadata", "ModelConfig", "ModelReady"))
_OF_INFERENCE = frozenset(("ModelInfer", "ModelStreamInfer"))
#: Calls that any worker answers alike.
_OF_ANYBODY = frozenset(("ServerLive", "ServerReady", "ServerMetadata"))
_PATHS_OF_ANYBODY = frozenset(("/v2", "/v2/health/live", "/v2/health/ready"))
_READING = ("", "config", "ready")
#: Bytes of a method and path that are remembered: clients choose both.
_MOST_REMEMBERED = 512


class Form(IntEnum):
    """Where a call names its model."""

    #: Nowhere: any worker answers it.
    ANYBODY = 0
    #: In its path; a version stands there, too.
    PATH = 1
    #: In its path; the body has the deadlines of tokens and the prompt.
    GENERATE = 2
    #: In its body, OpenAI's JSON; a header pins the version.
    OPENAI = 3
    #: In its message, gRPC's; a version stands there, too.
    GRPC = 4


class Call(NamedTuple):
    """One kind of request."""

    form: Form
    model: str = ""
    version: str = ""
    #: What follows the model and the version in the path.
    tail: str = ""
    kind: Kind = Kind.STATELESS
    is_grpc: bool = False
    #: Whether the model works for it; False: it asks about the model.
    is_inference: bool = True
    #: It asks whether the model is ready, which the picker knows.
    asks_ready: bool = False

    @property
    def reads_body(self) -> bool:
        """Whether the body may say where it goes."""
        return self.form > Form.PATH or self.tail.startswith("/infer")

    def target(self, version: str) -> bytes:
        """Its path with a version."""
        return f"/v2/models/{quote(self.model, safe='')}/versions/{quote(version, safe='')}{self.tail}".encode()


def find_call(method: bytes, target: bytes, is_grpc: bool) -> Call:
    """Raises for what no single worker can answer."""
    if len(method) + len(target) > _MOST_REMEMBERED:
        return _find_call(method, target, is_grpc)
    return _find_call_again(method, target, is_grpc)


def _find_call(method: bytes, target: bytes, is_grpc: bool) -> Call:
    try:
        path, question, query = target.decode("ascii").partition("?")
    except UnicodeDecodeError:
        raise NotFound(f"no such path: {target[:200]!r}; percent-encode what is not ASCII") from None
    if is_grpc:
        return _grpc(path)
    plain = path.rstrip("/")
    if plain in _PATHS_OF_ANYBODY or plain == MODELS or plain.startswith(f"{MODELS}/"):
        return Call(Form.ANYBODY)
    if plain in (CHAT, COMPLETIONS):
        _expect_post(method, plain)
        return Call(Form.OPENAI)
    match = MODEL_PATH.match(path)
    rest = (match["rest"] or "").rstrip("/") if match is not None else ""
    verb = rest.removeprefix("/")
    if match is None or not (verb in INFERENCE or verb in _READING) or match["model"] == "stats":
        if path.startswith("/v2/"):
            raise _only_by_gateways(path)
        raise NotFound(f"no such path: {path[:200]}; this picker knows the Open Inference Protocol and OpenAI's paths")
    is_inference, asks_ready = verb in INFERENCE, verb == "ready"
    if is_inference:
        _expect_post(method, path)
    elif asks_ready and method not in (b"GET", b"HEAD"):
        raise _other_method(method, path, "GET or HEAD")
    form = Form.GENERATE if verb in GENERATE else Form.PATH
    kind = Kind.STREAM if verb == "generate_stream" else Kind.STATELESS
    model, version = unquote(match["model"]), unquote(match["version"] or "")
    tail = rest + question + query
    return Call(form, model, version, tail, kind, is_inference=is_inference, asks_ready=asks_ready)


#: The same for paths that recur.
_find_call_again = lru_cache(maxsize=4096)(_find_call)


def _grpc(path: str) -> Call:
    name = path.removeprefix(_SERVICE)
    if path.startswith("/grpc.health.v1.Health/") or (path != name and name in _OF_ANYBODY):
        return Call(Form.ANYBODY, is_grpc=True)
    if path == name or name not in _OF_MODELS:
        raise _only_by_gateways(path)
    kind = Kind.STREAM if name == "ModelStreamInfer" else Kind.STATELESS
    return Call(Form.GRPC, tail=name, kind=kind, is_grpc=True, is_inference=name in _OF_INFERENCE)


def _only_by_gateways(path: str) -> Unsupported:
    return Unsupported(
        f"{path[:200]}: a picker leads a request to one worker, and this call concerns all of them or none; "
        "call a gateway, or each worker"
    )


def _expect_post(method: bytes, path: str) -> None:
    if method != b"POST":
        raise _other_method(method, path, "POST")


def _other_method(method: bytes, path: str, expected: str) -> MethodNotAllowed:
    return MethodNotAllowed(f"{path[:200]}: expected {expected}, given {method.decode('latin-1')[:20]}")


def body_needed(call: Call) -> InvalidArgument:
    """The error of a call whose model only its body names, where Envoy does not send bodies before the decision."""
    what = "a gRPC message" if call.is_grpc else "a body of OpenAI's"
    return InvalidArgument(
        f"the model stands in {what}, which the picker does not see: set request_body_mode to BUFFERED or "
        "FULL_DUPLEX_STREAMED in Envoy, or send the header x-isochrone-model: NAME"
    )
