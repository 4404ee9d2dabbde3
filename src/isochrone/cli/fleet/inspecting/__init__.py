"""Commands that show the state of a fleet, its events and logs. They change nothing.

All but ``logs`` ask a controller's API.
"""
