"""Benchmarks of models on their way to the workers."""
