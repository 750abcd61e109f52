"""Folders as experanto has them, for tests and pages: each device in a folder of its own."""

import json

import numpy as np
import yaml


def sequence(folder, data, rate, start=0.0, *, mapped=False, shifts=None):
    """A device whose rows are numbers, (timestamps, signals)."""
    (folder / "meta").mkdir(parents=True)
    meta = {
        "modality": "sequence",
        "sampling_rate": rate,
        "start_time": start,
        "end_time": start + (len(data) - 1) / rate,
        "n_signals": data.shape[1],
        "n_timestamps": len(data),
        "dtype": str(data.dtype),
        "is_mem_mapped": mapped,
        "phase_shift_per_signal": shifts is not None,
    }
    if mapped:
        data.tofile(folder / "data.mem")
    else:
        np.save(folder / "data.npy", data)
    if shifts is not None:
        np.save(folder / "meta" / "phase_shifts.npy", shifts)
    np.save(folder / "timestamps.npy", start + np.arange(len(data)) / rate)
    write_yaml(folder / "meta.yml", meta)


def screen(folder, shown, times, *, combined=True):
    """A screen that shows files: arrays (H, W), (frames, H, W), or the number of a blank; with the tier of each."""
    (folder / "data").mkdir(parents=True)
    (folder / "meta").mkdir()
    entries, first = {}, 0
    size = list(next(one for one, _ in shown if not np.isscalar(one)).shape[-2:])
    for number, (one, tier) in enumerate(shown):
        kind = "blank" if np.isscalar(one) else ("image", "video")[np.ndim(one) - 2]
        entry = {"modality": kind, "image_size": size, "first_frame_idx": first, "tier": tier, "condition": number % 3}
        if kind == "blank":
            entry["interleave_value"] = one
        else:
            np.save(folder / "data" / f"{number:05d}.npy", one)
        if kind == "video":
            entry["num_frames"] = len(one)
        first += len(one) if kind == "video" else 1
        entries[f"{number:05d}"] = entry
        write_yaml(folder / "meta" / f"{number:05d}.yml", entry)
    if combined:
        (folder / "combined_meta.json").write_text(json.dumps(entries))
    np.save(folder / "timestamps.npy", times)
    write_yaml(folder / "meta.yml", {"modality": "screen", "frame_rate": 30.0})


def spikes(folder, times, stop):
    """Spikes of units, bare numbers one after the other."""
    folder.mkdir(parents=True)
    np.concatenate(times).tofile(folder / "spikes.npy")
    meta = {"modality": "spikes", "n_signals": len(times), "start_time": 0.0, "end_time": stop}
    write_yaml(folder / "meta.yml", meta | {"spike_indices": [0, *np.cumsum([*map(len, times)]).tolist()]})


def intervals(folder, **tables):
    """Pairs (start, stop) by label."""
    folder.mkdir(parents=True)
    for label, pairs in tables.items():
        np.save(folder / f"{label}.npy", np.asarray(pairs))
    labels = {label: f"{label}.npy" for label in tables}
    write_yaml(folder / "meta.yml", {"modality": "time_interval", "labels": labels, "start_time": 0, "end_time": 100})


def write_yaml(path, document):
    """Write a document."""
    path.write_text(yaml.safe_dump(document))
