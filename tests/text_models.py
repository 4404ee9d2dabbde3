"""Models from text to text, in the form of Triton's vLLM backend, for tests of the OpenAI-compatible front.

``storyteller`` answers with the words of its prompt, one response each, and with what it was asked for. Its tokens are
words. The prompt "for ever" never ends. ``narrow`` is an ordinary model that runs one request at a time until it finds
the file that ``sample_models.release_file`` names, and queues one more.
"""

from __future__ import annotations

from pathlib import Path

from sample_models import write_config, write_models, write_python

_STORYTELLER = """
    backend: "python"
    version_policy { all { } }
    model_transaction_policy { decoupled: true }
    input { name: "text_input" data_type: TYPE_STRING dims: [1] optional: true }
    input { name: "messages" data_type: TYPE_STRING dims: [1] optional: true }
    input { name: "stream" data_type: TYPE_BOOL dims: [1] optional: true }
    input { name: "sampling_parameters" data_type: TYPE_STRING dims: [1] optional: true }
    input { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [1] optional: true }
    input { name: "return_finish_reason" data_type: TYPE_BOOL dims: [1] optional: true }
    input { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [1] optional: true }
    input { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [1] optional: true }
    input { name: "return_logprobs" data_type: TYPE_BOOL dims: [1] optional: true }
    output { name: "text_output" data_type: TYPE_STRING dims: [-1] }
    output { name: "finish_reason" data_type: TYPE_STRING dims: [-1] }
    output { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [1] }
    output { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [-1] }
    output { name: "logprobs" data_type: TYPE_STRING dims: [-1] }
"""

_STORYTELLER_CODE = """
    import asyncio
    import itertools
    import json


    class Model:
        def load(self, context):
            self.version = context.model_version

        async def infer(self, inputs, parameters):
            sampling = json.loads(inputs["sampling_parameters"][0])
            if "messages" in inputs:
                messages = json.loads(inputs["messages"][0])
                prompt = " ".join(f"{one['role']}: {one['content']}" for one in messages)
            else:
                prompt = inputs["text_input"][0].decode()
            words = prompt.split()
            if prompt.endswith("version"):
                words = [str(self.version)]
            elif prompt.endswith("what you were told"):
                told = {**sampling, **parameters, "seed": sampling.get("seed"), "stream": bool(inputs["stream"][0])}
                words = [json.dumps(told, sort_keys=True)]
            elif prompt.endswith("break"):
                words = ["so", "far", None]
            elif prompt.endswith("wrong from the start"):
                words = [None]
            limit = sampling.get("max_tokens")
            stops = sampling.get("stop", [])
            endless = prompt.endswith("for ever")
            source = itertools.count() if endless else words
            streams = endless or inputs["stream"][0]
            reason, sent = "stop", 0
            pieces = []
            for word in source:
                if word is None:
                    raise ValueError("the story breaks off")
                if word in stops:
                    break
                if sent == limit:
                    reason = "length"
                    break
                pieces.append(str(word))
                sent += 1
                if streams:
                    yield self.response((" " if sent > 1 else "") + str(word), None, words, 1, inputs)
                if endless:
                    await asyncio.sleep(0.001)
            text = "" if streams else " ".join(pieces)
            yield self.response(text, reason, words, 0 if streams else sent, inputs)

        def response(self, text, reason, words, tokens, inputs):
            logprobs = []
            if inputs["return_logprobs"][0] and tokens:
                spaced = [text] if tokens == 1 else [text.split()[0], *(" " + one for one in text.split()[1:])]
                for word in spaced:
                    logprobs.append(
                        {
                            "7": {"logprob": -1.5, "rank": 2, "decoded_token": word},
                            "9": {"logprob": -0.5, "rank": 1, "decoded_token": "other"},
                        }
                    )
            return {
                "text_output": [text],
                "finish_reason": [str(reason)],
                "num_input_tokens": [len(words)],
                "num_output_tokens": [tokens],
                "logprobs": [json.dumps(logprobs)],
            }
"""

_NARROW = """
    backend: "python"
    max_batch_size: 1
    dynamic_batching { default_queue_policy { max_queue_size: 1 } }
    input { name: "text_input" data_type: TYPE_STRING dims: [1] }
    output { name: "text_output" data_type: TYPE_STRING dims: [1] }
"""

_NARROW_CODE = """
    import time


    class Model:
        def load(self, context):
            self.release = context.directory.parents[2] / f"release_{context.model_name}"

        def infer(self, inputs):
            text = inputs["text_input"][0][0].decode()
            # Slow from its warm-up on: a fast model may run on the event loop, which must not be held.
            time.sleep(0.002)
            while text == "hold" and not self.release.exists():
                time.sleep(0.002)
            return {"text_output": [[text.upper()]]}
"""


def write_text_models(repository: Path) -> Path:
    """``storyteller`` in versions 1 and 2, ``narrow``, and two sample models: ``words`` and one without text."""
    write_models(repository, "words", "add_sub", "identity_int32")
    write_config(repository / "storyteller", _STORYTELLER)
    for version in (1, 2):
        write_python(repository / "storyteller", _STORYTELLER_CODE, version)
    write_config(repository / "narrow", _NARROW)
    write_python(repository / "narrow", _NARROW_CODE)
    return repository
