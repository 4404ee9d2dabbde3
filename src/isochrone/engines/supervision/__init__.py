"""The supervisor: keeps the processes of one machine as the fleet record asks for.

``reconcile`` decides (pure) what to start, drain and stop, from what ``observation`` and ``probes`` report;
``supervisor`` does it. The others report to the store and to the terminal. Must never stop a process because the store
is unavailable.
"""
