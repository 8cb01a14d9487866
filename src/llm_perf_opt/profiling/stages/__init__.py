"""The built-in stages."""
