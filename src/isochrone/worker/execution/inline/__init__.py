"""Runs on the loop's thread: ``inline_runs`` decides which, ``compute_stage`` runs those of a turn in a row, and
``watchdog`` ends one that hangs. Who asks for such a run is not known here.
"""
