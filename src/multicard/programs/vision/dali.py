"""A loader that uses NVIDIA DALI: it yields the samples of PyTorch's DataLoader, in the same order."""

import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torchvision.datasets import ImageFolder

from multicard.core.errors import UserError
from multicard.programs.provenance import ImageProvenance
from multicard.programs.vision.data import GrayscaleDataset
from multicard.programs.vision.parameters import VisionParameters

# A RuntimeError of DALI with one of these parts in its message says that memory ran out.
OUT_OF_MEMORY = ("CUDA allocation failed", "out of memory", "bad_alloc")


class DaliLoader:
    """A loader whose batches DALI prepares ahead: on the GPU if `device` is a GPU, else in CPU threads.

    A pass over the data yields full batches `(images, labels)`: float32 of shape (N, 3, S, S) and int64 of shape (N,),
    both on `device`. DALI's own threads read and decode files, without worker processes; JPEG files are decoded on the
    GPU if `device` is one. Beginning a pass ends the pass before: its iterator raises `RuntimeError` when it is asked
    for another batch, and the batches that were prepared for it are dropped.

    The images equal those of `vision.data.open_split` except for rounding. Measured on a CPU with random pixels, of 256
    gray levels: images from arrays differ by less than 0.002 gray levels, images from files by at most 1, because both
    libraries round the resized pixels. If an image shrinks, its outermost pixels differ more, by some 20 gray levels in
    noise, because there the filter reaches over the edge: DALI repeats the last pixel, PyTorch leaves it out. On a CPU
    both libraries decode JPEG files to the same pixels; a GPU's decoder may add a few gray levels to the difference.
    Both libraries ignore EXIF orientation.

    Parameters
    ----------
    dataset
        Arrays (`multicard.programs.vision.data.GrayscaleDataset`) or files (`ImageFolder`); its transform is not used.
    sampler
        Indices of one pass, in order.
    provenance
        That of the data set, for its `mean` and `std`.

    Raises `UserError` if DALI is not installed. Raises `MemoryError` if memory runs out during a pass, on the GPU or on
    the host.
    """

    def __init__(
        self,
        dataset: GrayscaleDataset | ImageFolder,
        sampler: Any,
        p: VisionParameters,
        provenance: ImageProvenance,
        device: torch.device,
    ):
        try:
            import nvidia.dali  # noqa: F401
        except ImportError as error:
            raise UserError(
                'loader: dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
            ) from error
        self.dataset = dataset
        self.sampler = sampler
        self.device = device
        self._p = p
        self._provenance = provenance
        self._source = _Source(dataset)
        self._pipeline: Any = None
        # Increases with every pass and with `close`. An iterator that began at a lower number cannot continue.
        self._pass = 0

    def __len__(self) -> int:
        return len(self.sampler) // self._p.batch_of_rank

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Begin a pass: DALI is preparing its first batches already when this returns."""
        self._rewind()
        indices = [int(index) for index in self.sampler]
        size = self._p.batch_of_rank
        self._source.begin([indices[number * size : (number + 1) * size] for number in range(len(self))])
        self._pass += 1
        try:
            if self._pipeline is None:
                self._pipeline = self._build()
            self._pipeline.schedule_run()
        except RuntimeError as error:
            self._explain(error)
        return self._batches(self._pass)

    def close(self) -> None:
        """End DALI's threads and free its memory; a new pass starts them again."""
        self._pass += 1
        self._pipeline = None

    def _batches(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while number == self._pass:
            # DALI reuses the memory of a batch only after the work that is queued on this stream is done.
            stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
            try:
                images, labels = self._pipeline.outputs(stream)
                self._pipeline.schedule_run()
            except StopIteration:
                return
            except RuntimeError as error:
                self._explain(error)
            yield torch.from_dlpack(images.as_tensor()), torch.from_dlpack(labels.as_tensor())
        raise RuntimeError("this pass over the data cannot go on: the loader has begun another or is closed")

    def _rewind(self) -> None:
        """Drop the batches that DALI prepared for an unfinished pass, so that the pipeline can begin another pass.

        Before the first pass there is no pipeline, and nothing to do.
        """
        self._source.begin([])
        try:
            while self._pipeline is not None:
                self._pipeline.outputs()
                self._pipeline.schedule_run()
        except StopIteration:
            self._pipeline.reset()
        except RuntimeError:
            # The error is in a batch that is dropped anyway. DALI's pipeline cannot be used after an error, so the
            # next pass builds another one.
            self.close()

    def _build(self) -> Any:
        """Return a DALI pipeline that makes batches from the raw samples that `self._source` returns."""
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        p = self._p
        source = self._source
        on_gpu = self.device.type == "cuda"
        # DALI adds its operators to its modules while it is imported, so type checkers do not find them.
        operators: Any = fn
        data_types: Any = types
        # `mean` and `std` of the data set are for pixels in [0, 1]; DALI wants them for pixels in [0, 255].
        normalize = partial(
            operators.crop_mirror_normalize,
            mean=[255 * value for value in self._provenance.mean],
            std=[255 * value for value in self._provenance.std],
            dtype=data_types.FLOAT,
            output_layout="CHW",
        )
        size = [p.image_size, p.image_size]
        pipeline = Pipeline(
            p.batch_of_rank,
            max(1, p.workers_of_rank),
            self.device.index if on_gpu else None,
            prefetch_queue_depth=p.prefetch_factor,
        )
        with pipeline:
            images, labels = operators.external_source(
                source,
                num_outputs=2,
                dtype=[data_types.UINT8, data_types.INT64],
                layout=["" if source.files else "HWC", ""],
            )
            if source.files:
                # With `affine`, the GPU's decoder would pin its threads to cores that the rank is not bound to.
                options = {"affine": False, "jpeg_fancy_upsampling": True} if on_gpu else {}
                images = operators.decoders.image(
                    operators.io.file.read(images),
                    device="mixed" if on_gpu else "cpu",
                    output_type=data_types.RGB,
                    adjust_orientation=False,
                    **options,
                )
                images = operators.resize(images, size=size, antialias=True)
                images = normalize(images)
            else:
                # Normalizing and resizing give the same result in either order. Arrays hold small images, so it is
                # cheaper to normalize and transpose them before they are resized.
                images = images.gpu() if on_gpu else images
                images = normalize(operators.cat(images, images, images, axis=2))
                images = operators.resize(images, size=size, antialias=True)
            pipeline.set_outputs(images, labels.gpu() if on_gpu else labels)
        pipeline.build()
        return pipeline

    def _explain(self, error: RuntimeError) -> NoReturn:
        """Close the loader and raise DALI's error: as `MemoryError` if memory ran out, else unchanged."""
        # After an error DALI's pipeline cannot be used any more.
        self.close()
        message = " ".join(str(error).split())
        if any(part in message for part in OUT_OF_MEMORY):
            raise MemoryError(f"DALI: {message}") from error
        raise error


class _Source:
    """Returns, when DALI calls it, the raw samples of the next batch: pixels or file names, and labels.

    Raises `StopIteration` after the last batch of a pass. It has no reference to the loader, because DALI has a
    reference to it: DALI's threads would otherwise keep the loader, and so themselves, alive after the last use.
    """

    def __init__(self, dataset: GrayscaleDataset | ImageFolder):
        self.dataset = dataset
        self.begin([])

    @property
    def files(self) -> bool:
        """True if samples are names of files, False if they are pixels."""
        return isinstance(self.dataset, ImageFolder)

    def begin(self, batches: list[list[int]]) -> None:
        """Begin a pass of these batches, each a list of indices; with an empty list the current pass just ends."""
        self.ahead = deque(batches)

    def __call__(self) -> tuple[Any, np.ndarray]:
        if not self.ahead:
            raise StopIteration
        batch = self.ahead.popleft()
        if isinstance(self.dataset, ImageFolder):
            samples = [self.dataset.samples[index] for index in batch]
            names = [np.frombuffer(os.fsencode(path), np.uint8) for path, _ in samples]
            return names, np.array([label for _, label in samples], np.int64)
        images = np.asarray(self.dataset.images[batch])
        return images[..., None], np.asarray(self.dataset.labels[batch], np.int64)
