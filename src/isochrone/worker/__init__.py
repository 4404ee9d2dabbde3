"""One process that runs models: queue, batch, instance, answer."""
