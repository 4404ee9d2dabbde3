"""The search of ``isochrone profile`` beside a full sweep of the same configurations."""
