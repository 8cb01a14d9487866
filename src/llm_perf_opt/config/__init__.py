"""The typed configuration and the ways into it."""
