"""FLOPs and bytes of a model from its configuration."""
