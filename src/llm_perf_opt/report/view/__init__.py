"""What a report shows: every decision about a run made here, none in the renderers."""
