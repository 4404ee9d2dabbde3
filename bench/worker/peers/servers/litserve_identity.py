"""A LitServe API that returns 64 floats: litserve_identity.py PORT."""

import sys

import litserve  # type: ignore[import-not-found]


class Identity(litserve.LitAPI):  # type: ignore[misc]
    """The three steps that LitServe requires, each as short as possible."""

    def setup(self, device: str) -> None:
        pass

    def decode_request(self, request: dict[str, list[float]]) -> list[float]:
        return request["values"]

    def predict(self, values: list[float]) -> list[float]:
        return values

    def encode_response(self, output: list[float]) -> dict[str, list[float]]:
        return {"values": output}


if __name__ == "__main__":
    server = litserve.LitServer(Identity(), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
