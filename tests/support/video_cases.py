"""Small videos, as PyAV writes them."""

from fractions import Fraction

import av
import numpy as np


def written(path, frames, *, rate=30, codec="ffv1", pixels="bgr0", times=None, tick=Fraction(1, 1000), **options):
    """A video of frames (n, H, W, 3); by default without a loss. `times` are in ticks.

    Options: `rotation` in degrees, `muxer` options by name, `audio` for a stream of silence beside it.
    """
    with av.open(str(path), "w", options=options.get("muxer", {})) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixels
        if options.get("rotation"):
            stream.set_display_rotation(options["rotation"])
        if times is not None:
            stream.codec_context.time_base = tick
        sound = container.add_stream("pcm_s16le", rate=8000) if options.get("audio") else None
        for number, frame in enumerate(frames):
            made = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), "rgb24")
            if times is not None:
                made.pts, made.time_base = int(times[number]), tick
            container.mux(stream.encode(made))
        container.mux(stream.encode())
        if sound is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), "s16", "mono")
            silence.sample_rate = 8000
            container.mux(sound.encode(silence))
            container.mux(sound.encode())
    return path


def silence(path):
    """A file that has sound alone."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def decoded(path, form="rgb24"):
    """All frames as PyAV decodes them, and their times in seconds."""
    with av.open(str(path)) as container:
        frames = [(frame.to_ndarray(format=form), float(frame.time)) for frame in container.decode(video=0)]
    return np.stack([frame for frame, _ in frames]), np.array([time for _, time in frames])
