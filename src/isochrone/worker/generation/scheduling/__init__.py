"""What each step computes: pure decisions over sequences, the blocks of the cache and the times of steps."""
