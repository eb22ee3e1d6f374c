"""A tiny random model with SmolLM2's tokenizer, for the smoke run: every step is real, nothing it says makes sense.

python quickstart/tiny_model.py runs/smoke/tiny_model
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from text2grad.errors import command
from text2grad.models import load_tokenizer


@command
def main() -> None:
    tokenizer = load_tokenizer("smollm2")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(sys.argv[1])
    tokenizer.save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
