"""The loop of each peer: float32 images and their row numbers, shuffled, out of the peer's own form of the same data.

A peer has three things: `prepare` writes its form of the data once, `settings` are what the search tries, the first of
them as its authors recommend, and `loop` makes an object whose iteration is one epoch of (images, rows). Only torch,
numpy and the peer itself are imported here, and the peer only by its own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Iterable[Batch]
Setting = dict[str, Any]


def cast(images: torch.Tensor) -> torch.Tensor:
    """What every peer's images become, in place after the conversion: memory is touched once less than by operators."""
    return images.to(torch.float32).sub_(127).div_(255.0)


def batches_of_rows(count: int, size: int) -> list[np.ndarray]:
    """Whole batches of shuffled row numbers."""
    rows = torch.randperm(count).numpy()
    return [rows[first : first + size] for first in range(0, count - size + 1, size)]


class Numbers:
    """Batches of shuffled row numbers, anew for each epoch, as a sampler."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count // self.size

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(batches_of_rows(self.count, self.size))


class Gathered(torch.utils.data.Dataset):
    """A dataset that takes a whole batch of row numbers, for the peers that are arrays or tables."""

    def __init__(self, read: Callable[[Any, np.ndarray], np.ndarray], opened: Callable[[], Any], count: int) -> None:
        self.read, self.opened, self.count, self.source = read, opened, count, None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: np.ndarray) -> Batch:
        if self.source is None:  # in each worker: most libraries do not survive a fork
            self.source = self.opened()
        return cast(torch.from_numpy(self.read(self.source, rows))), torch.from_numpy(rows)

    def loader(self, size: int, workers: int) -> Loop:
        more = {"multiprocessing_context": "spawn", "persistent_workers": True} if workers else {}
        numbers = Numbers(self.count, size)
        return torch.utils.data.DataLoader(self, batch_size=None, sampler=numbers, num_workers=workers, **more)


WORKERS: list[Setting] = [{"workers": workers} for workers in (2, 0, 1)]


# memload


def memload_prepare(images: np.ndarray, folder: Path) -> None:
    import memload

    memload.write(folder / "shards", {"image": images, "row": np.arange(len(images))}, progress=False)


def memload_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    import memload

    rule = memload.Cast(torch.float32, norm_removed=True)
    data = memload.open(folder / "shards").as_tuple("image", "row")
    return memload.FastLoader(data, size, shuffle=True, drop_last=True, cast={"image": rule}, **setting)


# torch: rows one by one, as most datasets are written, or batches by a sampler of batches


class Rows(torch.utils.data.Dataset):
    """Rows of a mapped array."""

    def __init__(self, path: Path) -> None:
        self.images = torch.from_numpy(np.load(path, mmap_mode="c"))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> Batch:
        return self.images[row], row


def npy_prepare(images: np.ndarray, folder: Path) -> None:
    np.save(folder / "images.npy", images)


class _CastAfter:
    def __init__(self, loader: Loop) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        for images, rows in self.loader:
            yield cast(images), rows


def torch_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    workers, path = setting["workers"], folder / "images.npy"
    if setting["batched"]:
        return Gathered(_taken, _Opened(path), count).loader(size, workers)
    more = {"persistent_workers": True} if workers else {}
    return _CastAfter(
        torch.utils.data.DataLoader(Rows(path), size, shuffle=True, drop_last=True, num_workers=workers, **more)
    )


class _Opened:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> np.ndarray:
        return np.load(self.path, mmap_mode="r")


def _taken(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return images[rows]


# Pipelines and loaders


def spdl_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    from spdl.pipeline import PipelineBuilder

    images = np.load(folder / "images.npy", mmap_mode="r")

    def read(rows: np.ndarray) -> Batch:
        return cast(torch.from_numpy(images[rows])), torch.from_numpy(rows)

    class Epochs:
        def __iter__(self) -> Iterator[Batch]:
            builder = PipelineBuilder().add_source(batches_of_rows(count, size))
            made = builder.pipe(read, concurrency=setting["threads"], output_order="input").add_sink(2)
            pipeline = made.build(num_threads=setting["threads"])
            with pipeline.auto_stop():
                yield from pipeline

    return Epochs()


def grain_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    import grain

    images = np.load(folder / "images.npy", mmap_mode="r")

    class Source:
        def __len__(self) -> int:
            return count

        def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
            return images[row], row

    class Epochs:
        epoch = 0

        def __iter__(self) -> Iterator[Batch]:
            self.epoch += 1
            data = grain.MapDataset.source(Source()).shuffle(seed=self.epoch).batch(size, drop_remainder=True)
            options = grain.ReadOptions(num_threads=setting["threads"], prefetch_buffer_size=setting["ahead"])
            for block, rows in data.to_iter_dataset(options):
                yield cast(torch.from_numpy(block)), torch.from_numpy(rows)

    return Epochs()


def tensordict_prepare(images: np.ndarray, folder: Path) -> None:
    from tensordict import TensorDict

    fields = {"image": torch.from_numpy(images), "row": torch.arange(len(images))}
    TensorDict(fields, batch_size=[len(images)]).memmap(folder / "tensordict")


def tensordict_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    from tensordict import TensorDict

    data = TensorDict.load_memmap(folder / "tensordict")
    workers = setting["workers"]
    more = {"persistent_workers": True} if workers else {}
    loader = torch.utils.data.DataLoader(
        data, size, shuffle=True, drop_last=True, num_workers=workers, collate_fn=_pair, **more
    )
    return _CastAfter(loader)


def _pair(batch: Any) -> Batch:
    return batch["image"], batch["row"]


def huggingface_prepare(images: np.ndarray, folder: Path) -> None:
    from datasets import Array3D, Dataset, Features, List, Value

    flat = List(Value("uint8"), length=int(np.prod(images.shape[1:])))
    for name, form in (("array", Array3D(images.shape[1:], "uint8")), ("flat", flat)):
        rows = [
            {"image": image.reshape(-1) if name == "flat" else image, "row": row} for row, image in enumerate(images)
        ]
        features = Features({"image": form, "row": Value("int64")})
        more = {"cache_dir": str(folder / "cache"), "writer_batch_size": 64, "fingerprint": name}
        made = Dataset.from_generator(lambda rows=rows: iter(rows), features=features, **more)
        made.save_to_disk(str(folder / name))


def huggingface_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    from datasets import load_from_disk

    data = load_from_disk(str(folder / setting["form"])).with_format("torch")
    workers = setting["workers"]
    more = {"persistent_workers": True} if workers else {}
    loader = torch.utils.data.DataLoader(data, size, shuffle=True, drop_last=True, num_workers=workers, **more)

    class Epochs:
        def __iter__(self) -> Iterator[Batch]:
            return ((cast(batch["image"].view(-1, *SHAPE)), batch["row"]) for batch in loader)

    return Epochs()


def declare_torchvision() -> None:
    """Declare two operators of torchvision, so that it can be imported beside a torch that it was not built for."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    KEPT.append(library)


KEPT: list[Any] = []


def streaming_prepare(images: np.ndarray, folder: Path) -> None:
    declare_torchvision()
    from streaming import MDSWriter

    shape = ",".join(map(str, images.shape[1:]))
    with MDSWriter(out=str(folder / "mds"), columns={"image": f"ndarray:uint8:{shape}", "row": "int"}) as writer:
        for row, image in enumerate(images):
            writer.write({"image": image, "row": row})


def streaming_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    if not KEPT:
        declare_torchvision()
    from streaming import StreamingDataset

    data = StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=size)
    workers = setting["workers"]
    more = {"persistent_workers": True} if workers else {}
    loader = torch.utils.data.DataLoader(data, size, drop_last=True, num_workers=workers, **more)

    class Epochs:
        def __iter__(self) -> Iterator[Batch]:
            return ((cast(batch["image"]), batch["row"]) for batch in loader)

    return Epochs()


def litdata_prepare(images: np.ndarray, folder: Path) -> None:
    from litdata.streaming import Cache

    cache = Cache(str(folder / "chunks"), chunk_bytes="64MB")
    for row, image in enumerate(images):
        cache[row] = {"image": image, "row": row}
    cache.done()
    cache.merge()


def litdata_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(str(folder / "chunks"), shuffle=True, drop_last=True)
    loader = StreamingDataLoader(data, batch_size=size, num_workers=setting["workers"])

    class Epochs:
        def __iter__(self) -> Iterator[Batch]:
            return ((cast(torch.as_tensor(one["image"])), torch.as_tensor(one["row"])) for one in loader)

    return Epochs()


def webdataset_prepare(images: np.ndarray, folder: Path) -> None:
    import webdataset

    with webdataset.ShardWriter(str(folder / "images-%03d.tar"), maxcount=250, verbose=0) as writer:
        for row, image in enumerate(images):
            writer.write({"__key__": f"{row:07}", "image.npy": image, "row.cls": row})


def webdataset_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    import webdataset

    paths = sorted(map(str, folder.glob("images-*.tar")))
    data = webdataset.WebDataset(paths, shardshuffle=len(paths), workersplitter=webdataset.split_by_worker)
    data = data.shuffle(setting["buffer"]).decode().to_tuple("image.npy", "row.cls").batched(size, partial=False)
    loader = webdataset.WebLoader(data, batch_size=None, num_workers=setting["workers"])

    class Epochs:
        def __iter__(self) -> Iterator[Batch]:
            return ((cast(torch.as_tensor(block)), torch.as_tensor(rows)) for block, rows in loader)

    return Epochs()


def turboloader_prepare(images: np.ndarray, folder: Path) -> None:
    import turboloader

    writer = turboloader.TblWriterV2(str(folder / "images.tbl"), enable_compression=False)
    for image in images:
        height, width = image.shape[:2]
        writer.add_sample(image.tobytes(), turboloader.SampleFormat.RAW_U8, width=width, height=height)
    writer.finalize()
    npy_prepare(images, folder)


def turboloader_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    return (_tbl_loop if setting["form"] == "raw" else _turboloader_array_loop)(folder, size, count, setting)


def _turboloader_array_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    import turboloader

    images = np.load(folder / "images.npy", mmap_mode="r")
    loader = turboloader.ArrayDataLoader(images, np.arange(count), batch_size=size, shuffle=True, drop_last=True)

    class Epochs:
        def __iter__(self) -> Iterator[Batch]:
            return ((cast(torch.from_numpy(np.asarray(block))), torch.as_tensor(rows)) for block, rows in loader)

    return Epochs()


def _tbl_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    import turboloader

    more = {"mean": [127 / 255] * 3, "std": [1.0] * 3, "prefetch_batches": setting["prefetch"]}
    loader = turboloader.TblRawImageLoader(folder / "images.tbl", size, drop_last=True, channels_last=True, **more)
    epochs = iter(range(1 << 30))

    class Epochs:
        def __iter__(self) -> Iterator[Batch]:
            loader.set_epoch(next(epochs))
            return ((torch.from_numpy(block), torch.from_numpy(meta["indices"])) for block, meta in loader)

    return Epochs()


class _RowsOfBatches:
    """Blocks of an array and their row numbers, a new order in each epoch; DALI sends it to its worker processes."""

    def __init__(self, path: Path, count: int, size: int) -> None:
        self.path, self.count, self.size = path, count, size
        self.epoch, self.rows, self.images = -1, np.empty(0, np.int64), None

    def __call__(self, at: Any) -> tuple[np.ndarray, np.ndarray]:
        if self.images is None:
            self.images = np.load(self.path, mmap_mode="r")
        if at.epoch_idx != self.epoch:
            self.epoch, self.rows = at.epoch_idx, np.random.default_rng(at.epoch_idx).permutation(self.count)
        if at.iteration >= self.count // self.size:
            raise StopIteration
        row = self.rows[at.idx_in_epoch]
        return self.images[row], np.array([row])


def dali_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    from nvidia.dali import fn, pipeline_def, types

    workers = setting["workers"]
    more = {"py_num_workers": workers, "py_start_method": "spawn"} if workers else {}

    @pipeline_def(batch_size=size, num_threads=setting["threads"], device_id=None, **more)
    def images_and_rows() -> tuple[Any, Any]:
        source = _RowsOfBatches(folder / "images.npy", count, size)
        image, row = fn.external_source(source, num_outputs=2, batch=False, parallel=workers > 0)
        return (fn.cast(image, dtype=types.FLOAT) - 127.0) / 255.0, row

    pipeline = images_and_rows()
    pipeline.build()

    class Epochs:
        def __iter__(self) -> Iterator[Batch]:
            pipeline.reset()
            for _ in range(count // size):
                image, row = pipeline.run()
                yield torch.from_numpy(image.as_array()), torch.from_numpy(row.as_array()[:, 0])

    return Epochs()


class _ImagesAndRows:
    """Images with their row numbers, for a writer that takes them one by one."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return self.images[row], row


def ffcv_prepare(images: np.ndarray, folder: Path) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {"image": RGBImageField(write_mode="raw"), "row": IntField()}
    DatasetWriter(str(folder / "images.beton"), fields, num_workers=1).from_indexed_dataset(_ImagesAndRows(images))


def ffcv_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    loader = Loader(
        str(folder / "images.beton"),
        batch_size=size,
        num_workers=setting["threads"],
        order=OrderOption.RANDOM,
        drop_last=True,
        pipelines={"image": [SimpleRGBImageDecoder(), ToTensor()], "row": [IntDecoder(), ToTensor()]},
    )

    class Epochs:
        def __iter__(self) -> Iterator[Batch]:
            return ((cast(images), rows[:, 0].clone()) for images, rows in loader)

    return Epochs()


# Arrays and tables, in torch's DataLoader with a sampler of batches


def lance_prepare(images: np.ndarray, folder: Path) -> None:
    import lance
    import pyarrow as pa

    values = pa.array(images.reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(values, int(np.prod(images.shape[1:])))
    lance.write_dataset(pa.table({"image": column}), str(folder / "images.lance"))


class _Lance(_Opened):
    def __call__(self) -> Any:
        import lance

        return lance.dataset(str(self.path))


def _of_lance(data: Any, rows: np.ndarray) -> np.ndarray:
    block = data.take(rows, columns=["image"])["image"].combine_chunks()
    return block.flatten().to_numpy().reshape(len(rows), *SHAPE).copy()


def lance_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    return Gathered(_of_lance, _Lance(folder / "images.lance"), count).loader(size, setting["workers"])


def zarr_prepare(images: np.ndarray, folder: Path) -> None:
    import zarr

    made = zarr.create_array(
        folder / "images.zarr", shape=images.shape, chunks=(1, *images.shape[1:]), dtype="u1", compressors=None
    )
    made[:] = images


class _Zarr(_Opened):
    def __call__(self) -> Any:
        import zarr

        return zarr.open_array(self.path, mode="r")


class _Zarrs(_Zarr):
    def __call__(self) -> Any:
        import zarr
        import zarrs  # noqa: F401 - registers its pipeline

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        return super().__call__()


def _of_zarr(data: Any, rows: np.ndarray) -> np.ndarray:
    return np.asarray(data.get_orthogonal_selection((rows,)))


def zarr_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    return Gathered(_of_zarr, _Zarr(folder / "images.zarr"), count).loader(size, setting["workers"])


def zarrs_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    return Gathered(_of_zarr, _Zarrs(folder / "images.zarr"), count).loader(size, setting["workers"])


def h5py_prepare(images: np.ndarray, folder: Path) -> None:
    import h5py

    with h5py.File(folder / "images.h5", "w") as file:
        file["image"] = images


class _H5py(_Opened):
    def __call__(self) -> Any:
        import h5py

        return h5py.File(self.path)["image"]


def _of_h5py(data: Any, rows: np.ndarray) -> np.ndarray:
    block = np.empty((len(rows), *data.shape[1:]), np.uint8)
    for k, row in enumerate(rows):  # a list of rows would have to be sorted, and is read more slowly
        data.read_direct(block, np.s_[row], np.s_[k])
    return block


def h5py_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    return Gathered(_of_h5py, _H5py(folder / "images.h5"), count).loader(size, setting["workers"])


def tensorstore_prepare(images: np.ndarray, folder: Path) -> None:
    import tensorstore

    form = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder / "images.ts")}}
    chunk = {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, *images.shape[1:]]}}}
    spec = {**form, "metadata": {"shape": list(images.shape), "data_type": "uint8", **chunk}}
    tensorstore.open(spec, create=True).result()[:] = images


class _Tensorstore(_Opened):
    def __call__(self) -> Any:
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(self.path)}}
        return tensorstore.open(spec, read=True).result()


def _of_tensorstore(data: Any, rows: np.ndarray) -> np.ndarray:
    return data[rows].read().result()


def tensorstore_loop(folder: Path, size: int, count: int, setting: Setting) -> Loop:
    return Gathered(_of_tensorstore, _Tensorstore(folder / "images.ts"), count).loader(size, setting["workers"])


SHAPE = (224, 224, 3)

_TORCH: list[Setting] = [{"batched": batched, "workers": workers} for batched in (False, True) for workers in (2, 0, 1)]
_TURBOLOADER: list[Setting] = [*({"form": "raw", "prefetch": ahead} for ahead in (2, 0, 4)), {"form": "array"}]
_THREADS: list[Setting] = [{"threads": threads} for threads in (2, 1, 4)]

LOOPS: dict[str, tuple[Callable[[np.ndarray, Path], None], list[Setting], Callable[..., Loop]]] = {
    "memload": (memload_prepare, [{}, {"threads": 2, "depth": 4}, {"threads": 1}], memload_loop),
    "torch": (npy_prepare, _TORCH, torch_loop),
    "spdl": (npy_prepare, _THREADS, spdl_loop),
    "ffcv": (ffcv_prepare, _THREADS[:2], ffcv_loop),
    "grain": (npy_prepare, [{"threads": t, "ahead": a} for t, a in ((16, 500), (2, 64), (4, 128), (1, 8))], grain_loop),
    "tensordict": (tensordict_prepare, WORKERS, tensordict_loop),
    "huggingface": (
        huggingface_prepare,
        [{"form": form, "workers": w} for form in ("array", "flat") for w in (2, 0)],
        huggingface_loop,
    ),
    "streaming": (streaming_prepare, WORKERS, streaming_loop),
    "litdata": (litdata_prepare, WORKERS, litdata_loop),
    "webdataset": (webdataset_prepare, [{"buffer": 1000, "workers": w} for w in (2, 0, 1)], webdataset_loop),
    "turboloader": (turboloader_prepare, _TURBOLOADER, turboloader_loop),
    "dali": (npy_prepare, [{"threads": 2, "workers": w} for w in (2, 1, 0)], dali_loop),
    "lance": (lance_prepare, WORKERS, lance_loop),
    "zarr": (zarr_prepare, WORKERS, zarr_loop),
    "zarrs": (zarr_prepare, WORKERS, zarrs_loop),
    "h5py": (h5py_prepare, WORKERS, h5py_loop),
    "tensorstore": (tensorstore_prepare, WORKERS, tensorstore_loop),
}
