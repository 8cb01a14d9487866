"""The founding documents, requirement by requirement; docs/founding.md has the table of all of them."""
