"""Pytest fixtures that start the test cluster."""
