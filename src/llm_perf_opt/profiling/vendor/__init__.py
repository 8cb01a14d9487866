"""Command lines of the vendor tools, as pure functions."""
