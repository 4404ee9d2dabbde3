"""What every test shares: a deterministic hypothesis, real servers, and a look for what was left behind."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis
import psutil
import pytest

from gateway_process import GatewayProcess, StartGateway, start_gateway
from isochrone.build_info import IS_COMPILED
from server_process import ServerProcess, StartServer, start_server

# The same examples on every run: a failure seen once can be seen again, and a run's time does not wander.
hypothesis.settings.register_profile("isochrone", derandomize=True, deadline=None, max_examples=60, database=None)
# What ``make soak`` runs models of state machines with.
hypothesis.settings.register_profile(
    "soak", derandomize=True, deadline=None, max_examples=2000, stateful_step_count=110, database=None
)
# For one test and many hours of thought: run it with several seeds (``--hypothesis-seed``), one process each.
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=50_000, database=None)
hypothesis.settings.load_profile("isochrone")

if bool(os.environ.get("ISOCHRONE_TEST_COMPILED")) is not IS_COMPILED:
    raise pytest.UsageError(f"the {'compiled' if IS_COMPILED else 'interpreted'} build is imported, not the other one")

# A run under ``nohup`` ignores SIGHUP, one in the background of a script SIGINT, and so would every process that a test
# starts: tests of a closing terminal and of Ctrl-C would wait for an end that does not come.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing that is made while tests are collected becomes garbage, and it is most of the memory: each look at all of it
# takes a second.
gc.disable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of several test processes that are to run every test, each imports a share of the modules first.

    pytest rewrites the assertions of a module and keeps the result in a file. All processes collect in the same order,
    so each would rewrite all modules, at the same time as the others: two fifths of what a fresh checkout takes
    until its first test runs.
    """
    config = session.config
    if not hasattr(config, "workerinput") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    modules = sorted(Path(__file__).parent.rglob("test_*.py"))
    for path in modules[len(modules) * number // count : len(modules) * (number + 1) // count]:
        for folder in reversed(path.relative_to(Path(__file__).parent).parents):
            place = str(Path(__file__).parent / folder)
            if place not in sys.path:
                sys.path.insert(0, place)
        # What fails here fails again when pytest collects the module, and is reported then.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(path.stem)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _frozen_module() -> Iterator[None]:
    """What a module leaves behind is garbage, which is collected here, or stays: libraries that it imported, such as
    torch, would be looked at by each full collection after it."""
    yield
    gc.collect()
    gc.freeze()


#: Names of shared-memory regions a test makes start with this, so that a forgotten one is told from another process's.
SHARED_MEMORY_PREFIX = f"isochrone_test_{os.getpid()}_"


@pytest.fixture(scope="session", autouse=True)
def _own_last_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands without ``--api`` talk to the fleet that this process's tests started last, not to another's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state_home")))
        yield


@pytest.fixture(scope="session")
def server_factory(tmp_path_factory: pytest.TempPathFactory) -> StartServer:
    """``with server_factory(repository, *arguments) as server``: a real server process; see server_process.py."""
    logs = tmp_path_factory.mktemp("server_logs")
    numbers = itertools.count(1)

    def start(
        repository: Path, *arguments: str, check_exit: bool = True
    ) -> contextlib.AbstractContextManager[ServerProcess]:
        log_path = logs / f"{next(numbers)}.log"
        return start_server(repository, *arguments, check_exit=check_exit, log_path=log_path)

    return start


@pytest.fixture(scope="session")
def gateway_factory(tmp_path_factory: pytest.TempPathFactory) -> StartGateway:
    """``with gateway_factory([worker, worker], *arguments) as gateway``: a real gateway; see gateway_process.py."""
    logs = tmp_path_factory.mktemp("gateway_logs")
    numbers = itertools.count(1)

    def start(
        upstreams: Sequence[ServerProcess | str], *arguments: str, check_exit: bool = True
    ) -> contextlib.AbstractContextManager[GatewayProcess]:
        log_path = logs / f"{next(numbers)}.log"
        return start_gateway(upstreams, *arguments, log_path=log_path, check_exit=check_exit)

    return start


@pytest.fixture(scope="session")
def shared_memory_prefix() -> str:
    return SHARED_MEMORY_PREFIX


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What ``isochrone up`` remembers of a test's fleet is not the user's, and no test finds the user's fleet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("ISOCHRONE_API", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    left = [process for process in psutil.Process().children(recursive=True) if not _is_expected(process)]
    assert not left, f"tests left processes behind: {left}"
    regions = [name for name in os.listdir("/dev/shm") if name.startswith(SHARED_MEMORY_PREFIX)]
    assert not regions, f"tests left shared memory behind: {regions}"


def _is_expected(process: psutil.Process) -> bool:
    """multiprocessing's resource tracker lives as long as the process that started it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE or any("resource_tracker" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return True
