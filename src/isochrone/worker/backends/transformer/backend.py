"""Models that generate tokens: decoder-only transformers, from a folder in Hugging Face's layout.

``load`` checks the files, the device and the memory before it reads a weight. The worker then decides steps
(``worker.generation``), and ``TransformerExecutable`` computes them.

torch and the other packages are extras and take a while to import, so ``load`` imports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from isochrone.devices import losses
from isochrone.devices.loads import loading
from isochrone.errors import ConfigError, IsochroneError, Unavailable
from isochrone.models.runtimes import optional_runtime
from isochrone.worker.backends import parameters
from isochrone.worker.backends.devices.failed_frames import forget_frames
from isochrone.worker.backends.devices.memory_ledger import Account, Holding, Reservation, ledger_of
from isochrone.worker.backends.generative import (
    GenerationLimits,
    GenerativeExecutable,
    Result,
    Row,
    Tokenizer,
)
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.transformer.checkpoint.checkpoint import Checkpoint, open_checkpoint
from isochrone.worker.backends.transformer.memory import MemoryPlan, free_memory, plan_memory
from isochrone.worker.backends.transformer.settings import PAGED, Settings, settings_of, torch_dtype

if TYPE_CHECKING:
    from isochrone.worker.backends.transformer.steps.steps import Steps

_EXTRA = "generation"


class TransformerExecutable(GenerativeExecutable):
    """One loaded decoder with its cache."""

    def __init__(
        self,
        torch: Any,
        steps: Steps,
        limits: GenerationLimits,
        tokenizer: Tokenizer,
        device: str,
        reservation: Reservation | None = None,
    ) -> None:
        """``reservation``: in the ledger of the device; None: it has none."""
        self._reservation = reservation
        self._torch = torch
        self._steps: Steps | None = steps
        self._device = device
        self.computes_alone = device != "cpu"
        self.launches_ahead = steps.is_ahead
        self.limits = limits
        self.tokenizer = tokenizer

    def warm_steps(self) -> None:
        assert self._steps is not None
        self._steps.warm()

    def launch(self, rows: Sequence[Row]) -> None:
        assert self._steps is not None
        self._steps.launch(rows)

    def collect(self) -> list[Result]:
        assert self._steps is not None
        return self._steps.collect()

    def close(self) -> None:
        steps, self._steps = self._steps, None
        is_lost = losses.is_lost(self._device)
        try:
            if is_lost:
                losses.keep(steps)
            elif steps is not None:
                steps.close()
        finally:
            del steps
            if self._device != "cpu" and not is_lost:
                self._torch.cuda.empty_cache()
            if self._reservation is not None:
                self._reservation.release()


def load(context: LoadContext) -> GenerativeExecutable:
    where = parameters.where(context)
    torch = optional_runtime("torch", _EXTRA, where)
    safetensors = optional_runtime("safetensors", _EXTRA, where)
    tokenizers = optional_runtime("tokenizers", _EXTRA, where)
    optional_runtime("jinja2", _EXTRA, where)
    from isochrone.worker.backends.transformer.text.tokenizer import FileTokenizer

    checkpoint = open_checkpoint(safetensors, context.directory)
    settings = settings_of(context, checkpoint.shape, torch.cuda.device_count())
    tokenizer = FileTokenizer(tokenizers, context.directory, checkpoint.config, checkpoint.shape.vocabulary)
    plan = _plan(torch, checkpoint, settings)
    limits = GenerationLimits(
        context_tokens=settings.request.context_tokens,
        block_tokens=settings.request.block_tokens,
        blocks=plan.blocks,
        rows=settings.request.rows,
        prefill_tokens=settings.request.prefill_tokens,
    )
    reservation = None if settings.device == "cpu" else _reserve(torch, context, settings.device, plan)
    try:
        with loading():
            steps = _steps(torch, safetensors, checkpoint, settings, limits)
    except BaseException as error:
        forget_frames(error)
        if reservation is not None:
            reservation.release()
            torch.cuda.empty_cache()
        if isinstance(error, IsochroneError) or not isinstance(error, Exception):
            raise
        if type(error).__name__ == "OutOfMemoryError":
            raise Unavailable(f"model '{context.model_name}' does not fit on {settings.device}: {error}") from None
        raise ConfigError(str(context.directory), "weights", "a checkpoint that torch can load", str(error)) from None
    if reservation is not None:
        reservation.settle()
    return TransformerExecutable(torch, steps, limits, tokenizer, settings.device, reservation)


def _reserve(torch: Any, context: LoadContext, device: str, plan: MemoryPlan) -> Reservation:
    account = Account(context.model_name, context.model_version, context.instance)
    needs = {Holding.WEIGHTS: plan.weights, Holding.CACHE: plan.cache}
    return ledger_of(device).reserve(
        account, needs, lambda: torch.cuda.mem_get_info(device), plan.workspace, context.gpu_share
    )


def _plan(torch: Any, checkpoint: Checkpoint, settings: Settings) -> MemoryPlan:
    is_cuda = settings.device != "cpu"
    free = torch.cuda.mem_get_info(settings.device)[0] if is_cuda else free_memory()
    item_size, is_paged = torch_dtype(torch, settings).itemsize, settings.attention == PAGED
    return plan_memory(checkpoint.shape, item_size, free, is_cuda, settings.request, is_paged=is_paged)


def _steps(torch: Any, safetensors: Any, checkpoint: Checkpoint, settings: Settings, limits: GenerationLimits) -> Steps:
    from isochrone.worker.backends.transformer.architecture import build_decoder
    from isochrone.worker.backends.transformer.attention.attention import gathered_decode, new_cache
    from isochrone.worker.backends.transformer.steps.steps import Steps

    decode_attention, prompt_attention = gathered_decode, None
    if settings.attention == PAGED:
        from isochrone.worker.backends.transformer.attention.paged_kernel import paged_decode
        from isochrone.worker.backends.transformer.attention.paged_prompt_kernel import paged_prompt

        decode_attention, prompt_attention = paged_decode, paged_prompt
    shape, dtype = checkpoint.shape, torch_dtype(torch, settings)
    with torch.inference_mode():
        with checkpoint.tensors(safetensors, settings.device) as get:
            # A copy: the tensors that safetensors gives are the mapped file, which may change.
            decoder = build_decoder(shape, lambda name: get(name).to(dtype, copy=True), checkpoint.prefix)
        cache = new_cache(
            shape.layers, limits.blocks, limits.block_tokens, shape.kv_heads, shape.head_dim, decoder.embedding
        )
        steps = Steps(
            decoder,
            cache,
            limits,
            decode_attention,
            prompt_attention,
            fixed_width=settings.attention == PAGED,
            graphs=settings.cuda_graphs,
            ahead=settings.launch_ahead,
        )
    if settings.device != "cpu":
        # The steps run on a stream of their own, which does not wait for this one.
        torch.cuda.synchronize(settings.device)
    return steps
