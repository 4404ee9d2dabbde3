"""Scenarios: the frozen records that describe one, and the reader of scenario files.

Must never run a scenario or hold state of a run.
"""
