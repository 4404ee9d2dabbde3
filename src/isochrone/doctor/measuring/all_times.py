"""All times of this machine, one after the other, so that none disturbs another."""

from __future__ import annotations

from collections.abc import Callable

from isochrone.doctor.facts import Facts, Measured, Times
from isochrone.doctor.measuring import local, loopback

#: Client and server side of net.ipv4.tcp_fastopen.
_FAST_OPEN = 3


def measure(facts: Facts, report: Callable[[str], None]) -> Measured:
    """``report`` gets a line before each group of measurements."""
    take = _Attempts()
    report("measuring sleeps and timers")
    overshoot = take("sleeps", local.overshoot)
    overshoot_exact = take("sleeps with 1 ns of timer slack", _overshoot_exact)
    report("measuring work after a pause")
    work_warm, work_cold = local.work(pause=False), local.work(pause=True)
    report("measuring memory and the clock")
    first_touch = take("fresh memory", lambda: local.first_touch(small=False))
    first_touch_small = take("fresh memory in small pages", lambda: local.first_touch(small=True))
    clock_read_ns = local.clock_read_ns()
    report("measuring wake-ups")
    wake_up = take.with_peer("wake-ups", loopback.wake_up)
    wake_up_shallow = take.with_peer("wake-ups without deep C-states", _wake_up_shallow)
    report("measuring round trips over loopback")
    round_trip = take.with_peer("round trips", loopback.round_trip)
    report("measuring first answers of connections")
    first_answer = take.with_peer("first answers", lambda port: loopback.first_answer(port, fast_open=False))
    allowed = facts.network.tcp_fastopen
    first_answer_fast_open = None
    if isinstance(allowed, int) and allowed & _FAST_OPEN == _FAST_OPEN:
        first_answer_fast_open = take.with_peer(
            "first answers with fast open", lambda port: loopback.first_answer(port, fast_open=True)
        )
    return Measured(
        wake_up=wake_up,
        wake_up_shallow=wake_up_shallow,
        round_trip=round_trip,
        first_answer=first_answer,
        first_answer_fast_open=first_answer_fast_open,
        overshoot=overshoot,
        overshoot_exact=overshoot_exact,
        work_warm=work_warm,
        work_cold=work_cold,
        first_touch=first_touch,
        first_touch_small=first_touch_small,
        clock_read_ns=clock_read_ns,
        failed=tuple(take.failed),
    )


class _Attempts:
    """Takes times, and remembers why one could not be taken: no permission, device or option."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def __call__(self, what: str, measurement: Callable[[], Times]) -> Times | None:
        try:
            return measurement()
        except OSError as error:
            self.failed.append(f"{what}: {error}")
            return None

    def with_peer(self, what: str, measurement: Callable[[int], Times]) -> Times | None:
        def measuring() -> Times:
            with loopback.started_peer() as port:
                return measurement(port)

        return self(what, measuring)


def _overshoot_exact() -> Times:
    with local.timer_slack(1):
        return local.overshoot()


def _wake_up_shallow(port: int) -> Times:
    with loopback.shallow_idle():
        return loopback.wake_up(port)
