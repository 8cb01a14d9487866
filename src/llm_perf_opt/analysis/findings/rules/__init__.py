"""One module per rule: measured rows in, findings out."""
