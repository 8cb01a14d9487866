"""Vendor files to records."""
