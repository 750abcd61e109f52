"""Recordings in files: their fields, clocks, spikes and intervals, of which rows stay where they are.

`found` is what each reader returns. `nwb` reads files of Neurodata Without Borders, `experanto`, `temporaldata` and
`spikeglx` what these write, and `nifti` runs of fMRI with what `bids` finds beside them. `folder` describes and reads
the folders that `memload.write` makes of recordings, and `kinds` tells all these apart.
"""
