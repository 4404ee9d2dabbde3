"""Trailers longer than one length byte can say: a caller that asks for everything at once still gets its answer."""

from __future__ import annotations

import numpy as np
import tritonclient.grpc as triton

from server_process import ServerProcess


def test_timing_and_load_together(sample_server: ServerProcess) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{sample_server.grpc_port}") as client:
        metadata = client.get_model_metadata("add_sub", as_json=True)
        inputs = []
        for declared in metadata["inputs"]:
            shape = [1 if int(size) < 0 else int(size) for size in declared["shape"]]
            tensor = triton.InferInput(declared["name"], shape, declared["datatype"])
            tensor.set_data_from_numpy(np.ones(shape, triton.triton_to_np_dtype(declared["datatype"])))
            inputs.append(tensor)
        headers = {"x-isochrone-timing": "1", "endpoint-load-metrics-format": "text"}
        answer = client.infer("add_sub", inputs, headers=headers, client_timeout=10)
        assert answer.as_numpy(metadata["outputs"][0]["name"]) is not None
