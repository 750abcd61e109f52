"""Videos are decoded once: frames and times as PyAV has them, in parallel, resumable."""

import os
import signal
from fractions import Fraction

import numpy as np
import pytest
from children import in_fork
from nifti_cases import rows_of, saved
from video_cases import decoded, silence, written

import memload
from memload.cli.main import main
from memload.formats.video import Video

RNG = np.random.default_rng(0)
FRAMES = RNG.integers(0, 256, (45, 24, 32, 3), np.uint8)


def test_frames_are_those_that_were_encoded(tmp_path):
    path = written(tmp_path / "clip.mkv", FRAMES)
    clips = memload.write_videos(tmp_path / "clips", path)
    (clip,) = clips.values()
    assert list(clips) == ["clip"]
    np.testing.assert_array_equal(rows_of(clip, "frames"), FRAMES)
    assert clip.clocks["frames"].rate == 30
    assert clip.span == (0, 1.5)
    assert str(memload.open_recording(tmp_path / "clips")) == str(clip)
    batch = next(iter(memload.FastLoader(clip.slices(0.5, rates={"frames": 10}), 3)))
    np.testing.assert_array_equal(batch["frames"][1], FRAMES[15:30:3])


@pytest.mark.parametrize("name", ["clip.mp4", "clip.avi"])
def test_lossy_frames_are_those_that_pyav_decodes(tmp_path, name):
    path = written(tmp_path / name, FRAMES, codec="mpeg4", pixels="yuv420p", rate=Fraction(30000, 1001))
    (clip,) = memload.write_videos(tmp_path / "rgb", path).values()
    np.testing.assert_array_equal(rows_of(clip, "frames"), decoded(path)[0])
    assert clip.clocks["frames"].rate == Fraction(30000, 1001)
    (grey,) = memload.write_videos(tmp_path / "grey", path, mode="L", codec="lz4").values()
    np.testing.assert_array_equal(rows_of(grey, "frames"), decoded(path, "gray")[0])
    assert grey.fields["frames"].shape == (24, 32)


def test_times_are_those_of_the_container(tmp_path):
    times = 500 + np.cumsum(RNG.integers(20, 90, 45)) + 3000 * (np.arange(45) > 20)
    path = written(tmp_path / "clip.mkv", FRAMES, times=times)
    (clip,) = memload.write_videos(tmp_path / "clip", path).values()
    clock = clip.clocks["frames"]
    np.testing.assert_allclose(clock.seconds(45), decoded(path)[1])
    np.testing.assert_allclose(clock.seconds(45), times / 1000)
    assert len(clip.pieces("frames")[0]) == 1  # a frame stays until the next one
    held = clip.slices(0.01, at=[(times[20] + 2000) / 1000], rates={"frames": 100}, sampling="previous")
    np.testing.assert_array_equal(held[0]["frames"][0], FRAMES[20])


def test_a_rate_takes_the_frame_that_is_shown(tmp_path):
    times = 500 + np.cumsum(RNG.integers(20, 90, 45))
    path = written(tmp_path / "clip.mkv", FRAMES, times=times)
    (clip,) = memload.write_videos(tmp_path / "clip", path, rate=25).values()
    rows = rows_of(clip, "frames")
    expected = np.searchsorted(times, times[0] + 40 * np.arange(len(rows)), side="right") - 1
    np.testing.assert_array_equal(rows, FRAMES[expected])
    assert times[0] + 40 * len(rows) > times[-1]
    assert (clip.clocks["frames"].rate, clip.clocks["frames"].start) == (25, times[0] / 1000)
    path = written(tmp_path / "even.mkv", FRAMES, rate=30)
    for rate, expected in ((15, FRAMES[::2]), (60, np.repeat(FRAMES, 2, axis=0)), (30, FRAMES)):
        (clip,) = memload.write_videos(tmp_path / f"{rate}", path, rate=rate).values()
        np.testing.assert_array_equal(rows_of(clip, "frames"), expected)


def test_frames_are_resized_and_turned_upright(tmp_path):
    smooth = np.broadcast_to(np.linspace(0, 255, 64)[None, None, :, None], (4, 32, 64, 3)).astype(np.uint8)
    path = written(tmp_path / "clip.mkv", smooth)
    (clip,) = memload.write_videos(tmp_path / "small", path, size=(8, 16)).values()
    assert clip.fields["frames"].shape == (8, 16, 3)
    means = smooth.reshape(4, 8, 4, 16, 4, 3).mean((2, 4))
    np.testing.assert_allclose(rows_of(clip, "frames"), means, atol=6)
    assert memload.write_videos(tmp_path / "square", path, size=12)["clip"].fields["frames"].shape == (12, 12, 3)
    turned = written(tmp_path / "turned.mp4", FRAMES, codec="mpeg4", pixels="yuv420p", rotation=90)
    (clip,) = memload.write_videos(tmp_path / "turned", turned).values()
    np.testing.assert_array_equal(rows_of(clip, "frames"), np.rot90(decoded(turned)[0], axes=(1, 2)))
    (clip,) = memload.write_videos(tmp_path / "turned_small", turned, size=(16, 8)).values()
    assert clip.fields["frames"].shape == (16, 8, 3)


def test_several_are_written_side_by_side_and_kept(tmp_path, capfd):
    for number in range(3):
        written(tmp_path / f"clip{number}.mkv", FRAMES + np.uint8(number), audio=number == 1)
    broken = tmp_path / "clip2.mkv"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(memload.FormatError, match=r"clip2\.mkv: cut short"):
        memload.write_videos(tmp_path / "clips", tmp_path / "*.mkv", threads=1)
    broken.write_bytes(whole)
    clips = memload.write_videos(tmp_path / "clips", tmp_path / "*.mkv")
    assert capfd.readouterr().err.count("complete already") == 2
    for number in range(3):
        np.testing.assert_array_equal(rows_of(clips[f"clip{number}"], "frames"), FRAMES + np.uint8(number))
    joined = memload.concat([clip.slices(0.5) for clip in clips.values()])
    assert len(joined) == 9


def test_a_killed_call_goes_on_behind_its_complete_shards(tmp_path, capfd):
    path = written(tmp_path / "clip.mkv", FRAMES)
    options = {"shard_bytes": 10 * FRAMES[0].nbytes}

    def killed():
        frames = Video.frames

        def some(self, start=0):
            for number, frame in enumerate(frames(self, start)):
                if number == 35:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield frame

        Video.frames = some
        import memload.writing.videos as writing

        writing._BLOCK_BYTES = 5 * FRAMES[0].nbytes
        memload.write_videos(tmp_path / "out", path, progress=False, **options)

    assert in_fork(killed) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    capfd.readouterr()
    (clip,) = memload.write_videos(tmp_path / "out", path, **options).values()
    assert "resumed where it was interrupted, at row " in capfd.readouterr().err
    np.testing.assert_array_equal(rows_of(clip, "frames"), FRAMES)
    assert clip.clocks["frames"].rate == 30
    with pytest.raises(FileExistsError, match="exists already"):
        memload.write_videos(tmp_path / "out", path, **options)


def refused(tmp_path, path, kind, message, **options):
    with pytest.raises(kind, match=message):
        memload.write_videos(tmp_path / "out", path, **options)
    assert not (tmp_path / "out").exists()


def test_damaged_videos_are_told(tmp_path):
    path = written(tmp_path / "clip.mkv", FRAMES)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(tmp_path, path, memload.FormatError, r"clip\.mkv: cut short: its \d+ frames end at .* promises 1\.500 s")
    path.write_bytes(whole[: whole.index(b"\x1f\x43\xb6\x75") + 20])  # within the head of the first cluster
    refused(tmp_path, path, memload.FormatError, r"clip\.mkv: cut short: its 0 frames end at 0\.000 s, .* 1\.500 s")
    path.write_bytes(whole[:40])
    refused(tmp_path, path, memload.FormatError, r"clip\.mkv: (no video that FFmpeg opens|it has no video)")
    mp4 = {"codec": "mpeg4", "pixels": "yuv420p"}
    path = written(tmp_path / "clip.mp4", FRAMES, **mp4)
    path.write_bytes(path.read_bytes()[:-500])  # its index is at the end
    refused(
        tmp_path, path, memload.FormatError, r"clip\.mp4: no video that FFmpeg opens \(.*\); it was cut short, perhaps"
    )
    path = written(tmp_path / "clip.mp4", FRAMES, **mp4, muxer={"movflags": "faststart"})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(tmp_path, path, memload.FormatError, r"clip\.mp4: cut short")
    path.write_bytes(b"no video at all")
    refused(tmp_path, path, memload.FormatError, r"clip\.mp4: no video that FFmpeg opens")


def test_what_is_no_video_is_told(tmp_path):
    sound = silence(tmp_path / "sound.mkv")
    refused(tmp_path, sound, memload.FormatError, r"sound\.mkv: it has no video; its streams are audio")
    (tmp_path / "text.txt").write_text("x")
    refused(tmp_path, tmp_path / "text.txt", memload.FormatError, r"no name of a video, such as text\.mp4")
    refused(tmp_path, tmp_path / "none.mp4", FileNotFoundError, r"none\.mp4: there is nothing at this path")
    path = written(tmp_path / "clip.mkv", FRAMES)
    refused(tmp_path, path, ValueError, r'mode is "RGB" or "L" for videos', mode="RGBA")
    refused(tmp_path, path, ValueError, r"size is \(height, width\), or one number", size=0)
    refused(tmp_path, path, ValueError, "rate= must be positive", rate=-1)
    refused(tmp_path, path, ValueError, r'codec="auto" samples rows', codec="auto")
    refused(tmp_path, path, ValueError, "codec= names the field 'x'; the rows have 'frames'", codec={"x": "lz4"})
    with pytest.raises(
        memload.FormatError, match=r"videos are decoded once, into recordings: memload write .*clip\.mkv DST"
    ):
        memload.open(path)
    with pytest.raises(memload.FormatError, match=r"it has videos, which `memload write` decodes"):
        (tmp_path / "movies").mkdir()
        memload.open(path.rename(tmp_path / "movies" / path.name).parent)


def test_frames_of_bare_streams_have_no_times(tmp_path):
    path = written(tmp_path / "bare.h264", FRAMES, codec="libx264", pixels="yuv420p")
    refused(tmp_path, path, memload.FormatError, r"frame 0 has no time, as in bare streams; .*-c copy bare\.mp4")


def test_the_command_decodes_videos(tmp_path, capsys):
    for number in range(2):
        written(tmp_path / f"clip{number}.mkv", FRAMES)
    clips = [str(tmp_path / f"clip{number}.mkv") for number in range(2)]
    options = ["--size", "12x16", "--rate", "10", "--mode", "L", "--codec", "zstd", "--quiet"]
    assert main(["write", *clips, str(tmp_path / "out"), *options]) == 0
    assert capsys.readouterr().out.count("uint8 (12, 16)  10 Hz, 0.0 to 1.5 s, 15 rows") == 2
    assert memload.open_recording(tmp_path / "out" / "clip1").fields["frames"].rows == 15
    assert main(["write", *clips, str(tmp_path / "two"), "--mask", "x.npy"]) == 2
    assert "--mask: not for videos, which become recordings" in capsys.readouterr().err
    assert main(["write", *clips, str(tmp_path / "two"), "--size", "ax2"]) == 2
    assert "--size: expected a number of pixels" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", np.zeros(3))
    saved(tmp_path / "run.nii.gz", np.zeros((2, 2, 2, 3), "i2"))
    for other in ("x.npy", "run.nii.gz"):
        assert main(["write", str(tmp_path / other), *clips, str(tmp_path / "two")]) == 2
        told = capsys.readouterr().err
        assert "kinds cannot be mixed: " in told
        assert other in told
        assert "write each kind by a command of its own" in told
    assert not (tmp_path / "two").exists()
