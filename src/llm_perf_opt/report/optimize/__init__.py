"""A search for a faster configuration as people read it: `text` for the terminal and markdown, `page` for HTML."""
