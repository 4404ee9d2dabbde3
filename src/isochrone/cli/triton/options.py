"""The effect of Triton's flags on the settings of ``isochrone serve``.

Each flag that ``flags`` lists as implemented is applied here or in ``model_settings``, and nowhere else.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from isochrone.cli.triton.command_line import BadFlag, GivenFlags
from isochrone.cli.triton.model_settings import load_settings
from isochrone.observe import logs
from isochrone.observe.tracing.settings import EXPORT_OPTIONS, OPENTELEMETRY
from isochrone.protocol.access.restrictions import APIS, RequiredHeader
from isochrone.protocol.access.rules import HeaderRules
from isochrone.wire.tls.contexts import server_context
from isochrone.worker.server.settings import ServeSettings

_TRACE_SETTINGS = {"level": "trace_level", "rate": "trace_rate", "count": "trace_count", "mode": "trace_mode"}
_TRITON_TRACE_SETTINGS = {"file": "trace_file", "log-frequency": "log_frequency"}
_OLD_TRACE_FLAGS = {
    "trace-file": "trace_file",
    "trace-level": "trace_level",
    "trace-rate": "trace_rate",
    "trace-count": "trace_count",
    "trace-log-frequency": "log_frequency",
}


def with_triton_flags(settings: ServeSettings, given: GivenFlags) -> ServeSettings:
    """The settings with Triton's flags applied. Adds a warning to ``given`` for each part that has no effect."""
    hosts = {
        "http": given.text("http-address", settings.host),
        "grpc": given.text("grpc-address", settings.host),
        "metrics": given.text("metrics-address", given.text("http-address", settings.host)),
    }
    shared = {
        service
        for service in ("http", "grpc")
        if given.boolean(f"reuse-{service}-port", service in settings.shared_ports)
    }
    return replace(
        settings,
        hosts={service: host for service, host in hosts.items() if host != settings.host},
        shared_ports=frozenset(shared | (settings.shared_ports & {"metrics"})),
        server_name=given.text("id", settings.server_name),
        cache_bytes=given.integer("response-cache-byte-size", settings.cache_bytes),
        grpc_tls=_grpc_tls(given),
        rules=HeaderRules(
            _required(given, "http-restricted-api"),
            _required(given, "grpc-restricted-protocol"),
            _pattern(given, "http-header-forward-pattern"),
            _pattern(given, "grpc-header-forward-pattern"),
        ),
        trace=_trace(given),
        loading=load_settings(given),
        cpu_metrics=given.boolean("allow-cpu-metrics", True),
        gpu_metrics=given.boolean("allow-gpu-metrics", True),
        metrics_seconds=_metrics_seconds(given),
    )


def configure_logs(verbose: int, json: bool, given: GivenFlags) -> logs.Settings:
    """Configure logging by Triton's flags."""
    path = given.text("log-file")
    try:
        settings = logs.configure(verbose, json, path)
    except OSError as error:
        raise BadFlag(f"--log-file: cannot write to {path!r}: {error.strerror or error}") from None
    changes: dict[str, bool | int | str] = {
        name: given.boolean(name.replace("_", "-"), True)
        for name in ("log_info", "log_warning", "log_error")
        if name.replace("_", "-") in given.values
    }
    if "log-format" in given.values:
        changes["log_format"] = given.text("log-format")
    settings.apply(changes)
    return settings


def _metrics_seconds(given: GivenFlags) -> float:
    milliseconds = float(given.text("metrics-interval-ms", "1000"))
    if not 1 <= milliseconds < 1e9:
        raise BadFlag(f"--metrics-interval-ms: expected milliseconds from 1 to 1e9, given {milliseconds:g}")
    return milliseconds / 1000


def _grpc_tls(given: GivenFlags) -> ssl.SSLContext | None:
    mutual = given.boolean("grpc-use-ssl-mutual", False)
    if not mutual and not given.boolean("grpc-use-ssl", False):
        return None
    certificate, key, root = (given.text(f"grpc-{name}") for name in ("server-cert", "server-key", "root-cert"))
    if not certificate or not key:
        raise BadFlag("--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key")
    if mutual and not root:
        raise BadFlag("--grpc-use-ssl-mutual needs --grpc-root-cert")
    return server_context(Path(certificate), Path(key), Path(root) if mutual else None)


def _required(given: GivenFlags, flag: str) -> Mapping[str, RequiredHeader]:
    required: dict[str, RequiredHeader] = {}
    for text in given.all(flag):
        apis, colon, header = text.partition(":")
        name, equals, value = header.partition("=")
        if not colon or not equals or not name.strip() or not apis.strip():
            raise BadFlag(f"--{flag}: expected API,API:KEY=VALUE, given {text!r}")
        for api in (part.strip() for part in apis.split(",")):
            if api not in APIS:
                raise BadFlag(f"--{flag}: expected APIs out of {', '.join(APIS)}, given {api!r}")
            if api in required:
                raise BadFlag(f"--{flag}: {api!r} is restricted twice; name each API once")
            required[api] = RequiredHeader(name.strip(), value.strip())
    return required


def _pattern(given: GivenFlags, flag: str) -> re.Pattern[str] | None:
    text = given.text(flag)
    try:
        return re.compile(text, re.IGNORECASE) if text else None
    except re.error as error:
        raise BadFlag(f"--{flag}: expected a regular expression, given {text!r}: {error}") from None


def _trace(given: GivenFlags) -> Mapping[str, list[str]]:
    settings: dict[str, list[str]] = {}

    def put(name: str, value: str) -> None:
        # Levels and attributes of the server accumulate; of other settings the last value counts.
        accumulates = name in ("trace_level", "resource")
        settings[name] = [*settings.get(name, []), value] if accumulates else [value]

    for flag, name in _OLD_TRACE_FLAGS.items():
        for value in given.all(flag):
            put(name, value)
    exported: list[str] = []
    for text in given.all("trace-config"):
        mode, comma, rest = text.partition(",")
        setting, equals, value = (rest if comma else text).partition("=")
        if not equals:
            raise BadFlag(f"--trace-config: expected SETTING=VALUE or MODE,SETTING=VALUE, given {text!r}")
        if not comma and setting in _TRACE_SETTINGS:
            put(_TRACE_SETTINGS[setting], value)
        elif comma and mode == "triton" and setting in _TRITON_TRACE_SETTINGS:
            put(_TRITON_TRACE_SETTINGS[setting], value)
        elif comma and mode == OPENTELEMETRY and setting in EXPORT_OPTIONS:
            put(setting, value)
            exported.append(text)
        else:
            known = [
                *_TRACE_SETTINGS,
                *(f"triton,{name}" for name in _TRITON_TRACE_SETTINGS),
                *(f"{OPENTELEMETRY},{name}" for name in EXPORT_OPTIONS),
            ]
            raise BadFlag(f"--trace-config: expected one of {', '.join(known)}, given {text!r}")
    if settings.get("trace_mode") == [OPENTELEMETRY]:
        return settings
    for text in exported:
        given.warnings.append(f"--trace-config {text} has no effect without --trace-config mode=opentelemetry")
    if any(level != "OFF" for level in settings.get("trace_level", [])):
        given.warnings.append(
            "trace_level is kept and shown, but no traces are written; --trace-config mode=opentelemetry exports them"
        )
    return {name: value for name, value in settings.items() if name not in EXPORT_OPTIONS}
