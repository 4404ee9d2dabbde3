"""Changes of a model's file: each a function from one ONNX file to another, with a reason where it does not apply."""
