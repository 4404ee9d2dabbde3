"""What a server tells of itself: metrics and logs. Knows the snapshot it is handed, not the server."""
