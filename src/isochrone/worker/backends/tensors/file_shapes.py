"""Whether the dimensions that a configuration declares fit those of a model's file. Pure; the messages are Triton's."""

from __future__ import annotations

from isochrone.errors import InvalidArgument
from isochrone.models.shapes import shown


def check_dims(
    model: str, tensor: str, file: tuple[int, ...], dims: tuple[int, ...], *, batched: bool, output: bool
) -> None:
    """Rejects ``dims`` that contradict the shape in the ``file``, where -1 is a free size.

    Fixed sizes of inputs must be declared as they are: a request of another size would always fail. An output may be
    declared with a free size.
    """
    if not file:
        if any(size != 1 for size in dims):
            raise InvalidArgument(
                f"unable to load model '{model}', scalar tensor '{tensor}', should only provide 1 in the model"
                " configuration when the model doesn't support batching. Model configuration provided:"
                f" {shown(dims)}."
            )
        return
    where = f"model '{model}', tensor '{tensor}': "
    if batched and file[0] != -1:
        raise InvalidArgument(
            f"{where}for the model to support batching the shape should have at least 1 dimension and the first"
            f" dimension must be -1; but shape expected by the model is {shown(file)}"
        )
    declared = (-1, *dims) if batched else dims
    if len(declared) == len(file) and all(
        size in (-1, own) or (output and own == -1) for size, own in zip(file, declared, strict=True)
    ):
        return
    given = (
        "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete"
        f" shape {shown(declared)})"
        if batched
        else f"(shape {shown(declared)})"
    )
    raise InvalidArgument(
        f"{where}the model expects {len(file)} dimensions (shape {shown(file)}) but the model configuration specifies"
        f" {len(declared)} dimensions {given}"
    )
