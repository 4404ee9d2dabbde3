"""The CUDA driver without a framework: ctypes on libcuda, behind an interface that tests replace."""
