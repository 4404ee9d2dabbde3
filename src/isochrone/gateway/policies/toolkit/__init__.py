"""Building blocks that several policies share: option checks, random draws, score boards. Contains no policy."""
