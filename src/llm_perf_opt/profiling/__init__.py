"""Stages, vendor tools and their parsers."""
