"""The policy ``prefix``: requests whose prompts begin alike go to the worker that has that beginning in its cache."""
