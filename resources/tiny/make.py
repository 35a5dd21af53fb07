"""Write the tokenizer of the model `tiny`: `python resources/tiny/make.py`, or `--out FOLDER` to write it elsewhere.

It is trained as Llama 3's was, on the shipped texts: byte-level pairs within the pieces of Meta's pattern. `tokenizers`
orders pairs by count and then by id, so the same texts give the same tokens in every process.
"""

import argparse
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
# Pieces that no token crosses, as published in Meta's `llama/tokenizer.py` of Llama 3; torchtune encodes by the same.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def strings(value: Any) -> Iterator[str]:
    """Every text of a sample."""
    if isinstance(value, str):
        yield value
    else:
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def texts() -> Iterator[str]:
    """Every text of every sample, file by file in the order of their names."""
    for file in sorted((HERE.parent / "text").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            yield from strings(json.loads(line))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=HERE, help="folder to write it to")
out = parser.parse_args().out
special = json.loads((HERE / "special_tokens.json").read_text(encoding="utf-8"))["added_tokens"]
tokenizer = Tokenizer(models.BPE())
pieces = pre_tokenizers.Split(Regex(PIECES), "isolated")
to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, to_bytes])
trainer = trainers.BpeTrainer(vocab_size=special[0]["id"], initial_alphabet=to_bytes.alphabet(), show_progress=False)
tokenizer.train_from_iterator(texts(), trainer)
ids = tokenizer.get_vocab()
# Characters that stand for bytes: GPT-2's `bytes_to_unicode`.
printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = sorted(set(range(256)) - set(printable))
values = {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(others)}
merges = sorted((token for token in ids if len(token) > 1), key=ids.__getitem__)
tokens = [bytes([value]) for value in range(256)]
tokens += [bytes(values[character] for character in token) for token in merges]
lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
(out / "tokenizer.model").write_text("".join(lines), encoding="ascii", newline="\n")
