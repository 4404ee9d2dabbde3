"""Models in ONNX files, executed by onnxruntime."""

from isochrone.models import onnx_telemetry as onnx_telemetry  # before the modules of this package import onnxruntime
