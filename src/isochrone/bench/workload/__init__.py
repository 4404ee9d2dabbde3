"""What is sent and when: arrivals, kinds, sequences, and the workload that has them all. No clock, no sockets."""
