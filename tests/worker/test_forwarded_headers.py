"""Every request that stands in for a caller's passes on what the caller said beside its tensors."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from divided_bench import DIVISIONS, Version
from queued_requests import RecordedRequest, plan_of, rows_of

import isochrone.worker
from isochrone.protocol.messages import InferRequest
from isochrone.worker.divided.division_request import DivisionRequest
from isochrone.worker.ensembles.run import StepRequest
from isochrone.worker.request_wrappers import LoggedRequest, RequestWrapper

FIELDS = ("stages", "division", "trace_context")
#: Not in place of a caller's request: a model's calls, a probe; and a row, which a model's instance receives.
OF_THEIR_OWN = {"CalledRequest", "CalledStream", "ChildRequest", "ProbeRequest", "RowRequest"}


def all_below(kind: type[InferRequest]) -> Iterator[type[InferRequest]]:
    for each in kind.__subclasses__():
        yield each
        yield from all_below(each)


def in_the_worker() -> dict[str, type[InferRequest]]:
    for module in pkgutil.walk_packages(isochrone.worker.__path__, "isochrone.worker."):
        try:
            importlib.import_module(module.name)
        except ImportError:  # a backend whose package is not installed
            continue
    return {each.__name__: each for each in all_below(InferRequest) if each.__module__.startswith("isochrone.worker.")}


def test_every_request_that_stands_in_for_another_has_all_fields() -> None:
    found = in_the_worker()
    assert found.keys() > {*OF_THEIR_OWN, "DivisionRequest", "StepRequest", "CachingRequest"}
    missing = {
        (name, field)
        for name, kind in found.items()
        if name not in OF_THEIR_OWN
        for field in FIELDS
        if getattr(kind, field) is getattr(InferRequest, field)
    }
    assert not missing


class Caller(RecordedRequest):
    @property
    def stages(self) -> dict[str, str]:
        return {"m": "3"}

    @property
    def division(self) -> str:
        return "prefer core"

    @property
    def trace_context(self) -> dict[str, str]:
        return {"traceparent": "00-1-2-01"}


class Run:
    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.trace_context = request.trace_context


def of_a_division(caller: InferRequest) -> InferRequest:
    return DivisionRequest(None, caller, DIVISIONS[0], Version("m.core"), 0)  # type: ignore[arg-type]


def of_a_step(caller: InferRequest) -> InferRequest:
    return StepRequest(Run(caller), 0, plan_of(), {}, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("stand_in", [of_a_division, of_a_step, RequestWrapper, LoggedRequest])
def test_what_the_caller_said_arrives(stand_in: Any) -> None:
    caller = Caller(plan_of(), {"x": rows_of(1)})
    for request in (stand_in(caller), of_a_division(stand_in(caller)), stand_in(of_a_division(caller))):
        assert [getattr(request, field) for field in FIELDS] == [getattr(caller, field) for field in FIELDS]
