"""A network link with a chosen round trip, bandwidth and jitter, for benches and tests."""
