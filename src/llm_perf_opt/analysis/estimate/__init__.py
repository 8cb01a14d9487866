"""From steps to requests: what serving a model takes, at best and in all likelihood.

`serving_bound` puts the bounds of single steps together over whole requests.
"""
