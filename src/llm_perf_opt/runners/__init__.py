"""Entry points of processes."""
