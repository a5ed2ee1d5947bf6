"""A language model as small as vLLM takes: random weights, real tokens, real KV blocks."""

import json
from pathlib import Path

# One line per turn; what matters is that each turn's prompt begins with the whole prompt of the turn before.
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# A change here builds the model anew.
SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}


def build(directory: Path, sample: str) -> None:
    """Writes the model and a tokenizer trained on `sample` to `directory`, unless it is there."""
    done = directory / "built"
    recipe = json.dumps({"shape": SHAPE, "template": CHAT_TEMPLATE, "sample": sample})
    if done.exists() and done.read_text() == recipe:
        return
    # Late: they take seconds.
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    directory.mkdir(parents=True, exist_ok=True)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        [sample], vocab_size=SHAPE["vocab_size"], special_tokens=["<s>", "</s>", "<pad>"], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    torch.manual_seed(1)
    config = LlamaConfig(**SHAPE, bos_token_id=0, eos_token_id=1, pad_token_id=2, torch_dtype="bfloat16")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    done.write_text(recipe)
