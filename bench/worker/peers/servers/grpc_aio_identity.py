"""A grpc.aio server whose ModelInfer returns the raw input: grpc_aio_identity.py PORT."""

import asyncio
import sys

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

# The bench's largest tensor is 1 MB; grpcio's default limit of 4 MB is lifted as Triton lifts it.
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Identity(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Only ModelInfer is implemented: the bench calls nothing else here."""

    async def ModelInfer(  # noqa: N802 (the protocol's name)
        self, request: service_pb2.ModelInferRequest, context: object
    ) -> service_pb2.ModelInferResponse:
        tensor = request.inputs[0]
        response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
        response.outputs.add(name="OUTPUT0", datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(request.raw_input_contents[0])
        return response


async def serve(port: int) -> None:
    server = grpc.aio.server(options=UNLIMITED)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Identity(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
