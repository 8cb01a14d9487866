"""What `llm-perf optimize` shows: `text` for terminals and markdown, `page` as HTML."""
