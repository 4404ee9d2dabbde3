"""A server without OpenTelemetry's packages says what to install."""

from __future__ import annotations

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
