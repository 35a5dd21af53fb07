"""Gzipped files unpack to what was packed, up to a limit, and up to where they were cut."""

import gzip
from pathlib import Path

import pytest

from multicard.core.compressed import Unpacked, UnpackLimit, UnpacksTooLarge, open_gzip, read_gzip

CONTENT = bytes(100_000)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(CONTENT))
    return path


@pytest.mark.parametrize(("most", "is_enough"), [(len(CONTENT), True), (len(CONTENT) - 1, False)])
def test_a_file_may_unpack_to_its_limit_and_no_more(packed: Path, most: int, is_enough: bool) -> None:
    limit = UnpackLimit(times=1, always_bytes=most)
    if is_enough:
        assert read_gzip(packed, limit) == Unpacked(CONTENT, is_cut=False)
    else:
        with pytest.raises(UnpacksTooLarge, match="more than 1 times its size"):
            read_gzip(packed, limit)
        with open_gzip(packed, limit) as stream, pytest.raises(UnpacksTooLarge):
            while stream.read(1000):
                pass


def test_a_large_file_may_unpack_to_more(packed: Path) -> None:
    size = packed.stat().st_size
    assert UnpackLimit(times=200, always_bytes=1).bytes_for(packed) == 200 * size
    assert UnpackLimit(times=200).bytes_for(packed) == 64 << 20


@pytest.mark.parametrize("padding", [b"", bytes(512)])
def test_of_a_cut_file_all_members_are_read_and_count_together(packed: Path, padding: bytes) -> None:
    texts = [f"{start} ".encode() * 1000 for start in range(3)]
    packed.write_bytes(padding.join(gzip.compress(text) for text in texts)[:-20])
    whole = b"".join(texts)
    unpacked = read_gzip(packed, None)
    assert unpacked.is_cut and len(unpacked.content) >= 4000 and whole.startswith(unpacked.content)
    size = len(unpacked.content)
    assert read_gzip(packed, UnpackLimit(times=1, always_bytes=size)) == unpacked
    for most in (size - 1, 4000, 2500, 2000):  # in the last member, at its start, in the second, at its start
        with pytest.raises(UnpacksTooLarge):
            read_gzip(packed, UnpackLimit(times=1, always_bytes=most))


@pytest.mark.parametrize("limit", [None, UnpackLimit(times=40)])
def test_of_a_file_that_was_cut_its_beginning_is_read(packed: Path, limit: UnpackLimit | None) -> None:
    text = "".join(map(str, range(20_000))).encode()
    packed.write_bytes(gzip.compress(text)[:-5000])
    unpacked = read_gzip(packed, limit)
    assert unpacked.is_cut and len(unpacked.content) > 1000 and text.startswith(unpacked.content)
