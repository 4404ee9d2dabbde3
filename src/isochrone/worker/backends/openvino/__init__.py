"""Models that OpenVINO reads (model.xml, model.onnx and others), run on the CPU."""
