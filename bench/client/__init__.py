"""Benchmarks of the Python client and of the first steps with it."""
