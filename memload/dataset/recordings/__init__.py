"""Recordings: fields with clocks, intervals of time, and the slices of time that are cut from them.

recording.py   `Recording`, `recording`: fields, clocks and intervals, and what they say of themselves
opening.py     recordings of files: `open_nwb`
grids.py       what slices are asked for, and the samples of each field
slicing.py     which slices there are, and the dataset that has them as rows
ranges.py      ranges of nanoseconds, and what several of them have in common
"""
