"""Decoupled: each case answers in another way, rightly or wrongly."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(value=1):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))])


def failure(text="as asked"):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.UNAVAILABLE))


class Cases:
    def none(self, sender):
        sender.send(flags=FINAL)

    def one(self, sender):
        sender.send(response(), flags=FINAL)

    def three(self, sender):
        for value in range(3):
            sender.send(response(value))
        sender.send(flags=FINAL)

    def error(self, sender):
        sender.send(failure(), flags=FINAL)

    def error_alone(self, sender):
        sender.send(failure())
        sender.send(flags=FINAL)

    def error_after_two(self, sender):
        sender.send(response(0))
        sender.send(response(1))
        sender.send(failure("in the middle"), flags=FINAL)

    def raise_first(self, sender):
        raise ValueError("before it answered")

    def raise_after_two(self, sender):
        sender.send(response(0))
        sender.send(response(1))
        raise ValueError("in the middle")

    def raise_after_the_last(self, sender):
        sender.send(response(0), flags=FINAL)
        raise ValueError("too late")

    def send_after_the_last(self, sender):
        sender.send(response(0), flags=FINAL)
        sender.send(response(1))

    def unknown_flag(self, sender):
        sender.send(response(), flags=7)

    def nothing(self, sender):
        sender.send()

    def from_a_thread(self, sender):
        def later():
            for value in range(4):
                sender.send(response(value))
            sender.send(flags=FINAL)

        threading.Timer(0.02, later).start()

    def other_outputs(self, sender):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", np.zeros(1, np.int32))]))
        sender.send(response(2), flags=FINAL)

    def no_tensors(self, sender):
        sender.send(pb_utils.InferenceResponse([]))
        sender.send(pb_utils.InferenceResponse([]), flags=FINAL)

    def returned(self, sender):
        sender.send(flags=FINAL)
        return [response()]


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "CASE").as_numpy()[0].decode()
            returned = getattr(Cases(), case)(request.get_response_sender())
            if returned is not None:
                return returned
        return None
