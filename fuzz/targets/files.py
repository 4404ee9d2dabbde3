"""Files of users and their tools: model configurations, fleet.yaml, rules, scenarios, manifests, certificates."""

from __future__ import annotations

import json
import ssl
import warnings
from pathlib import Path
from typing import Any

from cryptography import x509
from google.protobuf import text_format

from fuzz.target import Target, outcome
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.gateway.rules.file import parse_rules
from isochrone.models.configuration.json_config import parse_json
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.models.sources.checksums import parse_checksums
from isochrone.models.sources.manifest import parse_manifest
from isochrone.settings.documents import parse_document
from isochrone.simulate.scenario import file as scenario_file
from isochrone.wire.tls.certificates import first_expiry

ROOT = Path(__file__).parents[2]
_NOWHERE = Path("/nonexistent")


def configuration(data: bytes) -> None:
    ok, found = outcome(parse_text, data, "config.pbtxt")
    if ok:
        config, states_size = found
        again, states_again = parse_text(text_format.MessageToString(config), "again")
        assert again.SerializeToString(deterministic=True) == config.SerializeToString(deterministic=True)
        assert states_size or not config.max_batch_size
        assert states_again == bool(config.max_batch_size)


def configuration_json(data: bytes) -> None:
    ok, found = outcome(parse_json, data.decode("utf-8", "surrogateescape"), "config.json")
    if ok:
        found[0].SerializeToString()


def _text(data: bytes) -> str:
    """Readers of files reject what is not UTF-8 before it is parsed."""
    return data.decode("utf-8", "replace")


def fleet(data: bytes) -> None:
    outcome(parse_fleet, _text(data), "fleet.yaml", _NOWHERE)


def rules(data: bytes) -> None:
    outcome(parse_rules, _text(data), "rules.yaml")
    as_json = outcome(parse_document, _text(data), "rules.json")
    if as_json[0]:
        outcome(parse_rules, _text(data), "rules.json")


def scenario(data: bytes) -> None:
    outcome(scenario_file.parse, _text(data), "scenario.yaml")


def sources(data: bytes) -> None:
    """A repository's manifest and a folder's checksums; no path of them leaves its folder."""
    ok, files = outcome(parse_manifest, data, "manifest")
    if ok:
        for file in files:
            parts = file.path.split("/")
            assert not {"", ".", ".."} & set(parts), "a path out of its folder"
            assert "\0" not in file.path
            assert file.size >= 0
    ok, sums = outcome(parse_checksums, data, "sums")
    assert not ok or all(len(digest) == 64 for digest in sums.values())


def certificate(data: bytes) -> None:
    found = first_expiry(ssl.DER_cert_to_PEM_cert(data))
    outcome(first_expiry, data.decode("latin-1"))
    if found is None:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = x509.load_der_x509_certificate(data)
        expected = parsed.not_valid_after_utc.timestamp()
    except (ValueError, OverflowError, x509.InvalidVersion):
        return
    assert found == expected, "cryptography reads another time"


def _der() -> bytes:
    pem = (ROOT / "tests" / "wire" / "certificates" / "localhost.pem").read_text()
    return ssl.PEM_cert_to_DER_cert(pem)


_PBTXT = b"""name: "detector"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
output { name: "y" data_type: TYPE_INT64 dims: 1 }
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
parameters { key: "a" value { string_value: "b" } }
version_policy { specific { versions: [ 1, 2 ] } }
"""
_JSON: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 4,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["3", -1]}],
    "parameters": {"k": {"string_value": "v"}},
    "dynamicBatching": {"preferredBatchSize": [2]},
}
_MANIFEST = {"format": 1, "files": [{"path": "m/1/model.onnx", "size": 3, "sha256": "ab" * 32}]}
_RULES = (ROOT / "examples" / "traffic.yaml").read_bytes()
_FLEETS = tuple((ROOT / "deploy" / "fleets" / f"{name}.yaml").read_bytes() for name in ("small", "tiers"))
_SCENARIOS = tuple(
    (ROOT / "examples" / "scenarios" / f"{name}.yaml").read_bytes() for name in ("one_slow", "failures", "azure_like")
)

TARGETS = (
    Target(
        "config_pbtxt",
        ("isochrone.models.configuration.pbtxt", "isochrone.models.configuration.pbtxt_places"),
        "what is written again reads the same; only our errors",
        configuration,
        (_PBTXT, b'name: "x" ensemble_scheduling { step [ { model_name: "a" input_map { key: "x" value: "y" } } ] }'),
    ),
    Target(
        "config_json",
        ("isochrone.models.configuration.json_config",),
        "only our errors; what is accepted can be encoded",
        configuration_json,
        (json.dumps(_JSON).encode(), b'{"name":"\\u00e9","input":[{"dims":[9223372036854775807]}]}'),
    ),
    Target(
        "fleet_yaml",
        ("isochrone.control.fleet.reading.parsing", "isochrone.settings.documents"),
        "only our errors",
        fleet,
        (*_FLEETS, b"name: &a f\npools: {p: *a}\n", b"name: f\nmodels: {m: {version: 1}, m: {version: 2}}\n"),
    ),
    Target(
        "rules_yaml",
        ("isochrone.gateway.rules.file", "isochrone.settings.documents"),
        "only our errors",
        rules,
        (_RULES[:2000], b'{"models":{"m":{"policy":"prequal"}}}', b"models: {m: {deadline_ms: 5}}\n"),
    ),
    Target(
        "scenario_yaml",
        ("isochrone.simulate.scenario.file",),
        "only our errors",
        scenario,
        (*_SCENARIOS, b"workload: {kind: minutes, counts: [60, 120, 0], fill: uniform}\nseconds: 3\n"),
    ),
    Target(
        "model_sources",
        ("isochrone.models.sources.manifest", "isochrone.models.sources.checksums"),
        "no path leaves its folder; only our errors",
        sources,
        (json.dumps(_MANIFEST).encode(), b"ab" * 32 + b"  ./model.onnx\n# comment\n" + b"CD" * 32 + b" *x\n"),
    ),
    Target(
        "certificate_expiry",
        ("isochrone.wire.tls.certificates",),
        "the time that cryptography reads, or none; no exception",
        certificate,
        (_der(),),
    ),
)
