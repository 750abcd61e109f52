"""`memload.open_matlab`: the variables of a MATLAB file, read into memory once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from memload.dataset.dataset import Dataset
from memload.formats.matlab import read_matlab
from memload.formats.members import Key
from memload.formats.paths import PathLike, no_file
from memload.formats.ragged_arrays import field_of
from memload.formats.row_digests import digest_of_rows


def open_matlab(
    path: PathLike, *, key: Key = None, field: str | None = None, axis: int | Mapping[str, int] | None = None
) -> Dataset:
    """Return variables of a MATLAB file (up to version 7) as a dataset in memory; scipy reads them once, whole.

    Such files are stored column by column, and mostly compressed, so no row can be read in place: write the dataset by
    `memload.write`, and open that from then on. A write that was interrupted goes on if the same variables are read
    again. Files of version 7.3 are HDF5, which `memload.open` reads in place.

    Vectors are rows of single numbers, and other arrays have their shape with the axis of the rows in front. Classes
    are those of MATLAB: double is float64, also of whole numbers, which files store in fewer bytes; logical is bool.
    Char arrays and cells of these are texts; cells of vectors are rows that differ in length. Fields of a struct are
    named "name/field".

    Args:
        path: the file.
        key: the variables that become fields, as in `memload.open`; default: all, which must have equally many rows.
        field: with a `key` of one variable, the name of the field.
        axis: the axis that counts the rows, such as -1 for arrays of (neurons, time); or one for each field, by name.
            A stated axis is followed whatever the shape is: -1 makes one row of 50 numbers of an array (50, 1). None,
            and fields without one: the first axis, but n rows of single numbers of a vector (1, n).

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such file.
        FormatError: it is damaged, or of version 7.3; or a variable is complex, sparse or of another class.
        KeyError: `key` or `axis` names what does not exist.
        ValueError: variables differ in their number of rows, or one has no such axis.
        ImportError: scipy is not installed: ``pip install "memload[matlab]"``.

    Example:
        >>> import memload, numpy, scipy.io, tempfile
        >>> path = tempfile.mkdtemp() + "/session.mat"
        >>> scipy.io.savemat(path, {"rates": numpy.ones((100, 7)), "angle": numpy.arange(100.0), "fs": 30.0})
        >>> ds = memload.open_matlab(path, key=["rates", "angle"])
        >>> ds[3]["rates"].shape, float(ds[3]["angle"])
        (torch.Size([7]), 3.0)
    """
    place = Path(path)
    if not place.is_file():
        raise no_file(place)
    found = {name: field_of(name, values) for name, values in read_matlab(place, key, field, axis).items()}
    return Dataset({name: replace(one, digest=digest_of_rows(one)) for name, one in found.items()})
