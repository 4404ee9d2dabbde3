"""The daily pattern: learned, used where it predicts better, silent where there is none."""

from __future__ import annotations

from random import Random

from isochrone.control.autoscaler.forecast import DAY, DailyForecast

SIX, MINUTE = 6 * 3600, 60


def shift(second: float, delay: float = 0.0) -> float:
    return 400.0 if SIX <= (second - delay) % DAY < 18 * 3600 else 100.0


def taught(days: int, delays: tuple[float, ...] = (0.0,)) -> DailyForecast:
    forecast = DailyForecast(120.0)
    for second in range(0, int(days * DAY), 30):
        forecast.take(second % DAY, shift(second, delays[second // int(DAY) % len(delays)]))
    return forecast


def test_nothing_is_said_before_a_day_is_known() -> None:
    forecast = DailyForecast(120.0)
    for second in range(0, int(DAY * 0.8), 30):
        forecast.take(second, shift(second))
        assert forecast.ahead(second) == 0


def test_the_rise_is_announced_a_start_up_time_before_and_not_much_sooner() -> None:
    forecast = taught(3)
    for second in range(0, SIX - 10 * MINUTE, 30):
        forecast.take(second, shift(second))
        assert forecast.ahead(second) == 0
    for second in range(SIX - 10 * MINUTE, SIX - 2 * MINUTE, 30):
        forecast.take(second, shift(second))
    assert 380 < forecast.ahead(SIX - 2 * MINUTE) < 420


def test_a_rise_that_is_late_by_a_minute_is_still_announced() -> None:
    forecast = taught(3, (60.0, -60.0, 30.0))
    for second in range(0, SIX, 30):
        forecast.take(second, 100.0)
    assert forecast.ahead(SIX) > 300


def test_a_day_off_ends_the_forecast_within_minutes_of_the_missing_rise() -> None:
    forecast = taught(3)
    said = []
    for second in range(0, int(DAY), 30):
        forecast.take(second, 100.0)
        if forecast.ahead(second):
            said.append(second)
    # Announced before six, and again by the scale of the day until about the half hour has corrected it.
    assert said
    assert max(said) < SIX + 90 * MINUTE


def test_noise_without_a_pattern_is_not_forecast() -> None:
    random, forecast = Random(3), DailyForecast(120.0)
    used = announced = 0
    level = 100.0
    for second in range(0, int(6 * DAY), 60):
        level += (100 - level) / 20 + random.gauss(0, 8)
        forecast.take(second % DAY, max(1.0, level))
        if second > 3 * DAY:
            used += 1
            announced += forecast.ahead(second % DAY) > 0
    assert announced < used * 0.05


def test_a_wall_clock_that_jumps_is_no_error() -> None:
    forecast = taught(2)
    for second in (0.0, 50_000.0, 100.0, -5.0, 1e9):
        forecast.take(second, 100.0)
        assert forecast.ahead(second) >= 0
