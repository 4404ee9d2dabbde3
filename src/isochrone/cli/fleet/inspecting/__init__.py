"""Commands that show the state of a fleet, its figures, events and logs. They change nothing.

All but ``logs`` ask a controller's API; ``top`` reads metrics pages, too.
"""
