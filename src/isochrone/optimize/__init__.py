"""Making a model meet its budget: measuring it, and changing how it is configured, computed or divided.

Nothing here is on the way of a request. Commands run it on files of a model repository.
"""
