"""Tasks that nobody awaits."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from isochrone.background_tasks import BackgroundTasks


def test_a_task_that_only_waits_is_not_collected() -> None:
    async def run() -> None:
        tasks = BackgroundTasks()
        ended: list[str] = []
        waited_for: list[weakref.ref[asyncio.Future[None]]] = []

        async def work() -> None:
            # Task and future refer to each other, and nothing else refers to either of them strongly.
            future = asyncio.get_running_loop().create_future()
            waited_for.append(weakref.ref(future))
            await future
            ended.append("done")

        tasks.start(work())
        await asyncio.sleep(0)
        gc.collect()
        assert len(tasks) == 1
        future = waited_for[0]()
        assert future is not None
        future.set_result(None)
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
