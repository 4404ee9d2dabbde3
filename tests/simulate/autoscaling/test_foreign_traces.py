"""Each foreign algorithm beside a trace that was worked by hand from its documentation; every step says why."""

from __future__ import annotations

from typing import Any

from isochrone.simulate.autoscaling.policies.base import Policy, Reading
from isochrone.simulate.autoscaling.policies.hpa import Hpa
from isochrone.simulate.autoscaling.policies.keda import Keda
from isochrone.simulate.autoscaling.policies.llm_d import LlmD
from isochrone.simulate.autoscaling.policies.ray_serve import RayServe


def follow(policy: Policy, steps: list[tuple[dict[str, Any], int]]) -> None:
    """Gives each reading, and expects each answer."""
    for number, (reading, expected) in enumerate(steps):
        answer = policy.desired(Reading(**({"time_of_day": 0, "pending": 0} | reading)))
        assert answer == expected, f"step {number}: {reading}"


def test_hpa_on_utilisation() -> None:
    follow(
        Hpa(0.5),
        [
            # 0.54 / 0.5 = 1.08: within the tolerance of 0.1.
            ({"instant": 15, "ready": 4, "utilisation": 0.54}, 4),
            # 0.6 / 0.5 = 1.2: ceil(4 × 1.2) = 5.
            ({"instant": 30, "ready": 4, "utilisation": 0.6}, 5),
            # 1.0 / 0.5 = 2 over the ready four. The fifth uses nothing: 4 × 1.0 / 5 = 0.8; ceil(5 × 1.6) = 8.
            ({"instant": 45, "ready": 4, "pending": 1, "utilisation": 1.0}, 8),
            # 0.6 / 0.5 = 1.2, but with four that use nothing 0.3 / 0.5 = 0.6: the direction would turn, so nothing.
            ({"instant": 60, "ready": 4, "pending": 4, "utilisation": 0.6}, 8),
            # 0.2 / 0.5 = 0.4: ceil(8 × 0.4) = 4, but the highest of the last 300 s is 8.
            ({"instant": 75, "ready": 8, "utilisation": 0.2}, 8),
            # At 345 s, the 8 of 45 s and 60 s: the one of 45 s is exactly 300 s old, and counts.
            ({"instant": 345, "ready": 8, "utilisation": 0.2}, 8),
            # At 390 s none of the 8s is left (60 s is 330 s ago); 75 s is 315 s ago; left are the 4s of 345 s on.
            ({"instant": 390, "ready": 8, "utilisation": 0.2}, 4),
        ],
    )


def test_hpa_increases_at_most_twofold_or_by_four() -> None:
    follow(
        Hpa(0.5, "rate"),
        [
            # 1000 / (0.5 × 100) = 20 wanted; of two: the larger of 2 × 2 and 2 + 4.
            ({"instant": 15, "ready": 2, "offered": 1000.0, "nominal": 100.0}, 6),
            # Of six: the larger of 12 and 10. An average value counts pods that are not ready, too.
            ({"instant": 30, "ready": 2, "pending": 4, "offered": 1000.0, "nominal": 100.0}, 12),
            ({"instant": 45, "ready": 2, "pending": 10, "offered": 1000.0, "nominal": 100.0}, 20),
            # 1090 / (50 × 20) = 1.09: within the tolerance.
            ({"instant": 60, "ready": 20, "offered": 1090.0, "nominal": 100.0}, 20),
            # 1110 / 50 = 22.2.
            ({"instant": 75, "ready": 20, "offered": 1110.0, "nominal": 100.0}, 23),
        ],
    )


def test_hpa_keeps_one() -> None:
    follow(Hpa(0.5, "rate", stabilisation=0), [({"instant": 15, "ready": 3, "offered": 0.0, "nominal": 100.0}, 1)])


def test_keda() -> None:
    follow(
        Keda(0.5, can_be_empty=True),
        [
            # 30 in flight, target 0.5 × 10: 6. Of two, the larger of 4 and 6.
            ({"instant": 15, "ready": 2, "in_flight": 30.0, "full_in_flight": 10.0, "offered": 1.0}, 6),
            # 29 / (5 × 6) = 0.97: within the tolerance.
            ({"instant": 30, "ready": 2, "pending": 4, "in_flight": 29.0, "full_in_flight": 10.0, "offered": 1.0}, 6),
            # Nothing in flight: 0 wanted, 6 for the stabilisation window.
            ({"instant": 45, "ready": 6, "full_in_flight": 10.0}, 6),
            # 330 − 30 = 300 s without activity: the cooldown is over, KEDA removes all at once.
            ({"instant": 315, "ready": 6, "full_in_flight": 10.0}, 6),
            ({"instant": 330, "ready": 6, "full_in_flight": 10.0}, 0),
            # A request arrives; 345 is no multiple of the polling interval of 30 s.
            ({"instant": 345, "ready": 0, "in_flight": 1.0, "offered": 0.1}, 0),
            ({"instant": 360, "ready": 0, "in_flight": 1.0, "offered": 0.1}, 1),
        ],
    )


def test_keda_that_may_not_be_empty_keeps_one() -> None:
    policy = Keda(0.5, stabilisation=0)
    follow(policy, [({"instant": 9000, "ready": 3, "full_in_flight": 10.0}, 1)])


def test_ray_serve() -> None:
    follow(
        RayServe(0.5),
        [
            # Mean 20 in flight, target 0.5 × 10 = 5: 4 wanted, for the first time.
            ({"instant": 10, "ready": 2, "in_flight": 20.0, "full_in_flight": 10.0}, 2),
            ({"instant": 20, "ready": 2, "in_flight": 20.0, "full_in_flight": 10.0}, 2),
            # Mean of 20, 20 and 2: 14 / 5 → 3 wanted: still up, without a break.
            ({"instant": 30, "ready": 2, "in_flight": 2.0, "full_in_flight": 10.0}, 2),
            # 30 s since it was first wanted. Only the last sample counts: mean of 20, 2, 32 is 18, / 5 → 4.
            ({"instant": 40, "ready": 2, "in_flight": 32.0, "full_in_flight": 10.0}, 4),
            # Mean of 2, 32, 26 is 20: 4 wanted, which is there.
            ({"instant": 50, "ready": 2, "pending": 2, "in_flight": 26.0, "full_in_flight": 10.0}, 4),
            # Mean of 32, 26, 2 is 20: the same. Then 26, 2, 2: 10 / 5 = 2, down wanted since 70 s.
            ({"instant": 60, "ready": 4, "in_flight": 2.0, "full_in_flight": 10.0}, 4),
            ({"instant": 70, "ready": 4, "in_flight": 2.0, "full_in_flight": 10.0}, 4),
            # 590 s later: not yet. 600 s later: mean of 2, 2, 2 / 5 → 1.
            ({"instant": 660, "ready": 4, "in_flight": 2.0, "full_in_flight": 10.0}, 4),
            ({"instant": 670, "ready": 4, "in_flight": 2.0, "full_in_flight": 10.0}, 1),
        ],
    )


def test_ray_serve_begins_to_count_again_after_a_break() -> None:
    busy = {"ready": 2, "in_flight": 60.0, "full_in_flight": 10.0}
    calm = {"ready": 2, "in_flight": 0.0, "full_in_flight": 10.0}
    policy = RayServe(0.5)
    # Means 60, 60, 40, 20, 0: up, up, up after 20 s; then up for 40 − 10 = 30 s.
    follow(policy, [({"instant": 10} | busy, 2), ({"instant": 20} | busy, 2), ({"instant": 30} | calm, 2)])
    follow(policy, [({"instant": 40} | calm, 4)])
    follow(RayServe(0.5), [({"instant": 10} | busy, 2), ({"instant": 20} | calm, 2), ({"instant": 30} | calm, 2)])


def test_llm_d() -> None:
    def use(instant: int, ready: int, cache: float, pending: int = 0, queued: float = 0.0) -> dict[str, Any]:
        return {
            "instant": instant,
            "ready": ready,
            "pending": pending,
            "in_flight": cache * 10 * ready,
            "full_in_flight": 10.0,
            "queued": queued,
        }

    follow(
        LlmD(stabilisation=0),
        [
            # Spare 0.8 − 0.69 = 0.11, not below 0.1; on three workers 0.69 × 4/3 = 0.92: no removal either.
            (use(15, 4, 0.69), 4),
            # Spare 0.8 − 0.75 = 0.05: one more.
            (use(30, 4, 0.75), 5),
            # One starts: nothing, even though the workers are saturated.
            (use(45, 4, 0.95, pending=1), 5),
            # The highest of the last minute is still 0.95, which is saturated: one more.
            (use(60, 5, 0.3), 6),
            (use(75, 6, 0.3), 7),
            (use(90, 7, 0.3), 8),
            # The 0.95 of 45 s is the fifth last. 0.3 × 8/7 = 0.34, spare 0.46: one less.
            (use(105, 8, 0.3), 7),
            # Queue 2.5 per worker: spare 5 − 2.5 = 2.5, below 3: one more.
            (use(120, 7, 0.3, queued=17.5), 8),
        ],
    )


def test_llm_d_keeps_one_and_leaves_the_last_two_to_their_load() -> None:
    calm = {"in_flight": 0.0, "full_in_flight": 10.0}
    follow(LlmD(stabilisation=0), [({"instant": 15, "ready": 1} | calm, 1), ({"instant": 30, "ready": 2} | calm, 1)])
