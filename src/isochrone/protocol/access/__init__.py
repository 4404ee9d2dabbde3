"""What a server's operator says of headers: which APIs need one, and which become request parameters."""
