"""Decision trees through our worker: the backend fil beside the same model as ONNX, and beside the bare library."""
