"""From a model repository on disk to a validated description of a model version.

``repository`` finds models and their versions, ``configuration`` reads, completes and validates config.pbtxt,
``signature`` is the check that every request must pass, ``onnx_file`` reads the tensors that an ONNX file declares.
This package imports no event loop, no socket and no backend.
"""
