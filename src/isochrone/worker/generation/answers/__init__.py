"""From tokens to an answer: the job of a request, its text and its responses."""
