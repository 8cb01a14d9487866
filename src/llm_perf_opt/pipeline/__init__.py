"""Registry, plan, execution and provenance of a run."""
