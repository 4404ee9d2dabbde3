"""From flags, and a file where one is given, to a workload. Flags have precedence over the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from isochrone.bench.workload.arrivals import read_trace
from isochrone.bench.workload.mix import Kind
from isochrone.bench.workload.spec import (
    DEFAULT_SECONDS,
    DEFAULT_WARMUP_SECONDS,
    Workload,
    WorkloadFile,
    check_loop,
    read_workload_file,
)
from isochrone.errors import ConfigError, FlagError
from isochrone.secure.api_token import token_fields
from isochrone.settings.expectations import problems_of

_PROTOCOLS = ("http", "grpc", "openai")
_ARRIVALS = ("constant", "poisson", "bursts", "trace")
#: Of a key in the workload, where the flag has another name.
_FLAGS = {"in_flight": "--concurrency", "target": "URL", "kinds": "--mix"}

S = TypeVar("S", Kind, Workload)


@dataclass(frozen=True, slots=True)
class Flags:
    """As the command line gives them; None or "": not given."""

    url: str
    protocol: str
    mix: Path | None
    kind: dict[str, Any]
    """Those flags of the only kind that are given; none with a mix."""
    rate: float | None
    arrivals: str
    on_seconds: float | None
    off_seconds: float | None
    trace: Path | None
    concurrency: int | None
    seconds: float | None
    warmup_seconds: float | None
    timeout_seconds: float
    max_in_flight: int
    connections: int
    headers: Sequence[str]
    seed: int | None
    ca: Path | None
    cert: Path | None
    key: Path | None


def workload_of(flags: Flags, default_rate: float | None = None) -> Workload:
    """Raises ``ConfigError``, which names the flag or the file's key. ``default_rate``: where no load is given."""
    target, protocol = target_of(flags.url, flags.protocol)
    file = read_workload_file(flags.mix) if flags.mix is not None else None
    kinds = _kinds(flags, file)
    rate, trace, in_flight = _load(flags, file)
    if rate is None and not trace and in_flight is None:
        rate = default_rate
    arrivals = flags.arrivals or (file.arrivals if file is not None else None) or ""
    if arrivals and arrivals not in _ARRIVALS:
        raise FlagError("--arrivals", f"one of {', '.join(_ARRIVALS)}", f"'{arrivals}'")
    if in_flight is not None and not flags.arrivals:
        arrivals = ""
    check_loop(rate, trace, in_flight, arrivals)
    seconds = _first(flags.seconds, file, "seconds")
    warmup = _first(flags.warmup_seconds, file, "warmup_seconds")
    if trace:
        # A recorded trace is sent as it is: from its start to its end.
        warmup = 0.0 if warmup is None else warmup
        seconds = max(read_trace(Path(trace))[-1] + 1e-3 - warmup, 1e-3) if seconds is None else seconds
    given = {
        "target": target,
        "protocol": protocol,
        "kinds": [kind.model_dump() for kind in kinds],
        "rate": rate,
        "arrivals": "trace" if trace else arrivals or "poisson",
        "on_seconds": _first(flags.on_seconds, file, "on_seconds"),
        "off_seconds": _first(flags.off_seconds, file, "off_seconds"),
        "trace": trace,
        "in_flight": in_flight,
        "seconds": DEFAULT_SECONDS if seconds is None else seconds,
        "warmup_seconds": DEFAULT_WARMUP_SECONDS if warmup is None else warmup,
        "timeout_seconds": flags.timeout_seconds,
        "max_in_flight": flags.max_in_flight,
        "connections": flags.connections,
        "headers": {**token_fields(), **headers_of(flags.headers)},
        "seed": _first(flags.seed, file, "seed"),
        **{name: str(path.absolute()) for name in ("ca", "cert", "key") if (path := getattr(flags, name)) is not None},
    }
    workload = _checked(Workload, {key: value for key, value in given.items() if value is not None})
    _check_kinds(workload)
    return workload


def target_of(url: str, protocol: str) -> tuple[str, str]:
    """The URL with its scheme, and the protocol; each says something of the other."""
    if protocol and protocol not in _PROTOCOLS:
        raise FlagError("--protocol", f"one of {', '.join(_PROTOCOLS)}", f"'{protocol}'")
    if "://" not in url:
        return f"{'grpc' if protocol == 'grpc' else 'http'}://{url}", protocol or "http"
    scheme = urlsplit(url).scheme
    is_grpc = scheme in ("grpc", "grpcs")
    if is_grpc and protocol not in ("", "grpc"):
        raise FlagError("--protocol", f"grpc with a {scheme}:// URL, or an http:// URL", f"'{protocol}'")
    if protocol == "grpc" and scheme in ("http", "https"):
        return url.replace(scheme, "grpcs" if scheme == "https" else "grpc", 1), "grpc"
    return url, protocol or ("grpc" if is_grpc else "http")


def headers_of(words: Sequence[str]) -> dict[str, str]:
    """``NAME: VALUE`` words."""
    found: dict[str, str] = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon or not name.strip():
            raise FlagError("--header", "NAME: VALUE", f"'{word}'")
        found[name.strip().lower()] = value.strip()
    return found


def _kinds(flags: Flags, file: WorkloadFile | None) -> list[Kind]:
    given = dict(flags.kind)
    if file is not None:
        if given:
            flag = f"--{next(iter(given)).replace('_', '-')}"
            raise FlagError(flag, "it in the file, for each kind, since --mix is given", "both")
        return list(file.kinds)
    if "model" not in given:
        raise FlagError("--model", "the name of a model, or a file of kinds with --mix", "neither")
    if "inputs" in given:
        given["inputs"] = str(Path(given["inputs"]).absolute())
    return [_checked(Kind, given)]


def _load(flags: Flags, file: WorkloadFile | None) -> tuple[float | None, str, int | None]:
    """Rate, trace and requests in flight: those of the flags, and if there is none of them, those of the file."""
    rate, in_flight = flags.rate, flags.concurrency
    trace = str(flags.trace.absolute()) if flags.trace is not None else ""
    if file is not None and rate is None and in_flight is None and not trace:
        return file.rate, file.trace or "", file.concurrency
    return rate, trace, in_flight


def _first(flag: Any, file: WorkloadFile | None, key: str) -> Any:
    return flag if flag is not None or file is None else getattr(file, key)


def _checked(kind: type[S], given: dict[str, Any]) -> S:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problem = problems_of(error, kind)[0]
        key = str(problem.path[0]) if problem.path else ""
        flag = _FLAGS.get(key, f"--{key.replace('_', '-')}")
        raise FlagError(flag, problem.expected, problem.given) from None


def _check_kinds(workload: Workload) -> None:
    for number, kind in enumerate(workload.kinds):
        where = f"kind '{kind.label}'" if len(workload.kinds) > 1 else f"kinds[{number}]"
        if kind.sequence and (workload.protocol == "openai" or (workload.protocol == "http" and kind.stream)):
            given = f"--protocol {workload.protocol}{' with a stream' if kind.stream else ''}"
            raise ConfigError(where, "sequence", "requests of --protocol http or grpc without events", given)
        if kind.sequence and kind.stream:
            raise ConfigError(where, "sequence", "unary requests: a stream has a call of its own", "stream")
