"""The digest of a machine: the same for its runs, another for every other machine, and no help to guess its name."""

import hashlib
import socket
from pathlib import Path

from multicard.observe.record.environment import host, machine_digest

MACHINE_ID = "0123456789abcdef0123456789abcdef"
BOOT_ID = "01234567-89ab-cdef-0123-456789abcdef"


def digest(name: str, folder: Path, machine_id: str | None = None, boot_id: str | None = None) -> str | None:
    """The digest of a machine with such files."""
    files = folder / "machine-id", folder / "boot_id"
    for file, content in zip(files, (machine_id, boot_id), strict=True):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(f"{content}\n")
    return machine_digest(name, [files[0]], files[1])


def test_a_machine_has_one_digest_and_nodes_of_one_image_have_several(tmp_path: Path) -> None:
    own = digest("node07", tmp_path, MACHINE_ID, BOOT_ID)
    assert own == digest("NODE07.cluster.example", tmp_path, MACHINE_ID, "another start")
    others = digest("node08", tmp_path, MACHINE_ID), digest("node07", tmp_path, MACHINE_ID[::-1])
    assert len({own, *others}) == 3


def test_without_a_machine_id_the_start_of_the_kernel_is_the_key_and_without_that_there_is_no_digest(
    tmp_path: Path,
) -> None:
    by_boot = digest("node07", tmp_path, None, BOOT_ID)
    assert by_boot not in (None, digest("node07", tmp_path, None, BOOT_ID[::-1]))
    for not_an_id in ("", "uninitialized", "0" * 32):  # as images for containers have it
        assert digest("node07", tmp_path, not_an_id, BOOT_ID) == by_boot
        assert digest("node07", tmp_path, not_an_id) is None, "a hash of the name alone could be looked up"


def test_the_name_cannot_be_found_by_hashing_guesses(tmp_path: Path) -> None:
    own = digest("node07", tmp_path, MACHINE_ID)
    guesses = [hashlib.new(kind, b"node07").hexdigest()[:32] for kind in sorted(hashlib.algorithms_guaranteed)
               if not kind.startswith("shake")]  # fmt: skip
    unkeyed = hashlib.blake2b(b"node07", person=b"multicard host", digest_size=16).hexdigest()
    assert own not in (*guesses, unkeyed)


def test_this_machine_has_a_digest() -> None:
    found = host()
    assert found.name == socket.gethostname() and len(found.machine_digest) == 32
