"""Benchmarks of control loops: many agents over a link that degrades, dies and returns."""
