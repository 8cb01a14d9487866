"""What `llm-perf optimize` shows: `optimize_text` for terminals and markdown, `optimize_page` as HTML; of a
server `server_text` and `server_page`.
"""
