"""The results of a run: outcomes counted per phase and kind of request, shown as tables and plots.

Must never influence a run.
"""
