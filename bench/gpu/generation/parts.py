"""The parts of the generation bench that put load on the worker: throughput, prefill, deadlines."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.gpu.generation.load import LoadFailed
from bench.gpu.generation.service import LOAD_SECONDS, Bench, LoadRejected
from bench.gpu.generation.stream_figures import (
    Streams,
    first_milliseconds,
    grace_seconds,
    milliseconds,
    overload_figures,
    refusals_problem,
)
from bench.gpu.generation.workload import Flow, Lengths

THROUGHPUT, PREFILL, DEADLINES = "throughput", "prefill", "deadlines"
#: Long prompts take this share of the device's time, if computed one by one.
_LONG_SHARE = 0.3


def attempt(bench: Bench, about: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Adds a figure, or why there is none."""
    try:
        found = measure()
    except (LoadFailed, LoadRejected) as error:
        found = {"problem": str(error)}
    figure = bench.results.add(**about, **found)
    said = " ".join(f"{key}={value:.4g}" for key, value in found.items() if isinstance(value, float))
    bench.given.say(f"{' '.join(map(str, about.values()))}: {said} {found.get('problem', '')}")
    return figure


def throughput(bench: Bench) -> None:
    """Tokens per second: continuous batching, static batches, one by one."""
    given, wanted = bench.given, bench.given.wanted

    def measure(model: str, streams: int) -> dict[str, Any]:
        seconds = given.warm + given.seconds
        found = bench.run(model, (bench.chat(streams),), seconds)
        return _closed_figure(bench, found, given.warm, seconds)

    def cell(batching: str, rows: int, counts: list[int], in_flight: Callable[[int], int]) -> None:
        names = [(count, f"{THROUGHPUT}/{batching}/{count}") for count in counts]
        names = [(count, name) for count, name in names if wanted(name)]
        every = [name for _, name in names]
        if not names or not bench.has_time(LOAD_SECONDS + given.warm + given.seconds, *every):
            return
        with bench.variant(f"{batching}-{rows}", {"batching": batching, "max_rows": rows}) as model:
            for number in range(given.rounds):
                for count, name in names:
                    if bench.has_time(given.warm + given.seconds, name):
                        streams = in_flight(count)
                        about = {"part": THROUGHPUT, "cell": name, "rows": count, "streams": streams, "round": number}
                        attempt(bench, about, partial(measure, model, streams))

    streams = given.streams
    _guard(bench, partial(cell, "continuous", bench.sizes.rows, streams, lambda count: count))
    # One waits while one runs; and a full batch waits while one runs: otherwise the next would start half empty.
    _guard(bench, partial(cell, "single", 1, [1], lambda count: 2))
    for size in [each for each in streams if 1 < each <= 64]:
        _guard(bench, partial(cell, "static", size, [size], lambda count: 2 * count))


def _closed_figure(bench: Bench, found: Streams, begin: float, end: float) -> dict[str, Any]:
    return {
        "tokens_per_second": found.tokens_per_second(begin, end),
        **first_milliseconds(found, begin, end),
        **milliseconds(found.gaps_ns(begin), "between"),
        "busiest_generator": bench.generators.busiest,
        "problem": found.problem(),
    }


def prefill(bench: Bench) -> None:
    """Streams that decode while long prompts arrive: whole, in chunks, in chunks that keep a deadline."""
    given, sizes = bench.given, bench.sizes
    seconds = given.warm + given.seconds
    long = Lengths(sizes.long_prompt, sizes.long_prompt)
    facts: dict[str, float] = {}

    def background(**parameters: Any) -> Flow:
        return Flow("background", Lengths(16, 64), Lengths(128, 256), sizes.background, 0.0, parameters)

    def arrivals(rate: float) -> Flow:
        return Flow("long", long, Lengths(8, 16), 0, rate)

    def measure(model: str, with_long: bool, between_ms: float) -> dict[str, Any]:
        streams = background(**({"inter_token_ms": between_ms} if between_ms else {}))
        flows = (streams, arrivals(facts["rate"])) if with_long else (streams,)
        found = bench.run(model, flows, seconds)
        decoding, prompts = found.of_flow(0), found.of_flow(1)
        return {
            "long_per_second": facts["rate"] if with_long else 0.0,
            "tokens_per_second": decoding.tokens_per_second(given.warm, seconds),
            **milliseconds(decoding.gaps_ns(given.warm), "between"),
            **first_milliseconds(decoding, given.warm, seconds),
            **first_milliseconds(prompts, 0.0, seconds, "long_first"),
            "between_deadline_ms": between_ms or None,
            "refused": int(found.refused.sum()),
            "problem": found.problem(),
        }

    def note_alone(figure: dict[str, Any]) -> None:
        if "between_p50_ms" not in figure:
            raise LoadFailed(f"no time between tokens without long prompts: {figure['problem'] or 'too few tokens'}")
        facts["alone_ms"] = figure["between_p50_ms"]

    def variant(name: str, parameters: dict[str, Any], with_long: bool, by_deadline: bool) -> None:
        cell = f"{PREFILL}/{name}"
        if not given.wanted(cell) or not bench.has_time(LOAD_SECONDS + seconds, cell):
            return
        with bench.variant(f"prefill-{name}", parameters) as model:
            if "rate" not in facts:
                alone = bench.run(model, (Flow("probe", long, Lengths(1, 1), 1),), min(3.0, given.seconds + 1))
                times = alone.first_token_ns()
                if not len(times):
                    raise LoadFailed(f"no long prompt was answered: {alone.problem()}")
                facts["rate"] = given.long_rate or _LONG_SHARE / (statistics.median(times) / 1e9)
            if by_deadline and "alone_ms" not in facts:
                # The cell that says what decoding takes alone was not chosen, or failed.
                note_alone(measure(model, False, 0.0))
            for number in range(given.rounds):
                about = {"part": PREFILL, "cell": cell, "round": number}
                # Four times of what decoding takes alone: prompts get the rest.
                between = 4 * facts["alone_ms"] if by_deadline else 0.0
                found = attempt(bench, about, partial(measure, model, with_long, between))
                if not with_long and not found["problem"]:
                    note_alone(found)

    whole = {"prefill_tokens": sizes.context, "chunked_prefill": "false"}
    _guard(bench, partial(variant, "alone", whole, False, False))
    _guard(bench, partial(variant, "whole", whole, True, False))
    for tokens in (512, 128):
        _guard(bench, partial(variant, f"chunks-{tokens}", {"prefill_tokens": tokens}, True, False))
    _guard(bench, partial(variant, "deadline", {"prefill_tokens": sizes.context}, True, True))


def deadlines(bench: Bench) -> None:
    """Open-loop arrivals from half to three times of capacity, with deadlines per token and without."""
    given, sizes = bench.given, bench.sizes
    names = [
        (factor, kept, f"{DEADLINES}/{kept}/{factor:g}") for factor in given.factors for kept in ("with", "without")
    ]
    names = [each for each in names if given.wanted(each[2])]
    every = [name for _, _, name in names]
    if not names or not bench.has_time(LOAD_SECONDS + 3 * given.seconds + given.warm, *every):
        return

    def grace_of(facts: dict[str, float]) -> float:
        return grace_seconds(given.grace, facts["first_ms"], facts["between_ms"], sizes.answers.most)

    def measure(model: str, factor: float, has_deadlines: bool, facts: dict[str, float]) -> dict[str, Any]:
        first, between = facts["first_ms"], facts["between_ms"]
        parameters = {"time_to_first_token_ms": first, "inter_token_ms": between} if has_deadlines else {}
        rate = factor * facts["capacity"]
        before = bench.server.metrics()
        grace = grace_of(facts)
        found = bench.run(model, (bench.chat(rate=rate, **parameters),), given.seconds, grace=grace)
        after = bench.server.metrics()
        counted = {
            f"server_{key}": after[key] - before[key]
            for key in ("late_tokens", "tokens", "preemptions", "steps", "refusals")
        }
        # Without deadlines the worker knows of no late token.
        late_share = counted["server_late_tokens"] / max(1.0, counted["server_tokens"]) if has_deadlines else None
        return {
            **overload_figures(found, first, between, given.seconds),
            **counted,
            "server_late_share": late_share,
            "grace_seconds": grace,
            "first_deadline_ms": first,
            "between_deadline_ms": between,
            "busiest_generator": bench.generators.busiest,
            "problem": found.problem() or refusals_problem(found, counted["server_refusals"]),
        }

    def variant() -> None:
        with bench.variant("deadlines", {"max_rows": sizes.rows}) as model:
            seconds = given.warm + given.seconds

            def closed_loop() -> Streams:
                return bench.run(model, (bench.chat(sizes.rows),), seconds)

            closed = closed_loop()
            tokens = closed.tokens_per_second(given.warm, seconds)
            mean = float(closed.wanted.mean())
            if not tokens:
                raise LoadFailed(f"no capacity: {closed.problem()}")
            between = given.between_ms or 2 * milliseconds(closed.gaps_ns(given.warm), "b")["b_p99_ms"]
            first = given.first_ms or 20 * between
            facts = {"capacity": tokens / mean, "tokens": tokens, "first_ms": first, "between_ms": between}
            bench.results.add(part=DEADLINES, cell=f"{DEADLINES}/capacity", **facts, problem=closed.problem())
            given.say(f"capacity: {facts}")
            for factor, kept, name in names:
                if bench.has_time(given.seconds + grace_of(facts), name):
                    about = {"part": DEADLINES, "cell": name, "factor": factor, "deadlines": kept}
                    attempt(bench, about, partial(measure, model, factor, kept == "with", facts))
            if bench.has_time(seconds):
                # How much the machine itself has changed meanwhile.
                after = closed_loop().tokens_per_second(given.warm, seconds)
                bench.results.add(part=DEADLINES, cell=f"{DEADLINES}/capacity", drift=after / tokens - 1, problem="")

    _guard(bench, variant)


def _guard(bench: Bench, run: Callable[[], None]) -> None:
    try:
        run()
    except (LoadRejected, LoadFailed) as error:
        bench.results.add(part="", cell="load", problem=str(error))
        bench.given.say(str(error))
