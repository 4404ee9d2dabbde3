"""Triton's rate limiter: instances of all models share resources, and take turns by priority."""
