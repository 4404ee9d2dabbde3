"""Remote models: served here, computed by another server.

As a step of an ensemble, a remote model is how the first stage of a divided model sends its features straight to the
second one on another machine. ``runner`` sends each request at once and queues none: the other server batches, with the
rows of every sender.
"""
