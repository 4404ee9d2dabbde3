"""Text generation on a GPU (or a CPU): tokens per second, deadlines per token, cancellation and prefix reuse."""
