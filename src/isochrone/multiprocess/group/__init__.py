"""What every process of a group shares: the board, the private sockets, and what can be said of each."""
