"""Sets of small grayscale images are read as they are published, checked, and stored as arrays or as image files."""

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
from preparing import made, numbered, refusal
from torchvision.datasets import MNIST
from torchvision.transforms import v2

from multicard.core.errors import UserError
from multicard.workloads.vision import sources
from multicard.workloads.vision.data import GrayscaleDataset, open_split, read_provenance

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = NAMES


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def mnist_contents() -> dict[str, bytes]:
    """The four files of a small MNIST: 30 images to train with, 20 to test."""
    train, test = numbered(30), numbered(20, seed=1)
    return dict(zip(NAMES, (idx(part) for part in (*train, *test)), strict=True))


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the small MNIST for the one that is published."""
    digests = {name: hashlib.md5(content).hexdigest() for name, content in mnist_contents().items()}
    monkeypatch.setattr(sources, "MNIST_MD5", digests)


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
        (TEST_IMAGES, idx(np.zeros((20, 32, 30))), "found images of 32×30 pixels, expected 28×28"),
    ],
    ids=["cut", "header cut", "exchanged", "a web page", "empty", "too few labels", "label 10", "no images", "large"],
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
    assert line == f"datasets.mine.folder: {folder} does not contain {TEST_LABELS}; download: true would fetch them"


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


@pytest.mark.usefixtures("published")
def test_missing_mnist_files_are_downloaded_when_asked(tmp_path: Path, mirror: Path) -> None:
    facts = made(tmp_path / "out", source="mnist", folder=str(tmp_path / "in"), download=True)
    assert (facts["train_samples"], facts["verified"]) == (30, True)
    assert (tmp_path / "in" / "MNIST" / "raw" / TRAIN_IMAGES).exists()


def test_a_download_that_fails_is_one_line(tmp_path: Path, mirror: Path) -> None:
    (mirror / f"{TEST_LABELS}.gz").unlink()
    line = refusal(tmp_path / "out", source="mnist", folder=str(tmp_path / "in"), download=True)
    assert line.startswith(f"datasets.mine.download: cannot fetch MNIST into {tmp_path}/in: ")


@pytest.mark.usefixtures("published")
def test_files_that_are_there_are_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MNIST, "mirrors", [])
    folder = write_mnist(tmp_path / "in")
    assert made(tmp_path / "out", source="mnist", folder=str(folder), download=True)["test_samples"] == 20


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("zipped", [False, True])
def test_files_with_the_published_content_are_mnist_however_they_are_packed(
    tmp_path: Path, zipped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = made(tmp_path / "out", source="mnist", folder=str(write_mnist(tmp_path / "in", zipped)))
    assert facts["verified"]
    assert facts["origin"].startswith("MNIST (Y. LeCun")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("zipped", [False, True])
def test_files_of_another_content_are_used_and_not_called_mnist(
    tmp_path: Path, zipped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_mnist(tmp_path / "in", zipped, **{TEST_LABELS: idx(np.arange(1, 21) % 10)})
    facts = made(tmp_path / "out", source="mnist", folder=str(folder))
    assert facts["test_samples"] == 20
    assert not facts["verified"]
    assert not facts["origin"].startswith("MNIST")
    assert capsys.readouterr().err == (
        f"datasets.mine.folder: used as it is, though 1 of its 4 files are not MNIST's as published, the first is "
        f"{folder}/{TEST_LABELS}{'.gz' if zipped else ''}\n"
    )


@pytest.mark.usefixtures("published")
def test_files_of_another_content_are_refused_where_a_download_is_wanted(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "in", **{TRAIN_LABELS: idx(np.arange(1, 31) % 10)})
    line = refusal(tmp_path / "out", source="mnist", folder=str(folder), download=True)
    assert line == (
        f"{folder}/{TRAIN_LABELS}: found another content than that of MNIST's file; remove it to download it again, "
        "or use it as it is by datasets.mine.download: false"
    )


def test_a_made_set_is_never_taken_for_the_real_mnist(tmp_path: Path) -> None:
    assert not made(tmp_path / "out", source="mnist", folder=str(write_mnist(tmp_path / "in")))["verified"]


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
    assert isinstance(open_split(tmp_path, facts, "train", 16), GrayscaleDataset)
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
