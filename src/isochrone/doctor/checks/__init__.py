"""The checks, by theme; ``catalog`` lists them in the order of the report. Pure: facts and times in, a finding out.

A setting "costs latency" if its effect is certain or measured here; what only might help is advice.
"""
