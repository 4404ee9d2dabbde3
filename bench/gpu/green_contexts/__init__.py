"""A small model beside a batch job, with and without SMs of its own."""
