"""Answers of many workers as one: counts add up, the latest stays the latest, and both forms agree."""

from __future__ import annotations

import copy
from typing import Any

from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from isochrone.protocol.merging import merge_indexes, merge_messages, merge_statistics

amounts = st.integers(0, 10**12)


@st.composite
def statistics(draw: st.DrawFn) -> service_pb2.ModelStatisticsResponse:
    """One worker's: some models, some batch sizes, some streamed answers."""
    message = service_pb2.ModelStatisticsResponse()
    for name in draw(st.lists(st.sampled_from("abc"), unique=True)):
        model = message.model_stats.add(name=name, version="1")
        model.inference_count, model.execution_count = draw(amounts), draw(amounts)
        model.last_inference = draw(amounts)
        for field in ("success", "fail", "queue", "compute_infer"):
            duration = getattr(model.inference_stats, field)
            duration.count, duration.ns = draw(amounts), draw(amounts)
        for size in draw(st.lists(st.sampled_from((1, 2, 8)), unique=True)):
            batch = model.batch_stats.add(batch_size=size)
            batch.compute_infer.count, batch.compute_infer.ns = draw(amounts), draw(amounts)
        for key in draw(st.lists(st.sampled_from("01"), unique=True)):
            model.response_stats[key].success.count = draw(amounts)
    return message


def as_json(message: Any) -> dict[str, Any]:
    """As the REST form has it: numbers as numbers, rows in the order of their keys."""
    decoded = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return {"model_stats": [numbers(model) for model in decoded.get("model_stats", [])]}


def numbers(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: numbers(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return sorted((numbers(one) for one in value), key=lambda row: row["batch_size"])
    return int(value) if name not in ("name", "version") else value


@given(st.lists(statistics(), min_size=1, max_size=4))
def test_statistics_are_the_sum(parts: list[service_pb2.ModelStatisticsResponse]) -> None:
    before = [copy.deepcopy(part) for part in parts]
    merged = merge_messages([copy.deepcopy(part) for part in parts], ("name", "version"))
    for model in merged.model_stats:
        mine = [each for part in before for each in part.model_stats if each.name == model.name]
        assert model.inference_count == sum(each.inference_count for each in mine)
        assert model.last_inference == max(each.last_inference for each in mine)
        assert model.inference_stats.queue.ns == sum(each.inference_stats.queue.ns for each in mine)
        rows = {row.batch_size: row.compute_infer.count for row in model.batch_stats}
        for size, count in rows.items():
            assert count == sum(
                row.compute_infer.count for each in mine for row in each.batch_stats if row.batch_size == size
            )
        for key, answers in model.response_stats.items():
            found = [each.response_stats[key].success.count for each in mine if key in each.response_stats]
            assert answers.success.count == sum(found)
    names = [model.name for model in merged.model_stats]
    assert names == sorted({model.name for part in before for model in part.model_stats})


@given(st.lists(statistics(), min_size=1, max_size=4))
def test_both_forms_agree(parts: list[service_pb2.ModelStatisticsResponse]) -> None:
    rest = merge_statistics([as_json(part) for part in parts])
    grpc = as_json(merge_messages([copy.deepcopy(part) for part in parts], ("name", "version")))
    assert numbers(rest["model_stats"][0]) == grpc["model_stats"][0] if rest["model_stats"] else grpc == rest
    for mine, theirs in zip(rest["model_stats"], grpc["model_stats"], strict=True):
        assert numbers(mine) == theirs


@given(st.lists(statistics(), min_size=1, max_size=3))
def test_what_came_is_not_changed(parts: list[service_pb2.ModelStatisticsResponse]) -> None:
    """Answers may be given per worker too."""
    values = [as_json(part) for part in parts]
    kept = copy.deepcopy(values)
    merge_statistics(values)
    assert values == kept


def row(name: str, state: str, digest: str = "", version: str = "1") -> dict[str, Any]:
    return {"name": name, "version": version, "state": state, **({"digest": digest} if digest else {})}


class TestIndexes:
    def test_ready_anywhere_is_ready(self) -> None:
        loading, ready = [row("m", "LOADING")], [row("m", "READY")]
        assert merge_indexes([loading, ready]) == merge_indexes([ready, loading]) == ready

    def test_versions_are_told_apart(self) -> None:
        merged = merge_indexes([[row("m", "READY")], [row("m", "READY", version="2")]])
        assert [one["version"] for one in merged] == ["1", "2"]

    def test_digests_that_differ(self) -> None:
        one, other = [row("m", "READY", "x")], [row("m", "READY", "y")]
        assert merge_indexes([one, one])[0]["digest"] == "x"
        assert merge_indexes([one, other])[0]["digest"] == merge_indexes([other, one])[0]["digest"] == "differs"

    def test_a_digest_counts_only_where_it_is_served(self) -> None:
        """A worker that has not loaded the new files yet says nothing about those that serve them."""
        merged = merge_indexes([[row("m", "READY", "x")], [row("m", "UNAVAILABLE")]])
        assert merged == [row("m", "READY", "x")]

    def test_messages(self) -> None:
        made = []
        for state in ("UNAVAILABLE", "READY", "LOADING"):
            message = service_pb2.RepositoryIndexResponse()
            message.models.add(name="m", version="1", state=state)
            made.append(message)
        merged = merge_messages(made, ("name", "version"))
        assert [(one.name, one.state) for one in merged.models] == [("m", "READY")]
