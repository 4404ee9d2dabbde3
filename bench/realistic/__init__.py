"""Our worker, alone and behind our gateway, beside Triton, with the requests that agents send. See bench/README.md."""
