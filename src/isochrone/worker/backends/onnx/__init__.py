"""Models in ONNX files, executed by onnxruntime."""
