"""GPUs as the server itself uses them: memory that clients share, and why a GPU cannot be used.

Models compute on GPUs through their own runtimes (torch, onnxruntime), which nothing here imports at start-up.
"""
