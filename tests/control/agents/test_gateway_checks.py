"""What a gateway ends without a change in the store: holds that last too long, workers whose records have vanished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from test_gateway_link import KEYS, RULES, Led, epoch, run, until

from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.rollout_records import HOLDING, SwitchRecord


def test_a_worker_whose_record_vanished_is_dropped_and_the_checks_rest(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory, rules=replace(RULES, linger=0.05)) as led:
            for _ in range(2):
                await led.put(KEYS.worker("w"), WorkerRecord("w", "127.0.0.1", 1, 1))
                await until(lambda: led.gateway.fleet.members)
                await until(lambda: not led.link._check_due.is_set())
                await led.delete(KEYS.worker("w"))
                await until(lambda: not led.gateway.fleet.members)
                await until(lambda: not led.link._check_due.is_set())

    run(scenario, tmp_path)


def test_a_hold_that_lasts_too_long_is_cancelled_and_the_checks_rest(tmp_path: Path) -> None:
    async def scenario(directory: Path) -> None:
        async with Led(directory, rules=replace(RULES, longest_hold=0.2)) as led:
            await led.put(KEYS.epoch, epoch(1, "1"))
            await until(lambda: led.gateway.fleet.epoch == 1)
            await until(lambda: not led.link._check_due.is_set())
            await led.put(KEYS.switch, SwitchRecord("r1.1", HOLDING, ("m",), 1))
            await until(lambda: led.gateway.fleet.holding)
            await until(lambda: not led.gateway.fleet.holding)
            await until(lambda: not led.link._check_due.is_set())

    run(scenario, tmp_path)
