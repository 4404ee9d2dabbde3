"""A model with ranks beside the plain torch backend, on one GPU."""
