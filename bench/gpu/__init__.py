"""What needs a GPU: raw graph replay beside the worker, a recommender through the gateway, memory, SM partitions."""
