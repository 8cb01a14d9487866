"""One cause per `.toml`: cells, words and advice.

A `.py` of the same name judges it where a cell alone says too little.

`cell_alone` judges all causes without a module of their own.
"""
