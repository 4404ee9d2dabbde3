"""What a request asks for: its inputs, and how its tokens are to be chosen."""
