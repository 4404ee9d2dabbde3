"""Threads on which models are loaded onto GPUs: kept, one for each load at a time, nothing of a load stays."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from isochrone.worker.backends.torch.gpu.loading_threads import load_on_thread

#: No test of another module loads onto it.
GPU = 97


class Model:
    pass


def test_later_loads_run_on_the_same_thread() -> None:
    first = load_on_thread(GPU, threading.get_ident)
    assert first != threading.get_ident()
    assert {load_on_thread(GPU, threading.get_ident) for _ in range(20)} == {first}


def test_each_gpu_has_threads_of_its_own() -> None:
    assert load_on_thread(GPU, threading.get_ident) != load_on_thread(GPU + 1, threading.get_ident)


def test_a_load_that_hangs_delays_no_other() -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> int:
        hangs.set()
        assert goes_on.wait(30)
        return threading.get_ident()

    with ThreadPoolExecutor(1) as callers:
        hung = callers.submit(load_on_thread, GPU, hang)
        assert hangs.wait(30)
        other = load_on_thread(GPU, threading.get_ident)
        goes_on.set()
        assert hung.result(30) != other
    assert {load_on_thread(GPU, threading.get_ident) for _ in range(5)} <= {other, hung.result()}


def test_an_error_reaches_the_caller_and_the_thread_loads_on() -> None:
    def fail() -> None:
        raise ValueError("no such file")

    before = load_on_thread(GPU, threading.get_ident)
    with pytest.raises(ValueError, match="no such file"):
        load_on_thread(GPU, fail)
    assert load_on_thread(GPU, threading.get_ident) == before


def test_a_waiting_thread_keeps_no_model() -> None:
    model = load_on_thread(GPU, Model)
    kept = weakref.ref(model)
    del model
    # The thread may be about to wait: the next load shows that it does.
    load_on_thread(GPU, threading.get_ident)
    assert kept() is None
