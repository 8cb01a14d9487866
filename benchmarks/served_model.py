"""A random model of a real size as a folder that servers can load, with a tokenizer of as many pieces as the model has.

    python benchmarks/served_model.py FOLDER [--layers 16] [--device cuda] [--tiny]

The shapes are those of Llama 3.2 1B. With fewer pieces than the model has tokens most of them would decode to nothing,
a stream would arrive in one piece, and no time to the first token could be seen. The words of synthetic prompts are
pieces: unknown words would make all prompts the same, and a prefix cache would answer them.
"""

import argparse
import sys
from pathlib import Path

from llm_perf_opt.serving.traffic.synthetic import WORDS

VOCABULARY, TINY_VOCABULARY = 128_256, 2_048
# Embeddings of this many times the usual size outweigh the layers, so the next token is certain, as it mostly is for a
# trained model. With random weights as they are the best tokens nearly tie: rounding in another kernel changes most
# answers, and no setting could be checked by them.
CERTAINTY = 50.0


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    names = ["<s>", "</s>", "<unk>", *WORDS]
    names += [f"w{number}" for number in range(len(names), vocabulary)]
    pieces = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(WordLevel(pieces, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description="A random model that servers can load")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--tiny", action="store_true", help="a sixteenth of the width and two layers: to try it on a CPU"
    )
    args = parser.parse_args()
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shrink = 16 if args.tiny else 1
    vocabulary = TINY_VOCABULARY if args.tiny else VOCABULARY
    config = LlamaConfig(
        hidden_size=2048 // shrink,
        intermediate_size=8192 // shrink,
        num_hidden_layers=2 if args.tiny else args.layers,
        num_attention_heads=32 // shrink,
        num_key_value_heads=8 // min(shrink, 8),
        head_dim=64,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(args.device), torch.no_grad():
        model = LlamaForCausalLM(config)
        model.get_input_embeddings().weight.mul_(CERTAINTY)
        model.save_pretrained(args.folder)
    write_tokenizer(args.folder, vocabulary)
    print(f"written: {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
