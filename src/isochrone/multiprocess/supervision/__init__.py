"""The supervisor: forks, waits, restarts; and what it prepares before it forks."""
