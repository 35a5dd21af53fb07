"""Write prepared samples as tokens in the format of Llama 3, and mark the tokens that are learned.

The tokens, the learned ones among them and the cut to the sequence length are those of torchtune 0.6.1's data sets, so
that a library without such data sets trains on the same sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from multicard.core.files import read_object
from multicard.programs.datasets import TextKind

ANSWERS = ("chosen", "rejected")  # columns of a sample of the kind `preference`
IGNORED = -100  # label of a token that is not learned, as PyTorch's cross-entropy defines it
BEGIN, END, PAD = "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>"
START_HEADER, END_HEADER, END_OF_TURN = "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
# Llama 3's first special tokens in the order of their ids, which follow those of the ordinary tokens.
SPECIAL_TOKENS = (
    BEGIN, END, "<|reserved_special_token_0|>", "<|reserved_special_token_1|>", PAD, "<|step_id|>", START_HEADER,
    END_HEADER, "<|eom_id|>", END_OF_TURN, "<|python_tag|>",
)  # fmt: skip
# The prompts of an instruction with and without an input, as published with the Alpaca data set.
WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n"
    "### Response:\n"
)
WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)

# A prepared sample: a row of train.jsonl.
Row = Mapping[str, Any]


class Turn(NamedTuple):
    """A message of a conversation."""

    role: str
    content: str
    is_learned: bool


class TokenSequence(TypedDict):
    """A sequence of tokens, and its labels: each the token itself if it is learned, else `IGNORED`."""

    input_ids: list[int]
    labels: list[int]


def read_tokenizer(path: Path, special_tokens: Path | None) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a file in tiktoken's form.

    `special_tokens`: a tokenizer.json with the special tokens, ordered by their ids; None for Llama 3's.
    """
    names: Sequence[str] = SPECIAL_TOKENS
    if special_tokens is not None:
        names = [token["content"] for token in read_object(special_tokens)["added_tokens"]]
    converted = TikTokenConverter(vocab_file=str(path), extra_special_tokens=names).converted()
    # Words of a sample that look like a special token are ordinary text.
    return PreTrainedTokenizerFast(
        tokenizer_object=converted, bos_token=BEGIN, eos_token=END, pad_token=PAD, split_special_tokens=True
    )


class Llama3Format:
    """Writes samples as sequences of at most `longest` tokens; `tokenizer`: from `read_tokenizer`."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, longest: int):
        self._tokenizer = tokenizer
        self._longest = longest
        ids = tokenizer.get_vocab()
        self._begin, self._end = ids[BEGIN], ids[END]
        self._start_header, self._end_header = ids[START_HEADER], ids[END_HEADER]
        self._end_of_turn = ids[END_OF_TURN]

    def sample(self, kind: TextKind, row: Row) -> TokenSequence:
        """Return a sample as a sequence. Of the kind `preference` it is the chosen answer."""
        return self._completion(row["text"]) if kind == "completion" else self._conversation(TURNS[kind](row))

    def pair(self, row: Row) -> dict[str, list[int]]:
        """Return both sequences of a sample of the kind `preference`, by the names `chosen_…` and `rejected_…`."""
        pair: dict[str, list[int]] = {}
        for answer in ANSWERS:
            sequence = self._conversation(_turns(row[answer]))
            pair |= {f"{answer}_input_ids": sequence["input_ids"], f"{answer}_labels": sequence["labels"]}
        return pair

    def _completion(self, text: str) -> TokenSequence:
        """Return a running text, all of which is learned. It is cut one token earlier than other samples."""
        tokens = [self._begin, *self._encode(text), self._end][: self._longest - 1]
        return {"input_ids": tokens, "labels": list(tokens)}

    def _conversation(self, turns: Sequence[Turn]) -> TokenSequence:
        """Return a conversation. The tokens that begin and end it are not learned; one that is cut has an end, too."""
        tokens = [self._begin]
        labels = [IGNORED]
        for turn in turns:
            written = self._written(turn)
            tokens += written
            labels += written if turn.is_learned else [IGNORED] * len(written)
        tokens = [*tokens[: self._longest - 1], self._end]
        labels = [*labels[: self._longest - 1], IGNORED]
        return {"input_ids": tokens, "labels": labels}

    def _encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _written(self, turn: Turn) -> list[int]:
        """Return the header, the content and the end of a turn. The parts are encoded one by one."""
        header = [self._start_header, *self._encode(turn.role), self._end_header, *self._encode("\n\n")]
        return [*header, *self._encode(turn.content.strip()), self._end_of_turn]


def _turns(messages: Sequence[Mapping[str, str]]) -> list[Turn]:
    """Return the messages of a conversation; those of the assistant are learned."""
    return [Turn(message["role"], message["content"], message["role"] == "assistant") for message in messages]


def _instruction(row: Row) -> list[Turn]:
    """Return task and result. Both are learned, as torchtune learns them."""
    prompt = WITH_INPUT if row["input"] else WITHOUT_INPUT
    return [Turn("user", prompt.format_map(row), True), Turn("assistant", row["output"], True)]


def _answered(question: str, answer: str) -> list[Turn]:
    return [Turn("user", question, False), Turn("assistant", answer, True)]


# The turns of a sample by its kind; only the kind `completion` has none.
TURNS: Mapping[TextKind, Callable[[Row], list[Turn]]] = {
    "instruction": _instruction,
    "chat": lambda row: _turns(row["messages"]),
    "summary": lambda row: _answered(row["dialogue"], row["summary"]),
    "grammar": lambda row: _answered(row["input"], row["output"]),
    "preference": lambda row: _turns(row["chosen"]),
}
