"""The settings of a gateway's decisions: ``gateway_rules`` holds them, ``file`` and ``reading`` read them from a file.

They stand above the decisions that they configure. No decision may import this package: each takes its own rules.
"""
