"""Steps: rows in, a token for each out.

Rows of one token are one batch, rows of several tokens another: two passes through the decoder. On a GPU both are
padded to sizes that are captured as graphs (``tiled_prompts``, ``graphs``); elsewhere prompts are computed as they are.
On a GPU a step is only started by ``launch``; the GPU works while the worker does other things, and ``collect`` waits.
Where steps are launched ahead, a second one is started before the first is collected, and its rows of one token may
take it from where the first leaves it on the device. All calls come from one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from math import isnan
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from isochrone.devices import losses
from isochrone.errors import Internal, IsochroneError, ModelFailed
from isochrone.worker.backends.devices.errors import device_error
from isochrone.worker.backends.devices.streams import SHELF
from isochrone.worker.backends.generative import Chosen, FailedRow, GenerationLimits, Result, Row, Sampling
from isochrone.worker.backends.interface import DeviceLost
from isochrone.worker.backends.transformer.architecture import Decoder, hidden_states, logits_of
from isochrone.worker.backends.transformer.attention.attention import (
    DecodeAttention,
    PromptAttention,
    PromptChunk,
    decode_attend,
    prompt_attend,
)
from isochrone.worker.backends.transformer.steps import packing
from isochrone.worker.backends.transformer.steps.graphs import PartKey, StepGraphs
from isochrone.worker.backends.transformer.steps.sampler import KINDS, SamplingTensors, choose, kind_of
from isochrone.worker.backends.transformer.steps.staging import StagedInput, StagedResults
from isochrone.worker.backends.transformer.steps.tiled_prompts import TiledPrompts

#: Parts of steps that are captured: the model on rows of one token, the model on prompts, the logits of prompts, the
#: choice of tokens.
_DECODE, _PROMPT, _HEAD, _SAMPLE = "decode", "prompt", "head", "sample"

_NOT_NUMBERS = FailedRow("the model computed logits that are not numbers: its weights or its type are wrong")

# gRPC sends errors in a trailer, and clients reject headers beyond 8 KiB.
_LONGEST_MESSAGE = 2000


#: Without cuDNN's, which takes 80 ms to plan for every length of a prompt that it has not seen.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class _Launched:
    """A step in flight."""

    __slots__ = ("buffer", "failure", "places")

    def __init__(self, buffer: int, places: list[int | None]) -> None:
        self.buffer = buffer
        self.places = places
        self.failure: Exception | None = None


class Steps:
    """Runs the steps of one loaded decoder."""

    def __init__(
        self,
        decoder: Decoder,
        cache: Any,
        limits: GenerationLimits,
        decode_attention: DecodeAttention,
        prompt_attention: PromptAttention | None = None,
        *,
        fixed_width: bool,
        graphs: bool,
        ahead: bool = False,
    ) -> None:
        """``prompt_attention``: None: torch's own, prompt by prompt. ``fixed_width``: the decode attention reads what
        it needs of tables of any width. ``graphs`` need both. ``ahead``: two steps may be in flight."""
        self._decoder, self._cache, self._limits = decoder, cache, limits
        self._decode_attention = decode_attention
        self._fixed_width = fixed_width
        device = cache.device
        self._packer = packing.Packer(limits, decoder.shape.vocabulary)
        self.is_ahead = ahead
        self._buffers = 2 if ahead else 1
        self._records = StagedInput(limits.rows * self._packer.record, device, self._buffers)
        self._batches = [
            packing.DecodeBatch(self._packer, array.reshape(limits.rows, -1)) for array in self._records.arrays
        ]
        self._prompts: StagedInput | None = None
        self._tiled: TiledPrompts | None = None
        if prompt_attention is None:
            self._prompts = StagedInput(self._packer.prompt_capacity, device, self._buffers)
        else:
            self._tiled = TiledPrompts(decoder, cache, self._packer, prompt_attention, self._buffers)
        self._results = StagedResults(limits.rows, device, self._buffers)
        #: The tokens that the latest step chose, by the places of its results.
        self._latest = torch.zeros(limits.rows, dtype=torch.int32, device=device)
        # Fixed, since graphs write to them.
        self._logits = torch.zeros((limits.rows, decoder.shape.vocabulary), dtype=torch.float32, device=device)
        self._sampling = torch.zeros((limits.rows, 4), dtype=torch.int32, device=device)
        self._chosen = torch.zeros((2, limits.rows), dtype=torch.float64, device=device)
        is_cuda = device.type == "cuda"
        self._stream = SHELF.take(str(device), lambda: torch.cuda.Stream(device)) if is_cuda else None
        self._graphs = StepGraphs(self._stream) if graphs else None
        #: Of the step that was launched last: for each row its place in the results, or None.
        self._places: list[int | None] = []
        #: The buffer of the step that was launched last.
        self._buffer = 0
        self._in_flight: deque[_Launched] = deque()

    def warm(self) -> None:
        """Runs every size of batch and chunks of prompts in the scratch block; with graphs, captures the sizes."""
        scratch, block_tokens = self._packer.scratch_block, self._limits.block_tokens
        greedy = Sampling(temperature=0.0)
        if self._graphs is not None:
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                self._graphs.capture(self._parts())
        tokens = min(self._limits.prefill_tokens, self._limits.context_tokens)
        sizes = {2, tokens} if self._tiled is None else {min(size, tokens) for size in self._tiled.buckets}
        for count in sorted(sizes, reverse=True):
            self._run([Row([0] * count, 0, [scratch] * -(-count // block_tokens), greedy)])
        for size in reversed(self._packer.row_buckets):
            self._run([Row([0], 0, [scratch], greedy)] * size)

    def launch(self, rows: Sequence[Row]) -> None:
        if len(self._in_flight) >= self._buffers:
            raise Internal("a step was launched before an earlier one was collected")
        self._buffer = (self._buffer + 1) % self._buffers
        before, self._places = self._places, [None] * len(rows)
        step = _Launched(self._buffer, self._places)
        self._in_flight.append(step)
        try:
            self._packer.check(rows)
            stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
            with torch.inference_mode(), stream:
                self._launch(rows, before)
        except Exception as error:
            step.failure = error  # ``collect`` raises it: a step fails in one place, on every device
            self._settle(step)

    def collect(self) -> list[Result]:
        step = self._in_flight.popleft()
        if step.failure is not None:
            raise self._failed(step.failure) from step.failure
        places = step.places
        try:
            tokens, log_probabilities = self._results.wait(step.buffer)[:, : len(places)].tolist()
        except Exception as error:
            raise self._failed(error) from error
        results: list[Result] = [
            None if place is None else Chosen(int(tokens[place]), log_probabilities[place]) for place in places
        ]
        # A sum is not a number if one of its parts is not.
        if isnan(sum(log_probabilities)):
            for number, result in enumerate(results):
                if isinstance(result, Chosen) and isnan(result.log_probability):
                    results[number] = _NOT_NUMBERS
        return results

    def _failed(self, error: Exception) -> IsochroneError:
        if isinstance(error, IsochroneError):
            return error
        if (lost := device_error(error)) is not None:
            losses.record(str(self._cache.device), lost)
            return DeviceLost("torch", lost)
        return ModelFailed(f"torch: {str(error)[:_LONGEST_MESSAGE]}")

    def close(self) -> None:
        """Waits for the device and lets go of what would keep this object alive: memory is free without a collection
        of garbage."""
        if self._stream is not None:
            self._stream.synchronize()
            SHELF.give(str(self._cache.device), self._stream)
        self._stream = self._graphs = None
        self._in_flight.clear()

    def _settle(self, step: _Launched) -> None:
        """Waits for what a failed step had started: the next one writes to the same memory."""
        if self._stream is not None:
            try:
                self._stream.synchronize()
            except Exception as error:
                step.failure = error

    def _parts(self) -> Iterator[tuple[PartKey, Callable[[], None]]]:
        """What is captured, the largest first; writes valid inputs for each."""
        assert self._tiled is not None
        for bucket in reversed(self._tiled.buckets):
            self._tiled.fill(bucket)
            yield (_PROMPT, bucket, ""), partial(self._tiled.compute, bucket)
        self._batches[0].pack([Row([0], 0, [self._packer.scratch_block], None)] * self._limits.rows)
        self._records.upload(self._limits.rows * self._packer.record)
        for size in reversed(self._packer.row_buckets):
            yield (_DECODE, size, ""), partial(self._compute, size, self._packer.table_width)
            yield (_HEAD, size, ""), partial(self._compute_head, size)
            for kind in KINDS:
                yield (_SAMPLE, size, kind), partial(self._sample, size, kind)

    def _run(self, rows: Sequence[Row]) -> None:
        self.launch(rows)
        failed = next((result for result in self.collect() if isinstance(result, FailedRow)), None)
        if failed is not None:
            raise ModelFailed(failed.reason)

    def _launch(self, rows: Sequence[Row], places_before: Sequence[int | None]) -> None:
        """Rows that decode come first: they read what the step before chose, and prompts overwrite it."""
        decoding = [number for number, row in enumerate(rows) if len(row.tokens) == 1]
        prompts = [number for number, row in enumerate(rows) if len(row.tokens) > 1]
        if decoding:
            self._compute_decoding([rows[number] for number in decoding], places_before)
            self._put(0, self._chosen[:, : len(decoding)])
            for place, number in enumerate(decoding):
                self._places[number] = None if rows[number].sampling is None else place
        if prompts:
            chosen = self._compute_prompts([rows[number] for number in prompts])
            sampled = [number for number in prompts if rows[number].sampling is not None]
            if chosen is not None:
                self._put(len(decoding), chosen)
            for place, number in enumerate(sampled, len(decoding)):
                self._places[number] = place
        self._results.launched(self._buffer)

    def _put(self, begin: int, chosen: Any) -> None:
        """Starts to copy results to the host, and keeps the tokens for rows that follow."""
        self._results.put(begin, chosen, self._buffer)
        if self.is_ahead:
            self._latest[begin : begin + chosen.shape[1]].copy_(chosen[0])

    def _compute_decoding(self, rows: list[Row], places_before: Sequence[int | None]) -> None:
        """Leaves the results in ``_chosen``."""
        kind = kind_of([row.sampling for row in rows])
        size, width = self._batches[self._buffer].pack(rows, places_before)
        self._records.upload(size * self._packer.record, self._buffer)
        if self._graphs is not None:
            self._graphs.replay((_DECODE, size, ""))
            self._graphs.replay((_SAMPLE, size, kind))
        else:
            self._compute(size, self._packer.table_width if self._fixed_width else width)
            self._sample(size, kind)

    def _compute(self, size: int, width: int) -> None:
        """The logits of the first ``size`` records."""
        records = self._records.tensor.view(self._limits.rows, -1)[:size]
        slots = records[:, packing.SLOT].long()
        lengths = records[:, packing.LENGTH]
        tables = records[:, packing.TABLE : packing.TABLE + width]
        attend = decode_attend(self._cache, slots, tables, lengths, self._decode_attention)
        tokens = records[:, packing.TOKEN]
        if self.is_ahead:
            chosen = self._latest.index_select(0, (-1 - tokens).clamp(min=0))
            tokens = torch.where(tokens < 0, chosen, tokens)
        states = hidden_states(self._decoder, tokens, records[:, packing.POSITION], attend)
        self._logits[:size].copy_(logits_of(self._decoder, states))
        self._sampling[:size].copy_(records[:, packing.TEMPERATURE : packing.TABLE])

    def _sample(self, size: int, kind: str) -> None:
        """From the first ``size`` of ``_logits`` and ``_sampling``."""
        sampling = _sampling_tensors(self._sampling[:size].t(), 0)
        self._chosen[:, :size].copy_(choose(self._logits[:size], sampling, kind))

    def _compute_tiled(self, tiled: TiledPrompts, rows: list[Row]) -> Any:
        """As ``_compute_prompts``, in fixed sizes. It returns a view of ``_chosen``, which the next part overwrites."""
        packed = tiled.pack(rows, self._buffer)
        size = packing.bucket(packed.sampled, self._packer.row_buckets)
        kind = kind_of([row.sampling for row in rows])
        if self._graphs is not None:
            self._graphs.replay((_PROMPT, packed.bucket, ""))
            if packed.sampled:
                self._graphs.replay((_HEAD, size, ""))
                self._graphs.replay((_SAMPLE, size, kind))
        else:
            tiled.compute(packed.bucket)
            if packed.sampled:
                self._compute_head(size)
                self._sample(size, kind)
        return self._chosen[:, : packed.sampled] if packed.sampled else None

    def _compute_head(self, size: int) -> None:
        """The logits of the first ``size`` rows of prompts that sample."""
        assert self._tiled is not None
        self._logits[:size].copy_(self._tiled.logits(size))
        self._sampling[:size].copy_(self._tiled.sampling[:size])

    def _compute_prompts(self, rows: list[Row]) -> Any:
        """What is chosen for the rows with a sampling; None if there are none."""
        if self._tiled is not None:
            return self._compute_tiled(self._tiled, rows)
        assert self._prompts is not None
        packed = packing.pack_prompts(self._packer, rows, self._prompts.arrays[self._buffer])
        self._prompts.upload(packed.size, self._buffer)
        data = self._prompts.tensor
        tokens, positions, slots = data[: 3 * packed.tokens].view(3, packed.tokens)
        chunks = [
            PromptChunk(begin, end, start, data[offset : offset + width])
            for begin, end, start, offset, width in packed.chunks
        ]
        attend = prompt_attend(self._cache, slots.long(), chunks)
        with sdpa_kernel(_KERNELS):
            states = hidden_states(self._decoder, tokens, positions, attend)
        if not packed.sampled:
            return None
        values = data[3 * packed.tokens : 3 * packed.tokens + 5 * packed.sampled].view(5, packed.sampled)
        kind = kind_of([row.sampling for row in rows])
        logits = logits_of(self._decoder, states[values[0].long()])
        return choose(logits.float(), _sampling_tensors(values, 1), kind)


def _sampling_tensors(values: Any, first: int) -> SamplingTensors:
    """The values in the rows from ``first`` on of [values, rows], as ``packing`` writes them."""
    temperature, top_k, top_p, uniform = values[first : first + 4]
    return SamplingTensors(
        temperature.view(torch.float32), top_k, top_p.view(torch.float32), uniform.view(torch.float32)
    )
