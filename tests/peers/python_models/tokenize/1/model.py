"""Text to numbers: the length of each word, padded to eight."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            rows = np.zeros((len(texts), 8), np.int64)
            for row, (text,) in enumerate(texts):
                lengths = [len(word) for word in text.decode("utf-8").split()][:8]
                rows[row, : len(lengths)] = lengths
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOKENS", rows)]))
        return responses
