"""The stages of a request's latency as a table with bars, for ``isochrone infer`` and the demo. Pure.

The server and the gateway report their stages (``Server-Timing``). The rest of the client's total is the network and
both kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from isochrone.protocol.headers.timing import step_of

#: In the order a request passes them.
STAGES = ("gateway", "upstream", "dispatch", "queue", "batch", "compute", "serialise")
_MEANING = {
    "network": "sockets and the client",
    "gateway": "the hop through it",
    "upstream": "gateway and server",
    "dispatch": "reading and checking",
    "queue": "waiting for its turn",
    "batch": "gathering the batch",
    "compute": "the model",
    "serialise": "writing the answer",
}
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def stages_of(total_ms: float, reported: Mapping[str, float]) -> dict[str, float]:
    """Stage to milliseconds, adding up to the total; empty if the server reports no stages."""
    if not reported:
        return {}
    known = {stage: reported[stage] for stage in STAGES if stage in reported}
    network = max(0.0, total_ms - sum(known.values()))
    steps = {stage: milliseconds for stage, milliseconds in reported.items() if step_of(stage) is not None}
    return {"network": network, **known, **steps}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of sorted figures: the smallest that at least ``share`` of them do not exceed."""
    return ordered[max(0, min(len(ordered) - 1, -int(-len(ordered) * share // 1) - 1))]


def render(total_ms: float, stages: Mapping[str, float], title: str, width: int = 32) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    table.add_column("stage")
    table.add_column("ms", justify="right")
    table.add_column("", width=width, no_wrap=True)
    table.add_column("what it is", style="dim")
    begin = 0.0
    steps = {stage: model for stage in stages if (model := step_of(stage)) is not None}
    for stage, milliseconds in stages.items():
        if stage in steps:
            continue
        table.add_row(stage, f"{milliseconds:.3f}", _bar(begin, milliseconds, total_ms, width), _MEANING.get(stage, ""))
        if stage == "compute" and steps:
            # Bars start together if the steps sum to more than the whole: some of them ran in parallel.
            in_turn = sum(stages[step] for step in steps) <= milliseconds * 1.001
            within = begin
            for step, model in steps.items():
                bar = _bar(within, stages[step], total_ms, width)
                table.add_row(f"  {model}", f"{stages[step]:.3f}", bar, "a step of it", style="dim")
                within += stages[step] if in_turn else 0.0
        begin += milliseconds
    table.add_row("total", f"{total_ms:.3f}", "", "as the client saw it", style="bold")
    return table


def _bar(begin: float, length: float, total: float, width: int) -> str:
    """A bar that starts where the stage did, to an eighth of a character."""
    if total <= 0 or length <= 0:
        return ""
    start = min(int(begin / total * width), width - 1)
    eighths = max(1, round(length / total * width * 8))
    whole, part = divmod(eighths, 8)
    return (" " * start + "█" * whole + _EIGHTHS[part].strip())[:width]
