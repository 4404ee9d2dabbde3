"""The way out when the epoch and its copy cannot be read: gateways offer what they serve by, and on request the epoch
is rebuilt from that."""
