"""Not decoupled: each case returns, or raises, something else."""

import numpy as np
import triton_python_backend_utils as pb_utils

CODES = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")


class Quiet(Exception):
    pass


def response(value=1):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))])


class Cases:
    def right(self, requests):
        return [response() for _ in requests]

    def too_few(self, requests):
        return []

    def too_many(self, requests):
        return [response(), response()]

    def no_list(self, requests):
        return 5

    def tuple(self, requests):
        return tuple(response() for _ in requests)

    def numbers(self, requests):
        return [5 for _ in requests]

    def tensors(self, requests):
        return [pb_utils.Tensor("OUT", np.zeros(1, np.int32)) for _ in requests]

    def raises(self, requests):
        raise ValueError("of its own")

    def raises_in_a_function(self, requests):
        return self.raises(requests)

    def raises_quietly(self, requests):
        raise Quiet()

    def raises_in_another_language(self, requests):
        raise ValueError("größer — 太大")

    def raises_for_the_server(self, requests):
        raise pb_utils.TritonModelException("for the server")

    def divides(self, requests):
        return 1 / 0

    def imports(self, requests):
        import no_such_module_anywhere

        return no_such_module_anywhere

    def misses_an_output(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def names_another_output(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", np.zeros(1, np.int32))]) for _ in requests]

    def another_type(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float64))]) for _ in requests]

    def another_shape(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((3, 2), np.int32))]) for _ in requests]

    def error_of_code(self, requests):
        responses = []
        for request in requests:
            code = int(pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0])
            error = pb_utils.TritonError(f"{CODES[code]} it is", getattr(pb_utils.TritonError, CODES[code]))
            responses.append(pb_utils.InferenceResponse(error=error))
        return responses

    def error_and_tensors(self, requests):
        tensors = [pb_utils.Tensor("OUT", np.zeros(1, np.int32))]
        return [pb_utils.InferenceResponse(tensors, pb_utils.TritonError("both")) for _ in requests]


class TritonPythonModel:
    def execute(self, requests):
        case = pb_utils.get_input_tensor_by_name(requests[0], "CASE").as_numpy()[0].decode()
        return getattr(Cases(), case)(requests)
