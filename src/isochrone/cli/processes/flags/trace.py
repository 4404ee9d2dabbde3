"""``--trace-config`` of a gateway: the settings of Triton's flag that apply to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from isochrone.errors import InvalidArgument
from isochrone.observe.tracing.settings import EXPORT_OPTIONS, OPENTELEMETRY, ExportSettings

TraceOption = Annotated[
    list[str] | None,
    typer.Option(
        help="mode=opentelemetry exports traces over OTLP; rate=N: one in N requests, beside misses, errors and the"
        " slowest (default 1000); context=all: every request is sent to workers with a context, not only sampled ones;"
        " opentelemetry,NAME=VALUE: url, protocol (http or grpc), resource, timeout and others."
        " May be repeated."
    ),
]
_MAX_RATE = 2**32 - 1


class GatewayTraceFlags(NamedTuple):
    """What the flag says."""

    #: None: traces go nowhere.
    export: ExportSettings | None = None
    #: One in so many requests.
    rate: int = 1000
    #: Every request is sent with a context, not only those that are sampled.
    sends_all: bool = False


def read_trace(given: Sequence[str]) -> GatewayTraceFlags:
    options: dict[str, list[str]] = {}
    mode, rate, context = "", 1000, "sampled"
    for text in given:
        name, equals, value = text.partition("=")
        option = name.removeprefix(f"{OPENTELEMETRY},")
        if equals and name == "mode" and value == OPENTELEMETRY:
            mode = value
        elif equals and name == "rate" and value.isascii() and value.isdigit() and int(value[:12]) <= _MAX_RATE:
            rate = int(value)
        elif name == "context" and value in ("sampled", "all"):
            context = value
        elif equals and option != name and option in EXPORT_OPTIONS:
            options.setdefault(option, []).append(value)
        else:
            known = [
                f"mode={OPENTELEMETRY}",
                "rate=N",
                "context=sampled|all",
                *(f"{OPENTELEMETRY},{each}=VALUE" for each in EXPORT_OPTIONS),
            ]
            raise InvalidArgument(f"--trace-config: expected one of {', '.join(known)}, given {text[:200]!r}")
    if mode:
        return GatewayTraceFlags(ExportSettings.read(options), rate, context == "all")
    if given:
        raise InvalidArgument(
            f"--trace-config {given[0][:200]} has no effect without --trace-config mode=opentelemetry"
        )
    return GatewayTraceFlags()
