"""What is sent and when: arrivals, kinds of requests, sequences, and the workload that has them. No clock, no sockets."""
