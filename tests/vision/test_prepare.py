"""Sets of small grayscale images are read as they are published, checked, and stored as arrays or as image files."""

import csv
import gzip
import hashlib
import struct
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from preparing import made, numbered, refusal
from torchvision.datasets import MNIST
from torchvision.transforms import v2

from conftest import refusal as refused_in_one_line
from multicard.core.errors import UserError
from multicard.programs.datasets import Mnist
from multicard.programs.provenance import ImageProvenance, read_unchanged
from multicard.programs.vision.data import GrayscaleDataset, SyntheticDataset, open_split
from multicard.programs.vision.sources import ImageOrigin, read_mnist

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = NAMES


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def mnist_contents() -> dict[str, bytes]:
    """The four files of a small MNIST: 30 images to train with, 20 to test."""
    train, test = numbered(30), numbered(20, seed=1)
    return dict(zip(NAMES, (idx(part) for part in (*train, *test)), strict=True))


def origin_of_mnist(folder: Path, **definition: Any) -> ImageOrigin:
    """Return the recorded origin of an MNIST in a folder, where the small one is the one that is published."""
    digests = {name: hashlib.md5(content).hexdigest() for name, content in mnist_contents().items()}
    return read_mnist(Mnist(source="mnist", folder=str(folder), **definition), "mine", digests).origin


def write_mnist(folder: Path, zipped: bool = False, **changes: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (mnist_contents() | changes).items():
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
    return folder


@pytest.mark.parametrize(("place", "zipped"), [(".", True), ("MNIST/raw", False)])
def test_mnist_is_found_where_torchvision_or_a_person_put_it(tmp_path: Path, place: str, zipped: bool) -> None:
    write_mnist(tmp_path / "in" / place, zipped)
    out = tmp_path / "out"
    provenance = made(out, source="mnist", folder=str(tmp_path / "in"))
    assert (provenance.train_samples, provenance.test_samples) == (30, 20)
    assert provenance.classes == tuple("0123456789")
    for split, (images, labels) in {"train": numbered(30), "test": numbered(20, seed=1)}.items():
        assert np.array_equal(np.load(out / f"{split}_images.npy"), images)
        assert np.array_equal(np.load(out / f"{split}_labels.npy"), labels)
        if not zipped:
            theirs = MNIST(str(tmp_path / "in"), train=split == "train")
            assert np.array_equal(theirs.data.numpy(), images)
            assert np.array_equal(theirs.targets.numpy(), labels)
    assert provenance.mean[0] == pytest.approx(numbered(30)[0].mean() / 255, abs=1e-6)
    assert provenance.std[0] == pytest.approx(numbered(30)[0].std() / 255, abs=1e-6)
    source = Path(tmp_path, "in", place, f"{TRAIN_LABELS}.gz" if zipped else TRAIN_LABELS)
    assert hashlib.sha256(source.read_bytes()).hexdigest() in [file.sha256 for file in provenance.source_files]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (TRAIN_IMAGES, mnist_contents()[TRAIN_IMAGES][:-1], "found 23535 bytes from 00000803 on, expected an IDX"),
        (TRAIN_IMAGES, mnist_contents()[TRAIN_IMAGES][:9], "found 9 bytes"),
        (TRAIN_IMAGES, mnist_contents()[TRAIN_LABELS], "found 38 bytes from 00000801 on, expected an IDX"),
        (TEST_LABELS, b"", "found 0 bytes from none on, expected an IDX file of labels"),
        (TEST_LABELS, idx(np.arange(19) % 10), "found 19 labels up to 9, expected 20 from 0"),
        (TRAIN_LABELS, idx(np.arange(30) % 11), "found 30 labels up to 10, expected 30 from"),
        (TEST_IMAGES, idx(np.empty((0, 28, 28))), "found 16 bytes"),
        (TEST_IMAGES, idx(np.zeros((20, 32, 30))), "found images of shape (32, 30)"),
    ],
    ids=["cut", "header cut", "exchanged", "empty", "too few labels", "label 10", "no images", "large"],
)
def test_a_damaged_mnist_file_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    folder = write_mnist(tmp_path / "in", **{name: content})
    line = refusal(tmp_path / "out", source="mnist", folder=str(folder))
    assert line.startswith(f"{folder}/{name}: {says}")


def test_a_mnist_file_that_is_cut_or_missing_is_refused(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "zipped", zipped=True)
    path = folder / f"{TRAIN_IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(tmp_path / "out", source="mnist", folder=str(folder)).startswith(f"{path}: cannot be read: ")
    folder = write_mnist(tmp_path / "plain")
    (folder / TEST_LABELS).unlink()
    line = refusal(tmp_path / "out", source="mnist", folder=str(folder))
    assert line == f"datasets.mine.folder: {folder} does not contain {TEST_LABELS}; download: true would fetch them"


def test_reading_mnist_without_one_of_its_files_names_it(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "in")
    (folder / TEST_LABELS).unlink()
    line = refused_in_one_line(lambda: read_mnist(Mnist(source="mnist", folder=str(folder)), "mine"))
    assert line == f"datasets.mine.folder: {folder} does not contain {TEST_LABELS}"


def test_missing_mnist_files_are_downloaded_by_torchvision_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = {"source": "mnist", "folder": str(tmp_path / "in"), "download": True}
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/"])  # where nobody listens
    line = refusal(tmp_path / "out", **definition)
    assert line.startswith(f"datasets.mine.download: cannot fetch MNIST into {tmp_path}/in: ")

    monkeypatch.setattr(MNIST, "download", lambda self: write_mnist(Path(self.raw_folder)))
    assert origin_of_mnist(tmp_path / "in", download=True)["verified"]
    assert made(tmp_path / "out", **definition).train_samples == 30
    monkeypatch.undo()  # what is there is not fetched again
    assert made(tmp_path / "again", **definition).test_samples == 20


@pytest.mark.parametrize("zipped", [False, True])
def test_only_files_with_the_published_content_are_mnist_however_they_are_packed(tmp_path: Path, zipped: bool) -> None:
    origin = origin_of_mnist(write_mnist(tmp_path / "in", zipped))
    assert origin["verified"] and origin["origin"].startswith("MNIST (Y. LeCun")
    folder = write_mnist(tmp_path / "other", zipped, **{TEST_LABELS: idx(np.arange(1, 21) % 10)})
    origin = origin_of_mnist(folder)
    assert made(tmp_path / "out", source="mnist", folder=str(folder)).test_samples == 20
    assert not origin["verified"] and not origin["origin"].startswith("MNIST")


# Images stored as files


def test_stored_images_are_jpeg_files_of_the_small_ones_upsampled(tmp_path: Path) -> None:
    arrays, files = tmp_path / "arrays", tmp_path / "files"
    small = made(arrays, source="digits", limit=20)
    large = made(files, source="digits", limit=20, stored_size=64)
    assert not list(files.glob("*.npy"))
    assert (small.mean, small.std) == (large.mean, large.std)
    labels, images = np.load(arrays / "train_labels.npy"), np.load(arrays / "train_images.npy")
    stored = sorted((files / "train").glob("*/*.jpg"), key=lambda file: f"{file.parent.name}/{file.name}")
    assert len(stored) == large.train_samples == 20
    resize, digest = v2.Resize((64, 64), antialias=True), hashlib.sha256()
    for path in stored:
        assert path.parent.name == str(labels[int(path.stem)])
        with Image.open(path) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (64, 64), "RGB")
            found = torch.from_numpy(np.array(image)).float()
        assert torch.equal(found[..., 0], found[..., 1])
        expected = resize(torch.from_numpy(images[int(path.stem)])[None])[0].float()
        assert (found[..., 0] - expected).abs().mean() < 2  # of 255: what JPEG loses
        content = path.read_bytes()
        name = f"{path.parent.name}/{path.name}"
        digest.update(f"{name}\t{len(content)}\t{hashlib.sha256(content).hexdigest()}\n".encode())
    entry = large.files[0]
    assert (entry.sha256, entry.bytes) == (digest.hexdigest(), sum(file.stat().st_size for file in stored))

    # They are read as the arrays are.
    from_arrays, from_files = open_split(arrays, small, "test", 64), open_split(files, large, "test", 64)
    by_index = {int(Path(file).stem): number for number, (file, _) in enumerate(from_files.samples)}
    for index in range(4):
        (expected, label), (found, found_label) = from_arrays[index], from_files[by_index[index]]
        assert label == found_label
        assert found.shape == (3, 64, 64)
        assert (found - expected).abs().mean() < 0.03


def test_a_limit_takes_the_first_images_and_a_fifth_as_many_to_test(tmp_path: Path, digits: Path) -> None:
    provenance = made(tmp_path / "some", source="digits", limit=12)
    assert (provenance.train_samples, provenance.test_samples) == (12, 2)
    assert np.array_equal(np.load(tmp_path / "some" / "test_images.npy"), np.load(digits / "test_images.npy")[:2])
    assert made(tmp_path / "one", source="digits", limit=1).test_samples == 1
    # Classes keep their numbers where a small stored set lacks some.
    provenance = made(tmp_path / "stored", source="digits", limit=3, stored_size=16)
    found = sorted(label for _, label in open_split(tmp_path / "stored", provenance, "train", 16).samples)
    assert found == sorted(np.load(digits / "train_labels.npy")[:3])


@pytest.mark.parametrize("harm", ["removed", "grown", "all gone"])
def test_a_stored_set_that_changed_is_noticed(tmp_path: Path, harm: str) -> None:
    provenance = made(tmp_path, source="digits", limit=10, stored_size=16)
    assert provenance.files[0].files == 10
    file = next((tmp_path / "train").glob("*/*.jpg"))
    match harm:
        case "removed":
            file.unlink()
        case "grown":
            file.write_bytes(file.read_bytes() + b"x")
        case "all gone":
            (tmp_path / "train").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="train: missing or changed since it was prepared"):
        read_unchanged(tmp_path, ImageProvenance)


def test_preparing_anew_replaces_what_was_stored_before(tmp_path: Path) -> None:
    made(tmp_path, source="digits", limit=10, stored_size=16)
    assert made(tmp_path, source="digits", limit=5, stored_size=24).files[0].files == 5
    provenance = made(tmp_path, source="digits")
    assert isinstance(open_split(tmp_path, provenance, "train", 16), GrayscaleDataset)
    assert not list(tmp_path.glob("*train*/"))


def test_a_set_that_cannot_be_stored_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "save", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        made(tmp_path, source="digits", limit=100, stored_size=16)
    assert not list(tmp_path.iterdir())


def test_synthetic_images_are_one_normal_tensor_with_random_labels(tmp_path: Path) -> None:
    provenance = made(tmp_path, source="synthetic", classes=7, samples=1000)
    assert [file.name for file in tmp_path.iterdir()] == ["provenance.json"]
    data, test = open_split(tmp_path, provenance, "train", 64), open_split(tmp_path, provenance, "test", 64)
    assert isinstance(data, SyntheticDataset)
    assert (len(data), len(test)) == (provenance.train_samples, provenance.test_samples) == (1000, 100)
    image, _ = data[0]
    assert (image.shape, image.dtype) == ((3, 64, 64), torch.float32)
    assert data[999][0].data_ptr() == image.data_ptr() == test[5][0].data_ptr()  # no copies
    # Of 12 288 normal numbers: the mean is within 5 standard errors.
    assert abs(image.mean().item()) < 5 / 110
    assert image.std().item() == pytest.approx(1, abs=0.05)
    assert {int(label) for _, label in (data[i] for i in range(1000))} == set(range(7))
    assert not torch.equal(open_split(tmp_path, provenance, "train", 64, seed=1)[0][0], image)
    with pytest.raises(IndexError):
        data[1000]
    assert made(tmp_path, source="synthetic", samples=3).test_samples == 1


def kaggle_rows(count: int = 12) -> list[list[Any]]:
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
    provenance = made(out, source="kaggle-mnist", path=str(tmp_path if by_folder else path))
    images, labels = numbered(30)
    tenth = [9, 19, 29]
    assert np.array_equal(np.load(out / "test_images.npy"), images[tenth])
    assert np.array_equal(np.load(out / "train_images.npy"), np.delete(images, tenth, axis=0))
    assert np.array_equal(np.load(out / "train_labels.npy"), np.delete(labels, tenth))
    assert (provenance.train_samples, provenance.test_samples) == (27, 3)
    assert "every 10th sample is a test image" in provenance.split
    [source] = provenance.source_files
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def changed_rows(line: int, column: int, value: Any) -> list[list[Any]]:
    rows = kaggle_rows()
    rows[line - 1][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (changed_rows(1, 6, "pixel"), ": found other columns than label and pixel0 to pixel783"),
        ([[*row, 1] for row in kaggle_rows()], ": found other columns"),
        (
            [kaggle_rows()[0], *([*row, 1] for row in kaggle_rows()[1:])],
            ": does not parse as CSV of whole numbers: found more columns than the 785 of the first line",
        ),
        ([*kaggle_rows()[:5], [*kaggle_rows()[5], 1]], ": does not parse as CSV of whole numbers: "),
        *((changed_rows(7, 3, value), ": does not parse as CSV of whole numbers: ") for value in ("1.5", "x", "")),
        (changed_rows(7, 3, 256), ": found other values than labels from 0 to 9 and pixels from 0 to 255"),
        (changed_rows(13, 0, 10), ": found other values than labels from 0 to 9"),
        (kaggle_rows()[:1], ": found 0 samples"),
        ([], ": empty, expected a header"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_csv_is_refused_with_its_place(tmp_path: Path, rows: list[list[Any]], says: str) -> None:
    path = write_rows(tmp_path / "train.csv", rows)
    assert refusal(tmp_path / "out", source="kaggle-mnist", path=str(path)).startswith(f"{path}{says}")
