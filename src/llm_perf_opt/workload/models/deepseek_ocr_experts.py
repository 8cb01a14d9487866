"""The routed experts of DeepSeek-OCR's decoder, three ways: grouped on GPUs, a loop on CPUs, batched on meta."""

# torch is not type-checked here, so its Module is Any.
# mypy: disallow-subclassing-any=False

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.workload.models.deepseek_ocr_geometry import DecoderGeometry

ExpertsMode = Literal["grouped", "loop", "batched"]


def choose_experts_mode(device: torch.device, dtype: torch.dtype) -> ExpertsMode:
    """Grouped products need bfloat16 and compute capability 8; meta has no values to loop over."""
    if device.type == "meta":
        return "batched"
    if device.type == "cuda" and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) >= (8, 0):
        return "grouped"
    return "loop"


class Router(nn.Module):
    """Softmax over all experts in float32, then the largest few."""

    def __init__(self, g: DecoderGeometry) -> None:
        super().__init__()
        self.top = g.num_experts_per_tok
        self.normalises = g.norm_topk_prob
        self.scale = g.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(g.n_routed_experts, g.hidden_size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.linear(x.float(), self.weight.float()).softmax(dim=-1)
        shares, chosen = scores.topk(self.top, dim=-1)
        if self.normalises:
            return chosen, (shares / (shares.sum(dim=-1, keepdim=True) + 1e-20)).to(x.dtype)
        return chosen, (shares * self.scale).to(x.dtype)


class Experts(nn.Module):
    """Gated MLPs stacked in two tensors: [experts, 2 * inner, width] and [experts, width, inner]."""

    def __init__(self, g: DecoderGeometry) -> None:
        super().__init__()
        self.mode: ExpertsMode = "batched"
        self.gate_up_proj = nn.Parameter(torch.empty(g.n_routed_experts, 2 * g.moe_intermediate_size, g.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(g.n_routed_experts, g.hidden_size, g.moe_intermediate_size))

    def forward(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        if self.mode == "grouped":
            return self._grouped(x, chosen, shares)
        if self.mode == "batched":
            return self._batched(x, chosen, shares)
        return self._one_token(x, chosen, shares) if x.shape[0] == 1 else self._loop(x, chosen, shares)

    def _grouped(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Rows sorted by expert, one product for all experts; nothing waits for the host, sums in a fixed order."""
        tokens, top = chosen.shape
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        counts = (flat[:, None] == torch.arange(self.gate_up_proj.shape[0], device=flat.device)).sum(dim=0)
        ends = counts.cumsum(dim=0).to(torch.int32)
        hidden = F.grouped_mm(x[order // top], self.gate_up_proj.transpose(-2, -1), offs=ends)
        rows = F.grouped_mm(gated(hidden), self.down_proj.transpose(-2, -1), offs=ends)
        back = rows[order.argsort()].view(tokens, top, -1)
        return (back * shares[..., None]).sum(dim=1)

    def _batched(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """One product per token and expert with the weights gathered: no control flow, memory in proportion."""
        tokens, top = chosen.shape
        flat = chosen.reshape(-1)
        rows = x.repeat_interleave(top, dim=0)[..., None]
        hidden = torch.bmm(self.gate_up_proj[flat], rows)[..., 0]
        out = torch.bmm(self.down_proj[flat], gated(hidden)[..., None])[..., 0]
        return (out.view(tokens, top, -1) * shares[..., None]).sum(dim=1)

    def _loop(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Expert after expert, each with its tokens: reads only the weights that are used."""
        tokens, top = chosen.shape
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        rows = x.new_empty(tokens * top, x.shape[1])
        start = 0
        for expert, count in enumerate(flat.bincount(minlength=self.gate_up_proj.shape[0]).tolist()):
            if count:
                at = order[start : start + count]
                rows[at] = self._expert(x[at // top], expert)
                start += count
        return (rows.view(tokens, top, -1) * shares[..., None]).sum(dim=1)

    def _one_token(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        rows = torch.cat([self._expert(x, expert) for expert in chosen[0].tolist()])
        return shares @ rows

    def _expert(self, x: Tensor, expert: int) -> Tensor:
        return F.linear(gated(F.linear(x, self.gate_up_proj[expert])), self.down_proj[expert])


def gated(hidden: Tensor) -> Tensor:
    """The first half opens the second."""
    gate, up = hidden.chunk(2, dim=-1)
    return F.silu(gate) * up
