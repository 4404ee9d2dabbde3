"""Step 1: JPEG or PNG bytes to 224 × 224 RGB pixels. Pillow decodes and resizes outside the interpreter's lock."""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, UnidentifiedImageError

SIZE = 224


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "image").as_numpy().reshape(-1)
        pixels = np.empty((len(files), SIZE, SIZE, 3), np.uint8)
        for row, content in enumerate(files):
            try:
                pixels[row] = decoded(content)
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
                # An answer, not an exception: the other requests of the batch have nothing to do with it.
                message = f"image {row}: expected a JPEG or PNG file, given {len(content)} bytes that are none"
                message += "" if isinstance(error, UnidentifiedImageError) else f": {error}"
                error = pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG)
                return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("pixels", pixels)])


def decoded(content):
    with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
        # A large JPEG is decoded at an eighth, a quarter or half of its size, whichever is still large enough.
        image.draft("RGB", (SIZE, SIZE))
        return image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
