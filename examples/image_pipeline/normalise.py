"""Step 2: uint8 pixels, rows × height × width × channels, to float32, rows × channels × height × width."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        mean, deviation = (
            np.array(json.loads(parameters[key]["string_value"]), np.float32) for key in ("mean", "deviation")
        )
        # (pixel / 255 - mean) / deviation = pixel * scale + shift
        self.scale = 1 / (255 * deviation)
        self.shift = -mean / deviation

    def execute(self, requests):
        responses = []
        for request in requests:
            pixels = pb_utils.get_input_tensor_by_name(request, "pixels").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("normalised", self._normalised(pixels))]))
        return responses

    def _normalised(self, pixels):
        rows, height, width, channels = pixels.shape
        result = np.empty((rows, channels, height, width), np.float32)
        # One pass over the memory: type, layout and scale change together, and a plane is shifted while in the cache.
        for row in range(rows):
            for channel in range(channels):
                plane = result[row, channel]
                np.multiply(pixels[row, :, :, channel], self.scale[channel], out=plane)
                plane += self.shift[channel]
        return result
