"""Write the folders of this directory: `python make.py zarr2` with hdmf-zarr 0.13, `python make.py zarr3` with 0.14.

Each becomes a zip file, without the schemas that hdmf-zarr caches, and with what pynwb reads of it in an .npz file.
"""

import datetime
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pynwb
from hdmf_zarr import ZarrDataIO
from hdmf_zarr.nwb import NWBZarrIO
from pynwb.base import ImageReferences, Images
from pynwb.image import GrayscaleImage, ImageSeries, IndexSeries

HERE = Path(__file__).parent


def made() -> pynwb.NWBFile:
    """A session with a series in chunks, links to it, a movie, images that are chosen, units and trials."""
    rng = np.random.default_rng(0)
    file = pynwb.NWBFile("a session", "session 7", datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc))
    data = ZarrDataIO(rng.integers(-999, 999, (1000, 3), np.int16), chunks=(300, 3))
    wheel = pynwb.TimeSeries(
        name="wheel", data=data, unit="m/s", conversion=0.001, offset=2.0, timestamps=np.arange(1000) / 100
    )
    file.add_acquisition(wheel)
    file.add_acquisition(pynwb.TimeSeries(name="linked", data=wheel, unit="m/s", timestamps=wheel))
    shades = [GrayscaleImage(name=f"i{k}", data=rng.integers(0, 256, (4, 3), np.uint8)) for k in range(5)]
    for name, images in (
        ("images", Images(name="images", images=shades)),
        ("ordered", _ordered(rng)),
    ):
        file.add_stimulus_template(images)
        file.add_stimulus(
            IndexSeries(
                name=f"shown_{name}",
                data=np.array([3, 0, 2], np.uint32),
                indexed_images=images,
                unit="N/A",
                timestamps=np.arange(3) * 2.0,
            )
        )
    frames = rng.integers(0, 256, (70, 4, 3), np.uint8)
    file.add_stimulus(ImageSeries(name="movie", data=frames, unit="n.a.", rate=30.0, starting_time=0.5, format="raw"))
    for unit, count in enumerate((40, 0, 15)):
        file.add_unit(spike_times=np.sort(rng.uniform(0, 10, count)), obs_intervals=[[0.0, 10.0]], id=10 + unit)
    file.add_trial_column(name="label", description="-")
    file.add_trial_column(name="angle", description="-")
    for trial in range(4):
        file.add_trial(
            start_time=2.0 * trial, stop_time=2.0 * trial + 1.5, label=f"Größe {trial % 2}", angle=45.0 * trial
        )
    return file


def _ordered(rng: np.random.Generator) -> Images:
    shades = [GrayscaleImage(name=name, data=rng.integers(0, 256, (4, 3), np.uint8)) for name in "dbca"]
    order = ImageReferences(name="order_of_images", data=shades)
    return Images(name="ordered", images=shades, order_of_images=order)


def expected(path: Path) -> dict[str, np.ndarray]:
    """What pynwb reads of a folder."""
    with NWBZarrIO(str(path), "r") as io:
        file = io.read()
        found = {name: np.asarray(file.acquisition[name].data[:]) for name in ("wheel", "linked")}
        found["wheel_times"] = np.asarray(file.acquisition["linked"].timestamps[:])
        found["movie"] = np.asarray(file.stimulus["movie"].data[:])
        for name in ("images", "ordered"):
            series = file.stimulus[f"shown_{name}"]
            images = series.indexed_images
            order = images.order_of_images
            listed = list(images.images.values()) if order is None else list(order.data)
            found[f"shown_{name}"] = np.stack([np.asarray(listed[int(k)].data[:]) for k in series.data[:]])
        for unit in range(3):
            found[f"spikes_{unit}"] = np.asarray(file.units["spike_times"][unit])
        found["units"] = np.asarray(file.units.id[:])
        table = file.trials.to_dataframe()
        found.update(start=table["start_time"].to_numpy(), stop=table["stop_time"].to_numpy())
        found.update(label=table["label"].to_numpy().astype("U"), angle=table["angle"].to_numpy())
        return found


def main() -> None:
    """Write one of the two."""
    kind = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "session.nwb.zarr"
        with NWBZarrIO(str(path), "w") as io:
            io.write(made())
        np.savez_compressed(HERE / f"{kind}.npz", **expected(path))
        shutil.rmtree(path / "specifications")
        with zipfile.ZipFile(HERE / f"{kind}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for one in sorted(path.rglob("*")):
                if one.name != ".zmetadata":
                    archive.write(one, one.relative_to(path))


if __name__ == "__main__":
    main()
