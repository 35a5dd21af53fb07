"""The language models that a configuration may name, and the shapes of their architectures."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from multicard.programs.datasets import Strict


@dataclass(frozen=True)
class Architecture:
    """A Llama-3 decoder: grouped-query attention, SwiGLU feed-forward, RMS norms, rotary positions.

    `tied`: True if the output layer uses the weights of the embedding.
    """

    vocabulary: int
    layers: int
    heads: int
    kv_heads: int
    embedding: int
    feed_forward: int
    max_sequence: int
    tied: bool = False
    rope_base: float = 500_000.0
    norm_epsilon: float = 1e-5

    @property
    def kv_width(self) -> int:
        """Width of the keys, which is that of the values, over all heads."""
        return self.embedding // self.heads * self.kv_heads

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes (outputs, inputs) of the linear layers of one decoder layer, by torchtune's names."""
        wide, deep = self.embedding, self.feed_forward
        return {
            "q_proj": (wide, wide),
            "k_proj": (self.kv_width, wide),
            "v_proj": (self.kv_width, wide),
            "output_proj": (wide, wide),
            "w1": (deep, wide),
            "w2": (wide, deep),
            "w3": (deep, wide),
        }

    @property
    def config(self) -> dict[str, int | bool]:
        """The entries of Hugging Face's config.json that state the shape."""
        return {
            "hidden_size": self.embedding,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            # Of these entries, only this one distinguishes Llama 3 from 3.1, which scale positions differently.
            "max_position_embeddings": self.max_sequence,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
        }

    @property
    def parameters(self) -> int:
        """Number of weights.

        >>> ARCHITECTURES["llama3_8b"].parameters
        8030261248
        """
        linear = sum(rows * columns for rows, columns in self.linear_shapes.values())
        norms_of_layer = 2 * self.embedding
        last_norm = self.embedding
        embedding_and_output = self.vocabulary * self.embedding * (1 if self.tied else 2)
        return self.layers * (linear + norms_of_layer) + last_norm + embedding_and_output


ArchitectureName = Literal["tiny", "llama3_8b", "llama3_1_8b", "llama3_2_1b"]

# `tiny` is not published elsewhere. It is small enough for a CPU. The size of each weight that NF4 quantizes is a
# multiple of 4 × 16 384, so that 4 ranks can share the weight.
# The other shapes are those that Meta published (config.json of meta-llama/Meta-Llama-3-8B, Llama-3.1-8B and
# Llama-3.2-1B).
ARCHITECTURES: dict[str, Architecture] = {
    "tiny": Architecture(
        vocabulary=1024, layers=2, heads=8, kv_heads=4, embedding=512, feed_forward=1024, max_sequence=2048
    ),
    "llama3_8b": Architecture(
        vocabulary=128_256, layers=32, heads=32, kv_heads=8, embedding=4096, feed_forward=14_336, max_sequence=8192
    ),
    "llama3_1_8b": Architecture(
        vocabulary=128_256, layers=32, heads=32, kv_heads=8, embedding=4096, feed_forward=14_336, max_sequence=131_072
    ),
    "llama3_2_1b": Architecture(
        vocabulary=128_256,
        layers=16,
        heads=32,
        kv_heads=8,
        embedding=2048,
        feed_forward=8192,
        max_sequence=131_072,
        tied=True,
    ),
}

# The repositories in which the weights are published, for `Model.download_command`.
REPOSITORIES: dict[str, str] = {
    "llama3_8b": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama3_1_8b": "meta-llama/Meta-Llama-3.1-8B-Instruct",
    "llama3_2_1b": "meta-llama/Llama-3.2-1B-Instruct",
}


class Model(Strict):
    """A model by its architecture, and the folder of its weights."""

    architecture: ArchitectureName = Field(
        description="`tiny` is created locally with random weights; the others are Meta's."
    )
    folder: str | None = Field(
        default=None,
        description="Folder of the weights in Hugging Face's layout, with config.json and the tokenizer; never "
        "downloaded. Not used for `tiny`.",
    )

    @property
    def shape(self) -> Architecture:
        """Shape of the model."""
        return ARCHITECTURES[self.architecture]

    @property
    def download_command(self) -> str:
        """The command that would download the weights. It leaves out Meta's own copy of them, which is not needed."""
        where = shlex.quote(self.folder or f"weights/{self.architecture}")
        unread = "'original/consolidated.*'"
        return f"tune download {REPOSITORIES[self.architecture]} --output-dir {where} --ignore-patterns {unread}"

    def config_error(self) -> str | None:
        """Return `key: what is wrong` if the stated keys are wrong, else None. The folder itself is not looked for."""
        if self.architecture == "tiny":
            return None if self.folder is None else "folder: the model tiny is created here and has no folder"
        return None if self.folder else f"folder: missing; the weights can be fetched by: {self.download_command}"

    def missing_files(self) -> str | None:
        """Return that the folder of the weights does not exist; None if it exists, or if no folder is stated."""
        if self.folder is None or Path(self.folder).is_dir():
            return None
        return f"no weights: no such folder: {self.folder}"
