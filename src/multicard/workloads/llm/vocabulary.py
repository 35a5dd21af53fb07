"""The tokens of a Llama-3 tokenizer, in the file that tiktoken reads: one `token in base64, rank` a line.

A tokenizer made here is trained as Llama 3's was: byte-level pairs, within the pieces of Meta's pattern.
"""

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from multicard.core.errors import UserError
from multicard.core.files import atomic_write

# Pieces that no token crosses, as published in Meta's `llama/tokenizer.py` of Llama 3; torchtune encodes by the same.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
BYTES = [bytes([value]) for value in range(256)]
LFS_POINTER = b"version https://git-lfs"


def train_vocabulary(texts: Iterable[str], size: int) -> list[bytes]:
    """Train byte-level pairs; the tokens by rank: the 256 bytes, then the merges as they were found.

    `tokenizers` orders pairs by count and then by id, and the ids of bytes by the alphabet, so the same texts give the
    same tokens in every process. Fewer than `size` come out where no pair is left to merge.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    ids = tokenizer.get_vocab()
    values = _byte_values()
    merges = sorted((token for token in ids if len(token) > 1), key=ids.__getitem__)
    return [*BYTES, *(bytes(values[character] for character in token) for token in merges)]


def _byte_values() -> dict[str, int]:
    """Byte of each character that stands for it in byte-level tokens: GPT-2's `bytes_to_unicode`, reversed."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(others)}


def write_vocabulary(path: Path, tokens: Sequence[bytes]) -> None:
    """Write tokens in the order of their ranks."""
    lines = [b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    with atomic_write(path) as temporary:
        temporary.write_bytes(b"".join(lines))


def read_vocabulary(path: Path) -> list[bytes]:
    """Read tokens by rank.

    Raises
    ------
    UserError
        If lines are not tokens and their ranks in order, a token comes twice, or a byte is no token.
    """
    content = path.read_bytes()
    if content.startswith(LFS_POINTER):
        raise UserError(f"{path}: found a Git LFS pointer, expected the tokenizer itself")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if line:
            try:
                encoded, rank = line.split()
                token = base64.b64decode(encoded, validate=True)
                sound = int(rank) == len(ranks) and token not in ranks
            except ValueError:
                sound = False
            if not sound:
                raise UserError(f"{path}, line {number}: expected another token in base64 and the rank {len(ranks)}")
            ranks[token] = len(ranks)
    missing = [value for value in BYTES if value not in ranks]
    if missing:
        raise UserError(
            f"{path}: found no token for {len(missing)} of 256 bytes, 0x{missing[0].hex()} the first; expected each"
        )
    return list(ranks)
