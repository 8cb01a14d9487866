"""Text generation with transformers, with no mark and no range.

    llm-perf run -- python examples/generate.py [FOLDER] [--tokens 64] [--prompt 512] [--repeats 4]

FOLDER is a model that `AutoModelForCausalLM` can load. Without one: a Llama 3.2 1B with random weights; --tiny makes it
small enough for a CPU.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("folder", nargs="?")
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--prompt", type=int, default=512)
parser.add_argument("--repeats", type=int, default=4)
parser.add_argument("--tiny", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if args.folder:
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.bfloat16)
else:
    shrink = 8 if args.tiny else 1
    config = LlamaConfig(
        hidden_size=2048 // shrink,
        intermediate_size=8192 // shrink,
        num_hidden_layers=16 // shrink,
        num_attention_heads=32 // shrink,
        num_key_value_heads=8 // shrink,
        head_dim=64,
        vocab_size=128_256 // shrink,
        tie_word_embeddings=True,
        max_position_embeddings=131_072,
    )
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = LlamaForCausalLM(config)
model.to(device).eval()
for _ in range(args.repeats):
    prompt = torch.randint(10, model.config.vocab_size, (1, args.prompt), device=device)
    model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=args.tokens,
        min_new_tokens=args.tokens,
        do_sample=False,
        pad_token_id=0,
    )
print(f"{args.repeats} x {args.tokens} tokens")
