"""A server without OpenTelemetry's packages, or with packages that it does not know, says so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from isochrone.observe.tracing import otlp
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.worker.tracing.worker_tracing import WorkerTracing


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert otlp.missing_package(ExportSettings()) == ""
    assert otlp.missing_package(ExportSettings(protocol="grpc")) == ""
    monkeypatch.setattr(otlp, "find_spec", lambda name: None)
    tracing = WorkerTracing({"trace_mode": ["opentelemetry"]}, list)
    assert tracing.problem.endswith("pip install isochrone[tracing]")
    assert WorkerTracing({}, list).problem == ""


def test_an_exporter_of_an_unknown_form_is_an_error() -> None:
    """And not a silence in which every trace is lost."""

    class Elsewhere:
        def export(self, spans: object) -> None: ...

    module = SimpleNamespace(__name__="other.exporter", encode_spans=list, OTLPSpanExporter=Elsewhere)
    with pytest.raises(otlp.ExportFailed, match=r"other\.exporter of this release"):
        otlp._takes_encoded(module, lambda spans: spans)
