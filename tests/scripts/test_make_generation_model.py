"""The script that makes models: what it writes loads, and the same seed writes the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from documented import ROOT
from generation_models import context_for
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.worker.backends.generative import Row, Sampling
from isochrone.worker.backends.transformer.backend import load
from scripts.make_generation_model import main

SCRIPT = ROOT / "scripts" / "make_generation_model.py"
SMALL = ["--layers", "1", "--width", "32", "--heads", "4", "--kv-heads", "2", "--vocabulary", "400", "--context", "64"]


def make(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_trained_model_loads_and_the_seed_decides_it(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        done = make(str(tmp_path / folder), "--name", "tiny", "--steps", "2", *SMALL)
        assert done.returncode == 0, done.stderr
        assert "step 2/2: loss" in done.stdout
    version = tmp_path / "one/tiny/1"
    config, _ = parse_text((version.parent / "config.pbtxt").read_text(), "config.pbtxt")
    assert (config.name, config.backend) == ("tiny", "generation")
    for path in version.iterdir():
        assert path.read_bytes() == (tmp_path / "two/tiny/1" / path.name).read_bytes(), path.name
    executable = load(context_for(version, "instance_group { kind: KIND_CPU }"))
    prompt = executable.tokenizer.render_chat([{"role": "user", "content": "What is a worker?"}])
    executable.launch([Row(executable.tokenizer.encode(prompt, special=False), 0, [0, 1], Sampling())])
    assert executable.collect()[0] is not None
    executable.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vocabulary", "100"], "--vocabulary: expected at least 261, given 100"),
        (["--width", "30", "--random-weights"], "hidden_size: expected a multiple of num_attention_heads"),
    ],
)
def test_wrong_sizes(
    tmp_path: Path,
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, which has imported torch."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path), *SMALL, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code
    # A text is printed at the exit, after what argparse has printed.
    assert message in f"{capsys.readouterr().err}{ended.value.code}"
