"""Makes ``offline`` importable from every room of these tests."""
