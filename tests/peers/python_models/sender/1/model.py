"""Answers through the response sender, rightly or wrongly, though it is not decoupled."""

import gc
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(value=1):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))])


def failure():
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("as asked", pb_utils.TritonError.NOT_FOUND))


class Cases:
    def with_the_flag(self, sender):
        sender.send(response(), flags=FINAL)

    def without_the_flag(self, sender):
        sender.send(response())

    def then_the_flag(self, sender):
        sender.send(response())
        sender.send(flags=FINAL)

    def error(self, sender):
        sender.send(failure(), flags=FINAL)

    def flag_first(self, sender):
        sender.send(flags=FINAL)

    def unknown_flag(self, sender):
        sender.send(response(), flags=5)

    def nothing(self, sender):
        sender.send()

    def raise_first(self, sender):
        raise ValueError("before it answered")

    def from_a_thread(self, sender):
        threading.Timer(0.05, sender.send, (response(3), FINAL)).start()

    def twice(self, sender):
        sender.send(response(1), flags=FINAL)
        try:
            sender.send(response(2), flags=FINAL)
        except pb_utils.TritonModelException as error:
            KEPT.append(str(error))

    def flag_twice(self, sender):
        sender.send(response(1), flags=FINAL)
        try:
            sender.send(flags=FINAL)
        except pb_utils.TritonModelException as error:
            KEPT.append(str(error))

    def kept(self, sender):
        text = np.array([" | ".join(KEPT).encode()], np.object_)
        KEPT.clear()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]), flags=FINAL)

    def cancelled(self, sender):
        sender.send(response(int(sender.is_cancelled())), flags=FINAL)

    def no_such_output(self, sender):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", np.zeros(1, np.int32))]), flags=FINAL)


KEPT = []


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "CASE").as_numpy()[0].decode()
            getattr(Cases(), case)(request.get_response_sender())
        gc.collect()
        return None
