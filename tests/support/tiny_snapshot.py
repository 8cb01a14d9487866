"""A tiny random text model as a folder any engine can serve: weights, configuration, tokenizer."""

from pathlib import Path


def write_tiny_snapshot(folder: Path, *, weights: bool = True) -> Path:
    """Every token decodes to a letter, so that a stream has as many pieces as tokens."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(("<s>", "</s>", *alphabet))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    wrapped.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        # Heads of 64: what engines have kernels for.
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        # Two ranks have one each.
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=0,
        # Never made: the vocabulary has no such piece, so that answers have the length that was requested.
        eos_token_id=None,
        architectures=["LlamaForCausalLM"],
    )
    if weights:
        LlamaForCausalLM(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    return folder
