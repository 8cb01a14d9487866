"""What `llm-perf optimize` shows: `text` for terminals and markdown, `page` as HTML; of a
server `server_text` and `server_page`.
"""
