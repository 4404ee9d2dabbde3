"""Tasks that nobody awaits."""

from __future__ import annotations

import asyncio
import gc

import pytest

from isochrone.background_tasks import BackgroundTasks


def test_a_task_that_only_waits_is_not_collected() -> None:
    async def run() -> None:
        tasks = BackgroundTasks()
        ended: list[str] = []

        async def work() -> None:
            await asyncio.sleep(0)
            # Nothing but the loop's weak set refers to this task and the event it waits for.
            gc.collect()
            await asyncio.sleep(0)
            ended.append("done")

        tasks.start(work())
        assert len(tasks) == 1
        await tasks.wait(60)
        assert (ended, len(tasks)) == (["done"], 0)
        await tasks.wait()

    asyncio.run(run())


def test_end_cancels_and_waits_for_the_cleaning_up() -> None:
    async def run() -> None:
        tasks = BackgroundTasks()
        cleaned: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned.append("up")

        tasks.start(work())
        await asyncio.sleep(0)
        await tasks.end()
        assert (cleaned, len(tasks)) == (["up"], 0)

    asyncio.run(run())


def test_finish_waits_for_tasks_that_tasks_start_and_raises_their_errors() -> None:
    async def run() -> None:
        tasks = BackgroundTasks()

        async def fail() -> None:
            await asyncio.sleep(0)
            raise ValueError("of the second")

        async def first() -> None:
            tasks.start(fail())

        tasks.start(first())
        with pytest.raises(ValueError, match="of the second"):
            await tasks.finish()

    asyncio.run(run())
