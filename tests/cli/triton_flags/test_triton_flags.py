"""Triton's command line: every form of a flag, every outcome, and the effect of each implemented flag."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest

from isochrone.cli.triton import page
from isochrone.cli.triton.command_line import BadFlag, read
from isochrone.cli.triton.flags import FLAGS, Flag, Outcome, Value
from isochrone.cli.triton.options import with_triton_flags
from isochrone.protocol.access.restrictions import RequiredHeader
from isochrone.worker.server.settings import ServeSettings

DOCS = Path(__file__).resolve().parents[3] / "docs"

#: A value of each kind that a flag takes.
SAMPLES = {Value.BOOLEAN: "true", Value.INTEGER: "7", Value.NUMBER: "2.5", Value.TEXT: "local,size=1"}


def settings(*words: str) -> ServeSettings:
    rest, given = read(words)
    assert rest == []
    return with_triton_flags(ServeSettings((Path("models"),)), given)


def warnings(*words: str) -> list[str]:
    _, given = read(words)
    with_triton_flags(ServeSettings((Path("models"),)), given)
    return given.warnings


def test_the_page_shows_the_table() -> None:
    written = (DOCS / "triton-flags.md").read_text()
    assert written == page.render(), "run python -m isochrone.cli.triton.page > docs/triton-flags.md"


def test_there_are_87_flags_of_distinct_names() -> None:
    assert len({flag.name for flag in FLAGS}) == len(FLAGS) == 87


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.value is not Value.NONE], ids=lambda flag: flag.name)
def test_a_value_may_follow_behind_a_sign_or_a_space(flag: Flag) -> None:
    value = SAMPLES[flag.value]
    forms = [[f"--{flag.name}={value}"], [f"--{flag.name}", value]]
    if flag.outcome is Outcome.REFUSED:
        for form in forms:
            with pytest.raises(BadFlag, match=f"--{flag.name}={value} is refused: "):
                read(form)
        return
    (first, given), (second, same) = (read(form) for form in forms)
    assert first == second
    assert given == same
    if flag.outcome is Outcome.NO_EFFECT:
        assert given.warnings == [f"--{flag.name} has no effect: {flag.text}"]
    else:
        assert given.warnings == []
        assert first or given.values == {flag.name: [value]}


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.silent], ids=lambda flag: flag.name)
def test_a_value_that_asks_for_what_happens_anyway_is_accepted_silently(flag: Flag) -> None:
    for value in flag.silent:
        rest, given = read([f"--{flag.name}={value}"])
        assert (rest, given.values, given.warnings) == ([], {}, [])


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (["--allow-grpc=true"], ["--allow-grpc"]),
        (["--allow-grpc=1"], ["--allow-grpc"]),
        (["--allow-grpc=ON"], ["--allow-grpc"]),
        (["--allow-grpc", "True"], ["--allow-grpc"]),
        (["--allow-grpc=0"], ["--no-allow-grpc"]),
        (["--allow-grpc", "off", "models"], ["--no-allow-grpc", "models"]),
        (["--allow-grpc", "models"], ["--allow-grpc", "models"]),
        (["--allow-grpc"], ["--allow-grpc"]),
        (["--no-allow-grpc"], ["--no-allow-grpc"]),
        (["--model-store", "models"], ["--model-store=models"]),
        (["--load-model=*"], ["--load-model=*"]),
        (["models", "--", "--http-thread-count=8"], ["models", "--", "--http-thread-count=8"]),
    ],
)
def test_own_options_are_passed_on(words: list[str], rest: list[str]) -> None:
    assert read(words)[0] == rest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--http-thread-count=many"], "--http-thread-count: expected an integer, given 'many'"),
        (["--metrics-interval-ms=soon"], "--metrics-interval-ms: expected a number, given 'soon'"),
        (["--allow-http=yes"], "--allow-http: expected true or false, given 'yes'"),
        (["--log-file"], "--log-file: expected a value, given nothing"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag(words: list[str], message: str) -> None:
    with pytest.raises(BadFlag, match=re.escape(message)):
        read(words)


def test_one_warning_however_often_a_flag_is_given() -> None:
    assert len(warnings("--http-thread-count=8", "--http-thread-count=9")) == 1


# The meaning of the implemented ones.


def test_addresses_are_of_one_port_each_and_metrics_follow_http() -> None:
    assert settings().hosts == {}
    assert settings("--http-address=1.1.1.1").hosts == {"http": "1.1.1.1", "metrics": "1.1.1.1"}
    assert settings("--grpc-address=1.1.1.1").hosts == {"grpc": "1.1.1.1"}
    given = settings("--http-address=1.1.1.1", "--metrics-address=2.2.2.2")
    assert given.hosts == {"http": "1.1.1.1", "metrics": "2.2.2.2"}


def test_ports_are_shared_one_by_one() -> None:
    assert settings("--reuse-http-port=true").shared_ports == {"http"}
    assert settings("--reuse-grpc-port=true").shared_ports == {"grpc"}
    all_three = ServeSettings((Path("models"),), shared_ports=frozenset(("http", "grpc", "metrics")))
    assert with_triton_flags(all_three, read([])[1]) == all_three


def test_names_and_caches() -> None:
    assert settings("--id=joe").server_name == "joe"
    assert settings("--response-cache-byte-size=1000").cache_bytes == 1000
    assert settings("--allow-cpu-metrics=false").cpu_metrics is False
    assert settings("--allow-gpu-metrics=false").gpu_metrics is False
    assert settings("--metrics-interval-ms=250").metrics_seconds == 0.25
    assert (settings().gpu_metrics, settings().metrics_seconds) == (True, 1.0)


@pytest.mark.parametrize("given", ["0", "nan", "-5", "1e12"])
def test_an_interval_that_cannot_be(given: str) -> None:
    with pytest.raises(BadFlag, match="--metrics-interval-ms: expected milliseconds from 1 to 1e9, given"):
        settings(f"--metrics-interval-ms={given}")


def test_restricted_apis() -> None:
    rules = settings(
        "--http-restricted-api=model-config,statistics:k1=v1",
        "--http-restricted-api=health:k2=a=b",
        "--grpc-restricted-protocol=logging:k3=v3",
    ).rules
    first = RequiredHeader("k1", "v1")
    assert rules.http_required == {
        "model-config": first,
        "statistics": first,
        "health": RequiredHeader("k2", "a=b"),
    }
    assert rules.grpc_required == {"logging": RequiredHeader("k3", "v3")}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("health", "expected API,API:KEY=VALUE"),
        ("health:key", "expected API,API:KEY=VALUE"),
        (":key=value", "expected API,API:KEY=VALUE"),
        ("inferring:key=value", "expected APIs out of health, metadata, inference"),
        ("health,health:key=value", "'health' is restricted twice"),
    ],
)
def test_restrictions_that_make_no_sense(value: str, message: str) -> None:
    with pytest.raises(BadFlag, match=message):
        settings(f"--http-restricted-api={value}")


def test_header_patterns() -> None:
    rules = settings("--http-header-forward-pattern=my_.*").rules
    assert rules.http_forwarded is not None
    assert rules.http_forwarded.search("My_A")
    assert rules.grpc_forwarded is None
    with pytest.raises(BadFlag, match="--grpc-header-forward-pattern: expected a regular expression"):
        settings("--grpc-header-forward-pattern=(")


def test_trace_settings_by_both_kinds_of_flags() -> None:
    new = settings(
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=level=TENSORS",
        "--trace-config=rate=7",
        "--trace-config=count=3",
        "--trace-config=mode=triton",
        "--trace-config=triton,file=/tmp/t.json",
        "--trace-config=triton,log-frequency=5",
    )
    assert new.trace == {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": ["7"],
        "trace_count": ["3"],
        "trace_mode": ["triton"],
        "trace_file": ["/tmp/t.json"],
        "log_frequency": ["5"],
    }
    old = settings("--trace-level=TIMESTAMPS", "--trace-rate=7", "--trace-file=t", "--trace-log-frequency=2")
    assert old.trace == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": ["7"],
        "trace_file": ["t"],
        "log_frequency": ["2"],
    }
    assert warnings("--trace-level=TIMESTAMPS")[0].startswith(
        "trace_level is kept and shown, but no traces are written"
    )
    assert warnings("--trace-level=OFF") == []
    assert len(warnings("--trace-config=opentelemetry,url=localhost:4318/v1/traces")) == 1
    exported = (
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=opentelemetry,url=localhost:4318/v1/traces",
        "--trace-config=opentelemetry,resource=service.name=a",
        "--trace-config=opentelemetry,resource=zone=b=c",
    )
    assert warnings(*exported) == []
    assert settings(*exported).trace == {
        "trace_mode": ["opentelemetry"],
        "trace_level": ["TIMESTAMPS"],
        "url": ["localhost:4318/v1/traces"],
        "resource": ["service.name=a", "zone=b=c"],
    }
    for wrong in ("level", "speed=1", "triton,speed=1", "opentelemetry,speed=1"):
        with pytest.raises(BadFlag, match="--trace-config: expected"):
            settings(f"--trace-config={wrong}")


def test_model_loading() -> None:
    loading = settings(
        "--model-config-name=h100",
        "--model-load-thread-count=3",
        "--model-load-retry-count=2",
        "--backend-config=default-max-batch-size=5",
        "--backend-config=onnxruntime,default-max-batch-size=9",
        "--backend-config=onnxruntime,intra_op_thread_count=2",
    ).loading
    assert (loading.config_name, loading.threads, loading.retries) == ("h100", 3, 2)
    assert loading.assumed_batch_sizes == {"": 5, "onnx": 9}
    assert loading.parameters == {"onnx": {"intra_op_thread_count": "2"}}
    for wrong in (
        "--model-config-name=a b",
        "--model-load-thread-count=0",
        "--backend-config=python",
        "--backend-config=,a=b",
    ):
        with pytest.raises(BadFlag, match=wrong.partition("=")[0]):
            settings(wrong)


def test_backend_settings_without_a_counterpart_get_a_warning() -> None:
    assert warnings("--backend-config=python,shm-default-byte-size=1048576") == [
        "--backend-config python,shm-default-byte-size=1048576 has no effect: the setting has no counterpart here"
    ]
    assert warnings("--backend-config=tensorflow,version=2") == [
        "--backend-config tensorflow,version=2 has no effect: the backends are onnxruntime, pytorch, python,"
        " openvino, fil, identity, generation"
    ]


def test_a_limit_of_a_gpu() -> None:
    loading = settings("--model-load-gpu-limit=0:0.9", "--model-load-gpu-limit=2:0").loading
    assert loading.gpu_limits == {0: 0.9, 2: 0.0}
    for wrong in ("0.9", "0:1.5", "0:-1", "x:0.5", "0:", "0:nan"):
        with pytest.raises(BadFlag, match="--model-load-gpu-limit"):
            settings(f"--model-load-gpu-limit={wrong}")


def test_host_policies_are_cpus() -> None:
    assert settings("--host-policy=cpu,cpu-cores=0").loading.host_policies == {"cpu": (0,)}
    for wrong in ("cpu", "cpu,gpu=1", "cpu,cpu-cores=a", "cpu,cpu-cores=99999", "cpu,numa-node=999"):
        with pytest.raises(BadFlag, match="--host-policy"):
            settings(f"--host-policy={wrong}")


def test_rate_limits_count_only_where_they_are_switched_on() -> None:
    assert settings().loading.rate_limits is None
    assert settings("--rate-limit=execution_count").loading.rate_limits == {}
    given = settings("--rate-limit=execution_count", "--rate-limit-resource=R1:4", "--rate-limit-resource=r2:3:0")
    assert given.loading.rate_limits == {"r1": 4, "r2": 3}
    assert settings("--rate-limit=off").loading.rate_limits is None
    assert warnings("--rate-limit-resource=R1:4") == [
        "--rate-limit-resource has no effect without --rate-limit=execution_count"
    ]
    for wrong in ("--rate-limit=sometimes", "--rate-limit-resource=R1", "--rate-limit-resource=R1:many"):
        with pytest.raises(BadFlag, match=wrong.partition("=")[0]):
            settings(wrong)


def test_grpc_tls_needs_its_files(tmp_path: Path) -> None:
    assert settings("--grpc-server-cert=x", "--grpc-server-key=y").grpc_tls is None
    with pytest.raises(BadFlag, match="--grpc-server-cert"):
        settings("--grpc-use-ssl=true")
    with pytest.raises(BadFlag, match="--grpc-root-cert"):
        settings("--grpc-use-ssl-mutual=1", "--grpc-server-cert=x", "--grpc-server-key=y")


def test_grpc_tls_covers_the_grpc_port_alone(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    given = settings("--grpc-use-ssl=true", f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}")
    assert isinstance(given.grpc_tls, ssl.SSLContext)
    assert given.tls is None


def self_signed(directory: Path) -> tuple[Path, Path]:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    start = datetime.now(UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = built.not_valid_before(start).not_valid_after(start + timedelta(days=1)).sign(key, hashes.SHA256())
    paths = directory / "certificate.pem", directory / "key.pem"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
