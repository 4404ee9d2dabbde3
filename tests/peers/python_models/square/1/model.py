"""Decoupled: n responses of n, of which the last one carries the final flag; from a thread, after execute returned."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            count = int(request.inputs()[0].as_numpy().reshape(-1)[0])
            thread = threading.Thread(target=self.answer, args=(request.get_response_sender(), count))
            thread.start()
            self.threads.append(thread)
        return None

    def answer(self, sender, count):
        for number in range(1, count + 1):
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([count], np.int32))])
            if number == count:
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                sender.send(response)
        if count == 0:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
