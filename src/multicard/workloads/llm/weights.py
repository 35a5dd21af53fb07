"""The weights of a Llama-3 checkpoint as Hugging Face ships them; of its safetensors files only headers are read."""

import math
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from multicard.core.errors import UserError
from multicard.core.files import read_object
from multicard.core.text import first_of, printable
from multicard.experiment.models import Architecture
from multicard.workloads.llm.vocabulary import LFS_POINTER

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
DTYPES = ("BF16", "F16", "F32")  # that weights to be tuned may have


class Tensor(NamedTuple):
    """A tensor as a header describes it: its type by the format's name, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def tensor_shapes(shape: Architecture) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of a checkpoint, by Hugging Face's names."""
    linear = shape.linear_shapes
    layer = {
        "self_attn.q_proj": linear["q_proj"],
        "self_attn.k_proj": linear["k_proj"],
        "self_attn.v_proj": linear["v_proj"],
        "self_attn.o_proj": linear["output_proj"],
        "mlp.gate_proj": linear["w1"],
        "mlp.down_proj": linear["w2"],
        "mlp.up_proj": linear["w3"],
        "input_layernorm": (shape.embedding,),
        "post_attention_layernorm": (shape.embedding,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, shape.embedding)}
    for number in range(shape.layers):
        shapes |= {f"model.layers.{number}.{name}.weight": size for name, size in layer.items()}
    shapes["model.norm.weight"] = (shape.embedding,)
    if not shape.tied:
        shapes["lm_head.weight"] = (shape.vocabulary, shape.embedding)
    return shapes


def weight_files(folder: Path) -> list[str]:
    """Names of the files that hold the weights, in order, present or not.

    They are those of the index; without an index model.safetensors, or the shards that are there.
    """
    index = folder / INDEX
    if index.is_file():
        return _indexed_files(index)
    shards = sorted(file.name for file in folder.glob(SHARDS))
    return [ONE_FILE] if (folder / ONE_FILE).is_file() or not shards else shards


def _indexed_files(index: Path) -> list[str]:
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{index}: found no weight_map, expected the file of each tensor")
    for tensor, file in places.items():
        # Only names: an index does not lead out of its folder.
        if not isinstance(file, str) or file in ("", "..") or Path(file).name != file or not file.isprintable():
            raise UserError(f"{index}, {tensor!r}: found {file!r}, expected the name of a file beside it")
    return sorted(set(places.values()))


def count_parameters(files: list[Path], shape: Architecture) -> int:
    """Number of weights in the files, once they are found to be those of the architecture.

    Raises
    ------
    UserError
        If a file is corrupt, or a tensor is missing, surplus, of another shape or not of floating-point numbers.
    """
    expected = tensor_shapes(shape)
    seen: dict[str, Path] = {}
    total = 0
    for file in files:
        for name, tensor in read_header(file).items():
            if name.endswith("rotary_emb.inv_freq"):
                continue  # older checkpoints store what follows from the base; torchtune skips it
            if name not in expected:
                raise UserError(f"{file}: found the tensor {name!r}, expected none of this name")
            if name in seen:
                raise UserError(f"{file}: found the tensor {name} again, expected it in {seen[name].name} alone")
            if tensor.shape != expected[name]:
                raise UserError(
                    f"{file}, {name}: found the shape {_product(tensor.shape)}, expected {_product(expected[name])}"
                )
            if tensor.dtype not in DTYPES:
                raise UserError(f"{file}, {name}: found the type {tensor.dtype}, expected {', '.join(DTYPES)}")
            seen[name] = file
            total += math.prod(tensor.shape)
    missing = [name for name in expected if name not in seen]
    if missing:
        where = files[0] if len(files) == 1 else files[0].parent
        raise UserError(f"{where}: found {len(seen)} of {len(expected)} tensors, expected {first_of(missing, 1)}")
    return total


def read_header(file: Path) -> dict[str, Tensor]:
    """Describe what a safetensors file holds, by name; the format's own reader checks that its data is all there.

    Raises
    ------
    UserError
        If the file is not a complete safetensors file.
    """
    with file.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise UserError(f"{file}: found a Git LFS pointer, expected the weights themselves")
    try:
        with safe_open(file, framework="numpy") as stored:
            parts = {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118, it is no mapping
            return {name: Tensor(part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except SafetensorError as error:
        reason = printable(str(error).removeprefix("Error while deserializing header: "))
        raise UserError(f"{file}: not a complete safetensors file: {reason}") from error


def _product(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "of a single number"
