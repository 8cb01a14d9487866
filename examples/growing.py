"""Attention over a cache that grows by one in every step, with no mark and no range.

    llm-perf run -- python examples/growing.py

On Hopper torch hands this attention to cuDNN, which builds a kernel for every length it has not met: the capture says
so.
"""

import torch

torch.manual_seed(0)
weight = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
query = torch.randn(1, 32, 1, 64, device="cuda", dtype=torch.bfloat16)
cache = torch.randn(2, 1, 8, 600, 64, device="cuda", dtype=torch.bfloat16)
for length in range(400, 460):
    keys, values = (half[:, :, :length].repeat_interleave(4, dim=1) for half in cache)
    for _ in range(8):
        read = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
        hidden = read.reshape(1, 2048) @ weight
        hidden = torch.nn.functional.silu(hidden) * hidden
    hidden.sum().item()
print("done")
