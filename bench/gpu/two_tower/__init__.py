"""A two-tower recommender behind the gateway."""
