"""Manifest to what people read."""
