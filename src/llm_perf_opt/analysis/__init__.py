"""Pure analysis: FLOPs, bytes, rooflines, timelines."""
