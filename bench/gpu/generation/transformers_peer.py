"""``transformers`` on the same checkpoint: ``generate()`` one by one and in static batches, without a server.

It runs in a process of its own, writes a line of JSON per figure, and ends by itself after ``--limit`` seconds. Tokens
beyond the length that a request asks for are not counted: a static batch runs until its longest answer ends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.gpu.generation.service import Bench
from bench.gpu.generation.workload import Lengths, texts_of
from bench.worker.peers.process import REPOSITORY_ROOT

TRANSFORMERS = "transformers"


def transformers(bench: Bench) -> None:
    """Runs the peer beside an idle worker, which has no model loaded."""
    given, sizes = bench.given, bench.sizes
    modes = [mode for mode in ("dynamic", "static-cache") if given.wanted(f"{TRANSFORMERS}/{mode}")]
    if not modes or not bench.has_time(30, TRANSFORMERS):
        return
    if find_spec("transformers") is None:
        given.say("transformers is not installed: its cells are left out")
        bench.results.note(transformers="not installed")
        return
    for mode in modes:
        words = [sys.executable, "-m", "bench.gpu.generation.transformers_peer", bench.version, "--mode", mode]
        words += ["--device", given.device, "--seconds", given.seconds, "--dtype", sizes.dtype]
        words += ["--prompts", f"{sizes.prompts.least},{sizes.prompts.most}"]
        words += ["--answers", f"{sizes.answers.least},{sizes.answers.most}"]
        words += ["--batches", ",".join(str(each) for each in given.streams if each <= 64)]
        # The modes that are left share the time.
        limit = min(given.peer_limit, bench.time_left() / (len(modes) - modes.index(mode)) - 5)
        if limit < 5:
            bench.left_out.append(f"{TRANSFORMERS}/{mode}")
            continue
        for figure in _lines([*map(str, words), "--limit", f"{limit:.0f}"], limit + 15):
            bench.results.add(part=TRANSFORMERS, cell=f"{TRANSFORMERS}/{mode}/{figure.pop('batch', '')}", **figure)
            given.say(f"transformers {mode}: {figure}")


def _lines(words: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    process = subprocess.Popen(words, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        errors += f"\nended after {seconds:.0f} s"
    for line in out.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
    if process.returncode:
        yield {"problem": errors[-600:]}


def main() -> None:
    """The peer's process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--mode", choices=("dynamic", "static-cache"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--batches", default="1,8,32,64")
    parser.add_argument("--prompts", default="16,512")
    parser.add_argument("--answers", default="16,256")
    parser.add_argument("--limit", type=float, default=120.0)
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(max(1, round(given.limit)))
    os.environ["HF_HUB_OFFLINE"] = "1"

    import torch
    import transformers as library

    library.logging.set_verbosity_error()
    device = torch.device("cuda:0" if given.device == "cuda" else "cpu")
    model = library.AutoModelForCausalLM.from_pretrained(str(given.model))
    model = model.to(device, getattr(torch, given.dtype)).eval()
    model.generation_config.eos_token_id = None  # end tokens do not end an answer
    texts, source = texts_of(given.model / "tokenizer.json"), random.Random(3)
    prompts = Lengths(*map(int, given.prompts.split(",")))
    answers = Lengths(*map(int, given.answers.split(",")))
    # Of one size for all batches: a static cache is compiled for it.
    options = {"cache_implementation": "static"} if given.mode == "static-cache" else {}

    def batch(size: int) -> int:
        """Runs a batch; the tokens that its requests asked for."""
        rows = [texts.tokens(texts.cut(prompts.draw(source), source))[: prompts.most] for _ in range(size)]
        wanted = [answers.draw(source) for _ in range(size)]
        longest = prompts.most if options else max(map(len, rows))
        ids = torch.zeros((size, longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, longest - len(row) :] = torch.tensor(row)
            mask[number, longest - len(row) :] = 1
        most = max(wanted)
        # The length of a static cache must not change from batch to batch.
        extra = {"max_length": longest + answers.most} if options else {"max_new_tokens": most}
        stop = library.StoppingCriteriaList([_Until(longest + most)]) if options else None
        model.generate(
            ids.to(device),
            attention_mask=mask.to(device),
            do_sample=True,
            temperature=0.8,
            top_k=0,
            pad_token_id=0,
            stopping_criteria=stop,
            **extra,
            **options,
        )
        if device.type == "cuda":
            torch.cuda.synchronize()
        return sum(wanted)

    with torch.inference_mode():
        for size in map(int, given.batches.split(",")):
            warmed = time.monotonic()
            batch(size)
            batch(size)
            began = time.monotonic()
            tokens = 0
            while time.monotonic() - began < given.seconds:
                tokens += batch(size)
            took = time.monotonic() - began
            figure = {"batch": size, "tokens_per_second": tokens / took, "warm_up_seconds": began - warmed}
            print(json.dumps({**figure, "version": library.__version__, "problem": ""}), flush=True)


class _Until:
    """Ends a batch at the longest answer that it asked for."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
        import torch

        return torch.full((ids.shape[0],), ids.shape[1] >= self._length, device=ids.device, dtype=torch.bool)


if __name__ == "__main__":
    main()
