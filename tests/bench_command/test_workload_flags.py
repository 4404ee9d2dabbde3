"""Flags and files become one workload; errors name the flag, or file, line and key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isochrone.bench.sending.preparing import address_of
from isochrone.bench.workload.spec import Workload
from isochrone.cli.bench.workload_flags import Flags, headers_of, target_of, workload_of
from isochrone.errors import ConfigError, InvalidArgument
from isochrone.secure.api_token import VARIABLE

FLAGS = Flags(
    url="localhost:8000",
    protocol="",
    mix=None,
    kind={"model": "detector"},
    rate=100.0,
    arrivals="",
    on_seconds=None,
    off_seconds=None,
    trace=None,
    concurrency=None,
    seconds=None,
    warmup_seconds=None,
    timeout_seconds=30.0,
    max_in_flight=1024,
    connections=0,
    headers=(),
    seed=None,
    ca=None,
    cert=None,
    key=None,
)


def test_flags_alone() -> None:
    workload = workload_of(replace(FLAGS, kind={"model": "detector", "deadline_ms": 20.0}, seconds=3.0))
    assert workload.is_open_loop
    assert (workload.rate, workload.arrivals, workload.seconds) == (100.0, "poisson", 3.0)
    assert workload.kinds[0].deadline_ns == 20_000_000
    assert Workload.model_validate_json(workload.model_dump_json()) == workload, "as a process gets it"


def test_a_token_that_no_header_can_carry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "two words")
    with pytest.raises(InvalidArgument, match=f"{VARIABLE}: expected ASCII"):
        workload_of(FLAGS)


@pytest.mark.parametrize(
    ("url", "protocol", "target"),
    [
        ("localhost:8000", "", ("http://localhost:8000", "http")),
        ("localhost:8001", "grpc", ("grpc://localhost:8001", "grpc")),
        ("grpcs://h:1", "", ("grpcs://h:1", "grpc")),
        ("https://h:1", "grpc", ("grpcs://h:1", "grpc")),
        ("http://h:1/v1", "openai", ("http://h:1/v1", "openai")),
    ],
)
def test_the_url_and_the_protocol(url: str, protocol: str, target: tuple[str, str]) -> None:
    assert target_of(url, protocol) == target


def test_openais_base_url_has_a_path() -> None:
    workload = workload_of(replace(FLAGS, url="http://h:1/v1", protocol="openai"))
    assert str(address_of(workload)) == "http://h:1"
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        address_of(workload_of(replace(FLAGS, url="http://h:1/v1")))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"kind": {}}, "--model: expected the name of a model, or a file of kinds with --mix, given neither"),
        ({"rate": None}, "expected --rate NUMBER or --trace FILE .* given none of them"),
        ({"concurrency": 3}, "given --rate and --concurrency"),
        ({"arrivals": "sometimes"}, "--arrivals: expected one of constant, poisson, bursts, trace, given 'sometimes'"),
        ({"arrivals": "trace"}, "expected --trace FILE with it"),
        ({"rate": None, "concurrency": 3, "arrivals": "bursts"}, "a closed loop has no arrivals"),
        ({"protocol": "smtp"}, "--protocol: expected one of http, grpc, openai, given 'smtp'"),
        ({"url": "grpc://h:1", "protocol": "http"}, "--protocol: expected grpc with a grpc:// URL"),
        ({"headers": ["nonsense"]}, "--header: expected NAME: VALUE, given 'nonsense'"),
        ({"kind": {"model": "m", "sequence": 3, "stream": True}}, "sequence: expected"),
        ({"rate": float("nan")}, "--rate: expected"),
        ({"seconds": float("inf")}, "--seconds: expected"),
    ],
)
def test_wrong_flags(changes: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        workload_of(replace(FLAGS, **changes))  # type: ignore[arg-type]


def test_headers() -> None:
    assert headers_of(["Authorization: Bearer a:b", "x:1"]) == {"authorization": "Bearer a:b", "x": "1"}


MIX = """
kinds:
  - model: detector
    weight: 9
    deadline_ms: 20
  - model: tracker
    sequence: 30
    inputs: frames.json
rate: 500
arrivals: bursts
seconds: 4
"""


def test_a_file_says_what_flags_leave_out(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(MIX)
    flags = replace(FLAGS, kind={}, rate=None, mix=path)
    workload = workload_of(flags)
    assert (workload.rate, workload.arrivals, workload.seconds) == (500, "bursts", 4)
    assert [kind.model for kind in workload.kinds] == ["detector", "tracker"]
    assert workload.kinds[1].inputs == str(tmp_path / "frames.json"), "beside the file"
    changed = workload_of(replace(flags, concurrency=8, seconds=1.0))
    assert (changed.in_flight, changed.rate, changed.seconds) == (8, None, 1)
    with pytest.raises(ConfigError, match="--model: expected it in the file, for each kind, since --mix is given"):
        workload_of(replace(flags, kind={"model": "m"}))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kinds: []\n", "mix.yaml:1: kinds: expected"),
        ("rate: 5\n", "kinds: expected a value, given nothing"),
        ("kinds:\n  - modle: m\n", r"mix.yaml:2: kinds\[0\].*modle"),
        ("kinds:\n  - model: m\n    deadline_ms: -3\n", r"mix.yaml:3: kinds\[0\].deadline_ms: expected .* above 0"),
        ("kinds:\n  - model: m\nrates: 5\n", "mix.yaml:3: rates: expected a known key"),
        ("kinds: [\n", "not valid YAML"),
        ("", "expected a YAML or JSON file with the key kinds"),
    ],
)
def test_wrong_files(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=error):
        workload_of(replace(FLAGS, kind={}, mix=path))


def test_a_trace_gives_the_length_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("0\n0.5\n2.5\n")
    workload = workload_of(replace(FLAGS, rate=None, trace=path))
    assert (workload.warmup_seconds, workload.arrivals) == (0, "trace")
    instants = [instant for block in workload.instants(0, 1) for instant in block.tolist()]
    assert instants == [0, 500_000_000, 2_500_000_000]
    assert workload.seconds > 2.5


def test_parts_of_processes_add_up() -> None:
    workload = workload_of(replace(FLAGS, rate=None, concurrency=7))
    assert [workload.part_in_flight(index, 3) for index in range(3)] == [3, 2, 2]
