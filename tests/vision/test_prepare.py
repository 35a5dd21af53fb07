"""Sets of small grey images are read as they are published, checked, and kept as arrays or as image files."""

import csv
import functools
import gzip
import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import TypeAdapter
from torchvision.datasets import MNIST
from torchvision.transforms import v2

from multicard.errors import UserError
from multicard.experiment.config import Dataset
from multicard.vision.data import GreyImages, open_split, read_provenance
from multicard.vision.prepare import prepare

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = NAMES


def made(out: Path, name: str = "mine", **definition: Any) -> dict[str, Any]:
    """Prepare a data set and read its provenance."""
    prepare(name, TypeAdapter(Dataset).validate_python(definition), out)
    return read_provenance(out)


def refusal(out: Path, **definition: Any) -> str:
    """The one line that refuses a data set, of which nothing may stay."""
    with pytest.raises(UserError) as caught:
        made(out, **definition)
    assert not out.exists() or not list(out.iterdir())
    [line] = str(caught.value).splitlines()
    return line


def numbered(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random images of 28×28, and labels that count from 0 to 9 again and again."""
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), np.uint8), np.arange(count) % 10


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def mnist_contents() -> dict[str, bytes]:
    """The four files of a small MNIST: 30 images to train with, 20 to test."""
    train, test = numbered(30), numbered(20, seed=1)
    return dict(zip(NAMES, (idx(part) for part in (*train, *test)), strict=True))


def write_mnist(folder: Path, zipped: bool = False, **changes: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (mnist_contents() | changes).items():
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
    return folder


@pytest.mark.parametrize("place", [".", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_is_found_where_torchvision_or_a_person_put_it(tmp_path: Path, place: str, zipped: bool) -> None:
    write_mnist(tmp_path / "in" / place, zipped)
    out = tmp_path / "out"
    facts = made(out, source="mnist", folder=str(tmp_path / "in"))
    assert (facts["train_samples"], facts["test_samples"]) == (30, 20)
    assert facts["classes"] == list("0123456789")
    for split, (images, labels) in {"train": numbered(30), "test": numbered(20, seed=1)}.items():
        assert np.array_equal(np.load(out / f"{split}_images.npy"), images)
        assert np.array_equal(np.load(out / f"{split}_labels.npy"), labels)
    assert facts["mean"][0] == pytest.approx(numbered(30)[0].mean() / 255, abs=1e-6)
    assert facts["std"][0] == pytest.approx(numbered(30)[0].std() / 255, abs=1e-6)
    source = Path(tmp_path, "in", place, f"{TRAIN_LABELS}.gz" if zipped else TRAIN_LABELS)
    assert hashlib.sha256(source.read_bytes()).hexdigest() in [file["sha256"] for file in facts["source_files"]]


def test_mnist_reads_as_torchvision_reads_it(tmp_path: Path) -> None:
    write_mnist(tmp_path / "in" / "MNIST" / "raw")
    made(tmp_path / "out", source="mnist", folder=str(tmp_path / "in"))
    for split in ("train", "test"):
        theirs = MNIST(str(tmp_path / "in"), train=split == "train")
        assert np.array_equal(np.load(tmp_path / "out" / f"{split}_images.npy"), theirs.data.numpy())
        assert np.array_equal(np.load(tmp_path / "out" / f"{split}_labels.npy"), theirs.targets.numpy())


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (TRAIN_IMAGES, mnist_contents()[TRAIN_IMAGES][:-1], "found 23535 bytes, expected 23536 for 30×28×28 images"),
        (TRAIN_IMAGES, mnist_contents()[TRAIN_IMAGES][:9], "found 9 bytes, expected 16 or more images"),
        (TRAIN_IMAGES, mnist_contents()[TRAIN_LABELS], "found the first bytes 00000801, expected 00000803 (images)"),
        (TEST_LABELS, b"<html>", "found the first bytes 3c68746d, expected 00000801 (labels)"),
        (TEST_LABELS, b"", "found the first bytes none, expected 00000801 (labels)"),
        (TEST_LABELS, idx(np.arange(19) % 10), "found 19 labels, expected 20 as {folder}/t10k-images-idx3-ubyte has"),
        (TRAIN_LABELS, idx(np.arange(30) % 11), "found the label 10 of sample 11, expected 0 to 9"),
        (TEST_IMAGES, idx(np.empty((0, 28, 28))), "found no images, expected some"),
    ],
    ids=["cut", "header cut", "exchanged", "a web page", "empty", "too few labels", "label 10", "no images"],
)
def test_a_damaged_mnist_file_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    folder = write_mnist(tmp_path / "in", **{name: content})
    line = refusal(tmp_path / "out", source="mnist", folder=str(folder))
    assert line == f"{folder}/{name}: {says.format(folder=folder)}"


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "in", zipped=True)
    path = folder / f"{TRAIN_IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:-100])
    line = refusal(tmp_path / "out", source="mnist", folder=str(folder))
    assert line.startswith(f"{path}: cannot be read: ")


def test_a_missing_mnist_file_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "in")
    (folder / TEST_LABELS).unlink()
    line = refusal(tmp_path / "out", source="mnist", folder=str(folder))
    assert line == f"datasets.mine.folder: {folder} lacks {TEST_LABELS}; download: true would fetch them"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that torchvision finds where it looks for MNIST: on a web server, of this machine."""
    folder = write_mnist(tmp_path / "mirror", zipped=True)
    listed = [(f"{name}.gz", hashlib.md5((folder / f"{name}.gz").read_bytes()).hexdigest()) for name in NAMES]
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SimpleHTTPRequestHandler, directory=folder))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
    monkeypatch.setattr(MNIST, "resources", listed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder
    server.shutdown()
    server.server_close()


def test_missing_mnist_files_are_downloaded_when_asked(tmp_path: Path, mirror: Path) -> None:
    facts = made(tmp_path / "out", source="mnist", folder=str(tmp_path / "in"), download=True)
    assert facts["train_samples"] == 30
    assert (tmp_path / "in" / "MNIST" / "raw" / TRAIN_IMAGES).exists()


def test_a_download_that_fails_is_one_line(tmp_path: Path, mirror: Path) -> None:
    (mirror / f"{TEST_LABELS}.gz").unlink()
    line = refusal(tmp_path / "out", source="mnist", folder=str(tmp_path / "in"), download=True)
    assert line.startswith(f"datasets.mine.download: cannot fetch MNIST into {tmp_path}/in: ")


def test_files_that_are_there_are_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MNIST, "mirrors", [])
    folder = write_mnist(tmp_path / "in")
    assert made(tmp_path / "out", source="mnist", folder=str(folder), download=True)["test_samples"] == 20


# Kaggle's CSV


def kaggle_rows(count: int = 30) -> list[list[Any]]:
    images, labels = numbered(count)
    header = ["label", *(f"pixel{i}" for i in range(784))]
    pairs = zip(labels.tolist(), images.reshape(count, -1).tolist(), strict=True)
    return [header, *([label, *pixels] for label, pixels in pairs)]


def write_rows(path: Path, rows: list[list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.parametrize("by_folder", [False, True])
def test_every_tenth_row_of_kaggles_csv_is_a_test_image(tmp_path: Path, by_folder: bool) -> None:
    path = write_rows(tmp_path / "train.csv", kaggle_rows(30))
    out = tmp_path / "out"
    facts = made(out, source="kaggle-mnist", path=str(tmp_path if by_folder else path))
    images, labels = numbered(30)
    tenth = [9, 19, 29]
    assert np.array_equal(np.load(out / "test_images.npy"), images[tenth])
    assert np.array_equal(np.load(out / "train_images.npy"), np.delete(images, tenth, axis=0))
    assert np.array_equal(np.load(out / "train_labels.npy"), np.delete(labels, tenth))
    assert (facts["train_samples"], facts["test_samples"]) == (27, 3)
    assert "every 10th sample is a test image" in facts["split"]
    [source] = facts["source_files"]
    assert source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def changed_rows(line: int, column: int, value: Any) -> list[list[Any]]:
    rows = kaggle_rows(12)
    rows[line - 1][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (changed_rows(1, 6, "pixel"), ", line 1, column pixel5: missing, expected label and pixel0 to pixel783"),
        (
            [row[1:] for row in kaggle_rows(12)],
            ", line 1, column label: missing, expected label and pixel0 to pixel783",
        ),
        ([[*row, 1] for row in kaggle_rows(12)], ", line 1: found 786 columns, expected 785"),
        ([*kaggle_rows(12)[:5], [1, 2, 3]], ", line 6: found 3 columns, expected 785"),
        (changed_rows(7, 3, "1.5"), ", line 7, column pixel2: found '1.5', expected an integer from 0 to 255"),
        (changed_rows(7, 3, ""), ", line 7, column pixel2: found '', expected an integer from 0 to 255"),
        (changed_rows(7, 3, 256), ", line 7, column pixel2: found 256, expected 0 to 255"),
        (changed_rows(7, 3, -1), ", line 7, column pixel2: found -1, expected 0 to 255"),
        (changed_rows(13, 0, 10), ", line 13, column label: found 10, expected 0 to 9"),
        (changed_rows(13, 0, "NA"), ", line 13, column label: found 'NA', expected an integer from 0 to 9"),
        (kaggle_rows(12)[:1], ": found 0 samples, expected 10 or more"),
        ([], ", line 1, column label: missing, expected label and pixel0 to pixel783"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_csv_is_refused_with_its_place(tmp_path: Path, rows: list[list[Any]], says: str) -> None:
    path = write_rows(tmp_path / "train.csv", rows)
    assert refusal(tmp_path / "out", source="kaggle-mnist", path=str(path)) == f"{path}{says}"


@pytest.mark.parametrize("content", [b"\x00\xff" * 5000, b"PK\x03\x04", b'"label' + b"x" * 200_000])
def test_what_is_no_csv_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.csv").write_bytes(content)
    line = refusal(tmp_path / "out", source="kaggle-mnist", path=str(tmp_path / "train.csv"))
    assert line.startswith(f"{tmp_path}/train.csv")


# Kaggle's JPEG files


def write_jpegs(root: Path, count: int = 40) -> Path:
    """Images of one grey each, 6 × their number in the set; their labels count from 0 to 9 again and again."""
    for number in range(count):
        file = root / str(number % 10) / f"img_{number + 1}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), 6 * number).save(file)
    return root


@pytest.mark.parametrize("place", ["", "trainingSet/trainingSet"])
def test_kaggles_jpeg_files_are_taken_in_the_order_of_their_numbers(tmp_path: Path, place: str) -> None:
    write_jpegs(tmp_path / "in" / place)
    out = tmp_path / "out"
    facts = made(out, source="kaggle-mnist", path=str(tmp_path / "in"))
    assert (facts["train_samples"], facts["test_samples"]) == (36, 4)
    assert np.load(out / "test_labels.npy").tolist() == [9, 9, 9, 9]
    # A flat image survives JPEG as it is, up to a rounding.
    assert np.abs(np.load(out / "test_images.npy").mean((1, 2)) - [54, 114, 174, 234]).max() <= 1


def test_a_digit_without_files_is_refused(tmp_path: Path) -> None:
    root = write_jpegs(tmp_path / "in", 3)
    line = refusal(tmp_path / "out", source="kaggle-mnist", path=str(root))
    assert line == f"{root}/3: found no JPEG file, expected those of the digit 3"


def test_a_folder_that_is_neither_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    line = refusal(tmp_path / "out", source="kaggle-mnist", path=str(tmp_path / "in"))
    assert line.endswith("found neither train.csv nor the folders 0 to 9 of JPEG files, expected one of them")


def test_a_jpeg_file_that_is_cut_or_too_large_is_refused(tmp_path: Path) -> None:
    root = write_jpegs(tmp_path / "in")
    file = root / "4" / "img_5.jpg"
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    assert refusal(tmp_path / "out", source="kaggle-mnist", path=str(root)).startswith(f"{file}: found no readable")
    Image.new("L", (28, 30)).save(file)
    line = refusal(tmp_path / "out", source="kaggle-mnist", path=str(root))
    assert line == f"{file}: found 28×30 pixels, expected 28×28"


# Images stored as files


def test_stored_images_are_jpeg_files_of_the_asked_size(tmp_path: Path) -> None:
    folder, out = write_mnist(tmp_path / "in"), tmp_path / "out"
    facts = made(out, source="mnist", folder=str(folder), stored_size=60)
    assert not list(out.glob("*.npy"))
    for split, count in (("train", 30), ("test", 20)):
        files = sorted((out / split).glob("*/*.jpg"))
        assert len(files) == facts[f"{split}_samples"] == count
        # Sample i has the label i modulo 10.
        assert sorted((int(file.stem), file.parent.name) for file in files) == [(i, str(i % 10)) for i in range(count)]
        with Image.open(files[0]) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (60, 60), "RGB")
        assert len(open_split(out, facts, split, 32)) == count


def test_stored_images_are_the_small_ones_upsampled(tmp_path: Path) -> None:
    arrays, files = tmp_path / "arrays", tmp_path / "files"
    small = made(arrays, source="digits", limit=10)
    large = made(files, source="digits", limit=10, stored_size=64)
    assert (small["mean"], small["std"]) == (large["mean"], large["std"])
    resize = v2.Resize((64, 64), antialias=True)
    for path in files.glob("train/*/*.jpg"):
        expected = resize(torch.from_numpy(np.load(arrays / "train_images.npy")[int(path.stem)])[None])[0].float()
        with Image.open(path) as image:
            found = torch.from_numpy(np.array(image)).float()
        assert torch.equal(found[..., 0], found[..., 1])
        assert (found[..., 0] - expected).abs().mean() < 2  # of 255: what JPEG loses


def test_stored_images_are_read_as_the_arrays_are(tmp_path: Path) -> None:
    small = made(tmp_path / "arrays", source="digits", limit=20)
    large = made(tmp_path / "files", source="digits", limit=20, stored_size=64)
    from_arrays = open_split(tmp_path / "arrays", small, "test", 64)
    from_files = open_split(tmp_path / "files", large, "test", 64)
    by_index = {int(Path(file).stem): number for number, (file, _) in enumerate(from_files.samples)}
    for index in range(4):
        (expected, label), (found, found_label) = from_arrays[index], from_files[by_index[index]]
        assert label == found_label
        assert found.shape == (3, 64, 64)
        assert (found - expected).abs().mean() < 0.03


def test_a_limit_takes_the_first_images_and_a_fifth_as_many_to_test(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", source="digits")
    facts = made(tmp_path / "some", source="digits", limit=12)
    assert (facts["train_samples"], facts["test_samples"]) == (12, 2)
    first = np.load(tmp_path / "whole" / "test_images.npy")[:2]
    assert np.array_equal(np.load(tmp_path / "some" / "test_images.npy"), first)
    assert made(tmp_path / "one", source="digits", limit=1)["test_samples"] == 1
    assert made(tmp_path / "all", source="digits", limit=10_000)["train_samples"] == whole["train_samples"]


def test_classes_keep_their_numbers_where_a_small_stored_set_lacks_some(tmp_path: Path) -> None:
    facts = made(tmp_path, source="digits", limit=3, stored_size=16)
    labels = np.load(make_arrays(tmp_path / "arrays", limit=3) / "train_labels.npy")
    assert sorted(label for _, label in open_split(tmp_path, facts, "train", 16).samples) == sorted(labels)


def make_arrays(out: Path, **definition: Any) -> Path:
    made(out, source="digits", **definition)
    return out


@pytest.mark.parametrize("harm", ["removed", "grown", "added", "all gone"])
def test_a_stored_set_that_changed_is_noticed(tmp_path: Path, harm: str) -> None:
    facts = made(tmp_path, source="digits", limit=10, stored_size=16)
    file = next((tmp_path / "train").glob("*/*.jpg"))
    if harm == "removed":
        file.unlink()
    elif harm == "grown":
        file.write_bytes(file.read_bytes() + b"x")
    elif harm == "added":
        (file.parent / "more.jpg").write_bytes(b"")
    else:
        (tmp_path / "train").rename(tmp_path / "elsewhere")
    assert facts["files"][0]["files"] == 10
    with pytest.raises(UserError, match="train: missing or changed since it was prepared"):
        read_provenance(tmp_path)


def test_the_checksum_of_a_stored_set_is_that_of_its_list_of_files(tmp_path: Path) -> None:
    entry = made(tmp_path, source="digits", limit=10, stored_size=16)["files"][0]
    files = sorted((tmp_path / "train").glob("*/*.jpg"), key=lambda file: f"{file.parent.name}/{file.name}")
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        name = f"{file.parent.name}/{file.name}"
        digest.update(f"{name}\t{len(content)}\t{hashlib.sha256(content).hexdigest()}\n".encode())
    assert entry["sha256"] == digest.hexdigest()
    assert entry["bytes"] == sum(file.stat().st_size for file in files)


def test_preparing_anew_replaces_what_was_stored_before(tmp_path: Path) -> None:
    made(tmp_path, source="digits", limit=10, stored_size=16)
    (tmp_path / ".train-unfinished" / "0").mkdir(parents=True)  # as a killed preparation leaves it
    assert made(tmp_path, source="digits", limit=5, stored_size=24)["files"][0]["files"] == 5
    facts = made(tmp_path, source="digits")
    assert isinstance(open_split(tmp_path, facts, "train", 16), GreyImages)
    assert not list(tmp_path.glob("*train*/"))


def test_images_of_the_user_are_never_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "train" / "cat.jpg"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    with pytest.raises(UserError, match="train: found files that multicard did not make"):
        made(tmp_path, source="digits", stored_size=16)
    made(tmp_path, source="digits")
    assert mine.read_bytes() == b"mine"


def test_a_set_that_cannot_be_stored_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="No space left"):
        made(tmp_path, source="digits", limit=100, stored_size=16)
    assert not list(tmp_path.iterdir())


# Synthetic images


def test_synthetic_images_cost_nothing_but_a_statement(tmp_path: Path) -> None:
    facts = made(tmp_path, source="synthetic", classes=7, samples=1000)
    assert [file.name for file in tmp_path.iterdir()] == ["provenance.json"]
    assert json.loads((tmp_path / "provenance.json").read_text())["source"] == "synthetic"
    assert (facts["train_samples"], facts["test_samples"], len(facts["classes"])) == (1000, 100, 7)
    assert made(tmp_path, source="synthetic", samples=3)["test_samples"] == 1


def test_synthetic_images_are_one_normal_tensor_with_random_labels(tmp_path: Path) -> None:
    facts = made(tmp_path, source="synthetic", classes=7, samples=1000)
    data, test = open_split(tmp_path, facts, "train", 64), open_split(tmp_path, facts, "test", 64)
    assert data.synthetic
    assert (len(data), len(test)) == (1000, 100)
    image, _ = data[0]
    assert (image.shape, image.dtype) == ((3, 64, 64), torch.float32)
    assert data[999][0] is image is test[5][0]
    # Of 12 288 normal numbers: the mean is within 5 standard errors.
    assert abs(image.mean().item()) < 5 / 110
    assert image.std().item() == pytest.approx(1, abs=0.05)
    assert {label for _, label in (data[i] for i in range(1000))} == set(range(7))
    other = open_split(tmp_path, facts, "train", 64, seed=1)
    assert not torch.equal(other[0][0], image)
    with pytest.raises(IndexError):
        data[1000]


def test_reading_synthetic_images_makes_no_copies(tmp_path: Path) -> None:
    data = open_split(tmp_path, made(tmp_path, source="synthetic", samples=50), "train", 256)
    pointers = {data[i][0].data_ptr() for i in range(50)}
    assert len(pointers) == 1
