"""One cause per `.toml`: cells, words and advice.

A `.py` of the same name judges it where a cell alone says too little.

Causes without their own module are judged by the one their data names (`judged_by`): `cell_alone` (the rule) by
their cells, `sampled_time` by samples of stacks, `moving_data` by kernels that move data, `ncu_roof` by how near
memory-bound kernels come to their roofline.
"""
