"""Text to tokens and back, the tokens that end an answer, and chats by the model's template."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from generation_models import SampleModel
from isochrone.errors import ConfigError, InvalidArgument
from isochrone.worker.backends.transformer.checkpoint.fields import Fields, read_fields
from isochrone.worker.backends.transformer.text.tokenizer import FileTokenizer
from isochrone.worker.generation.answers.text import AnswerText

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def folder(tmp_path: Path, sample_model: SampleModel) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(sample_model("llama"), tmp_path / "1"))


def opened(folder: Path, vocabulary: int = 320) -> FileTokenizer:
    return FileTokenizer(tokenizers, folder, read_fields(folder / "config.json", required=True), vocabulary)


def set_template(folder: Path, template: Any, **values: Any) -> None:
    settings = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": template, **values}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("text", ["the worker answers", "", " grüße 世界 🎉\n\t", "a" * 1000])
def test_text_comes_back(folder: Path, text: str) -> None:
    tokenizer = opened(folder)
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text
    assert tokenizer.encode(text, special=True) == [0, *tokenizer.encode(text, special=False)]
    assert tokenizer.decode(tokenizer.encode(text, special=True)) == text


def test_other_threads_go_on_while_a_long_text_is_tokenised(folder: Path) -> None:
    tokenizer = opened(folder)
    text = "".join(random.Random(1).choices("the worker answers ", k=400_000))
    instants: list[float] = []
    is_over = threading.Event()

    def note() -> None:
        while not is_over.is_set():
            instants.append(time.perf_counter())

    def share_of_longest_pause() -> float:
        instants.clear()
        is_over.clear()
        thread = threading.Thread(target=note)
        thread.start()
        began = time.perf_counter()
        tokenizer.encode(text, special=False)
        took = time.perf_counter() - began
        is_over.set()
        thread.join()
        return max(after - before for before, after in pairwise([began, *instants, began + took])) / took

    # A thread that had to wait for the whole text would pause for all of it. The machine may be busy.
    assert any(share_of_longest_pause() < 0.7 for _ in range(5))


def test_a_part_of_a_character_is_the_replacement_character(folder: Path) -> None:
    tokenizer = opened(folder)
    tokens = tokenizer.encode("🎉", special=False)
    assert len(tokens) > 1
    assert set(tokenizer.decode(tokens[:1])) == {"�"}


def test_pieces_add_up_to_the_text(folder: Path) -> None:
    tokenizer = opened(folder)
    chance = random.Random(3)
    for _ in range(50):
        # Parts of characters, special tokens and numbers beyond the vocabulary, beside whole words.
        tokens = [chance.randrange(330) for _ in range(40)] + tokenizer.encode("grüße 世界 🎉", special=False)
        answer = AnswerText(tokenizer.decode, (), tokenizer.piece)
        pieces = [answer.add(token) for token in tokens]
        assert "".join([*pieces, answer.end()]) == tokenizer.decode(tokens)
    assert tokenizer.piece(tokenizer.encode("🎉", special=False)[0]) is None


def test_a_tokenizer_of_words_has_no_pieces(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["decoder"] = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = opened(folder)
    assert tokenizer.piece(tokenizer.encode("a", special=False)[0]) is None


def test_special_tokens_in_a_text_are_those_tokens(folder: Path) -> None:
    tokenizer = opened(folder)
    assert tokenizer.encode("<|end|>", special=False) == [1]
    assert tokenizer.decode([1, 0]) == ""


@pytest.mark.parametrize(("adds", "expected"), [(None, [0]), (True, [0]), (False, [])])
def test_the_first_token_is_as_the_settings_say(folder: Path, adds: bool | None, expected: list[int]) -> None:
    set_template(folder, None, add_bos_token=adds)
    tokenizer = opened(folder)
    plain = tokenizer.encode("worker", special=False)
    assert tokenizer.encode("worker", special=True) == [*expected, *plain]


def test_tokens_that_end_an_answer(folder: Path) -> None:
    assert opened(folder).end_tokens == {1}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert opened(folder).end_tokens == {1, 7, 9}
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|user|>"}}))
    assert opened(folder).end_tokens == {1, 3}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": "<|end|>"}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id: expected an integer"):
        opened(folder)


def test_a_chat_is_a_prompt(folder: Path) -> None:
    tokenizer = opened(folder)
    prompt = tokenizer.render_chat([{"role": "system", "content": "be <short>"}, *HELLO])
    assert prompt == "<|begin|><|system|>be <short><|end|><|user|>hello<|end|><|assistant|>"
    assert tokenizer.encode(prompt, special=False)[:2] == [0, 2]


def test_a_template_refuses_messages(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="role: expected system, user or assistant, given robot"):
        opened(folder).render_chat([{"role": "robot", "content": "hello"}])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['absent']['deeper'] }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for a in range(999999999) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_reaches_out(folder: Path, template: str) -> None:
    set_template(folder, template)
    with pytest.raises(InvalidArgument, match="chat template"):
        opened(folder).render_chat(HELLO)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hello"}]'),
        ("{{ '<ü>' | tojson }}", '"<ü>"'),
        ("{% for each in messages %}{% if true %}{% break %}{% endif %}x{% endfor %}y", "y"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hello"),
        ("{% if tools is not none %}tools{% endif %}{{ eos_token }}", "<|end|>"),
        ("   {% if add_generation_prompt %}\nline\n   {% endif %}\n", "line\n"),
        ([{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}], "b"),
    ],
)
def test_conventions_of_templates(folder: Path, template: Any, expected: str) -> None:
    set_template(folder, template)
    assert opened(folder).render_chat(HELLO) == expected


def test_the_template_knows_the_year(folder: Path) -> None:
    set_template(folder, "{{ strftime_now('%Y') }}")
    assert int(opened(folder).render_chat(HELLO)) >= 2024


def test_a_template_in_a_file_comes_first(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("file {{ bos_token }}")
    assert opened(folder).render_chat(HELLO) == "file <|begin|>"


def test_a_model_without_a_template(folder: Path) -> None:
    set_template(folder, None)
    with pytest.raises(InvalidArgument, match="no chat template"):
        opened(folder).render_chat(HELLO)


def test_a_broken_template_is_refused_at_load(folder: Path) -> None:
    set_template(folder, "{% for %}")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: chat_template: expected a template of Jinja"):
        opened(folder)
    set_template(folder, 7)
    with pytest.raises(ConfigError, match="chat_template: expected a string"):
        opened(folder)


def test_broken_tokenizers(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json: vocabulary: expected tokens below .* 300, given 31"):
        opened(folder, vocabulary=300)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json: file: expected a tokenizer"):
        opened(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="no such file"):
        opened(folder)


def test_a_special_token_that_is_no_text() -> None:
    from isochrone.worker.backends.transformer.text.tokenizer import _token_text

    with pytest.raises(ConfigError, match="bos_token: expected a string"):
        _token_text(Fields("tokenizer_config.json", {"bos_token": 7}), "bos_token")
