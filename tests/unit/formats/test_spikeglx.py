"""Files of SpikeGLX: what memload reads is what neo says."""

import numpy as np
import pytest
from neo.rawio import SpikeGLXRawIO

import memload

RNG = np.random.default_rng(0)


def written(folder, name, rows, **keys):
    """A .bin file of these samples, and the .meta file that SpikeGLX would write with it."""
    rows.tofile(folder / f"{name}.bin")
    keys = {"fileSizeBytes": rows.nbytes, "fileTimeSecs": 1, "nSavedChans": rows.shape[1], "firstSample": 0, **keys}
    keys["fileName"] = f"D:/runs/{name}.bin"
    (folder / f"{name}.meta").write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return folder / f"{name}.bin"


def probe(folder, *, gains=(500, 500, 500, 500), **keys):
    table = "".join(f"({channel} 0 0 {gain} 250 1)" for channel, gain in enumerate(gains))
    given = {
        "typeThis": "imec",
        "imSampRate": 30000.390625,
        "snsApLfSy": "4,0,1",
        "snsSaveChanSubset": "0:3,384",
        "imAiRangeMax": 0.6,
        "imAiRangeMin": -0.6,
        "imMaxInt": 512,
        "imDatPrb_type": 0,
        "imDatPrb_pn": "NP1010",
        "~imroTbl": f"(0,4){table}",
        "~snsChanMap": "(4,0,1)" + "".join(f"(AP{k};{k}:{k})" for k in range(4)) + "(SY0;384:384)",
    }
    rows = RNG.integers(-512, 512, (3000, 5), np.int16)
    return written(folder, "run_g0_t0.imec0.ap", rows, **{**given, **keys}), rows


def test_channels_and_volts_are_those_of_neo(tmp_path):
    path, rows = probe(tmp_path)
    session = memload.open_spikeglx(path)
    assert session.name == "run_g0_t0.imec0"
    assert {name: field.shape for name, field in session.fields.items()} == {"ap": (4,), "sync": (1,)}
    np.testing.assert_array_equal(session.fields["ap"].gather(np.arange(3000)), rows[:, :4])
    np.testing.assert_array_equal(session.fields["sync"].gather(np.arange(3000)), rows[:, 4:])
    theirs = SpikeGLXRawIO(str(tmp_path))
    theirs.parse_header()
    raw = theirs.get_analogsignal_chunk(0, 0, 0, 3000, 0)
    np.testing.assert_array_equal(session.fields["ap"].gather(np.arange(3000)), raw[:, :4])
    scaled = theirs.rescale_signal_raw_to_float(raw[:, :4], "float64", 0, np.arange(4))
    unit = {"uV": 1e-6, "V": 1.0}[str(theirs.header["signal_channels"]["units"][0])]
    mine = session.casts["ap"].apply(session.fields["ap"].gather(np.arange(3000)))
    np.testing.assert_allclose(mine, scaled * unit, rtol=1e-6)
    assert session.clocks["ap"].hertz == pytest.approx(theirs.get_signal_sampling_rate(0))
    assert session.clocks["ap"].unit == "V"


def test_a_loader_gives_volts_and_windows_are_those_of_the_samples(tmp_path):
    path, rows = probe(tmp_path, imSampRate=30000)
    session = memload.open_recording(path.with_suffix(".meta"), fields=["ap"])
    slices = session.slices(0.01, hop=0.005)
    batch = next(iter(memload.FastLoader(slices, batch_size=4, cast=session.casts)))
    expected = np.stack([rows[150 * k : 150 * k + 300, :4] for k in range(4)])
    np.testing.assert_allclose(batch["ap"], expected * (0.6 / 512 / 500), rtol=1e-6)


def test_gains_of_other_probes_and_cards(tmp_path):
    path, _ = probe(
        tmp_path, imDatPrb_type=21, **{"~imroTbl": "(21,4)(0 1 0 0)(1 1 0 1)(2 1 0 2)(3 1 0 3)"}, imMaxInt=8192
    )
    assert memload.open_spikeglx(path).casts["ap"].scale == pytest.approx(0.6 / 8192 / 80)
    text = path.with_suffix(".meta").read_text()
    path.with_suffix(".meta").write_text(text.replace("imMaxInt=8192\n", ""))
    assert memload.open_spikeglx(path).casts["ap"].scale == pytest.approx(0.6 / 8192 / 80)
    path, _ = probe(tmp_path, imChan0apGain=100, imMaxInt=2048)
    assert memload.open_spikeglx(path).casts["ap"].scale == pytest.approx(0.6 / 2048 / 100)
    rows = RNG.integers(-9, 9, (100, 4), np.int16)
    card = {"typeThis": "nidq", "niSampRate": 25000, "snsMnMaXaDw": "0,1,2,1", "niAiRangeMax": 5, "niMAGain": 10}
    session = memload.open_spikeglx(written(tmp_path, "run_g0_t0.nidq", rows, **card))
    assert list(session.fields) == ["ma", "xa", "digital"]
    assert {name: cast.scale for name, cast in session.casts.items()} == pytest.approx(
        {"ma": 5 / 32768 / 10, "xa": 5 / 32768}
    )
    np.testing.assert_array_equal(session.fields["xa"].gather([7, 3]), rows[[7, 3], 1:3])


@pytest.mark.parametrize("reference", [0, 3])
@pytest.mark.parametrize(
    ("kind", "part", "gain"),
    [
        (24, "NP2010", 80),
        (2003, "NP2003", 100),
        (2013, "NP2013", 100),
        (2013, "NP2014", 100),
        (2014, "NP2014", 100),
        (2020, "NP2020", 100),
    ],
)
def test_the_gain_of_neuropixels_2_is_that_of_neo_and_no_reference(tmp_path, kind, part, gain, reference):
    table = "".join(f"({channel} 0 1 {reference} {channel})" for channel in range(4))
    keys = {"imDatPrb_type": kind, "imDatPrb_pn": part, "~imroTbl": f"({kind},4){table}"}
    path, _ = probe(tmp_path, imMaxInt=2048, imAiRangeMax=0.62, **keys)
    mine = memload.open_spikeglx(path).casts["ap"].scale
    assert mine == pytest.approx(0.62 / 2048 / gain)
    theirs = SpikeGLXRawIO(str(tmp_path))
    theirs.parse_header()
    microvolts = theirs.rescale_signal_raw_to_float(np.ones((1, 1), np.int16), "float64", 0, [0])
    assert mine == pytest.approx(float(microvolts[0, 0]) * 1e-6)
    path, _ = probe(tmp_path, imMaxInt=2048, imAiRangeMax=0.62, imChan0apGain=90, **keys)
    assert memload.open_spikeglx(path).casts["ap"].scale == pytest.approx(0.62 / 2048 / 90)


def test_what_does_not_fit_is_told(tmp_path):
    path, rows = probe(tmp_path, gains=(500, 500, 250, 500))
    assert "channels differ in gain ([250.0, 500.0])" in memload.open_spikeglx(path).left_out["gains of ap"]
    path.write_bytes(rows.tobytes()[:-3])
    session = memload.open_spikeglx(path)
    assert session.fields["ap"].rows == 2999
    assert "7 bytes at its end are no whole sample" in session.left_out[path.name]
    with pytest.raises(KeyError, match=r"no channels 'lf'; there are \{'ap': 4, 'sync': 1\}"):
        memload.open_spikeglx(path, fields=["lf"])
    for keys, message in (
        ({"typeThis": "x"}, "typeThis is 'x'; known are imec, obx, nidq"),
        ({"snsApLfSy": "4,1"}, "snsApLfSy is '4,1'; expected a number for each of ap, lf, sync"),
        ({"snsApLfSy": "3,0,1"}, "nSavedChans is 5, and the channels by kind are"),
        ({"imSampRate": "fast"}, r"imec0\.ap\.meta: imSampRate is 'fast'; expected a number above 0"),
        ({"imSampRate": 0}, r"imec0\.ap\.meta: imSampRate is '0'; expected a number above 0"),
        ({"imSampRate": "1e300"}, r"imec0\.ap\.meta: imSampRate is '1e300': the rate of a clock must lie between"),
        ({"imMaxInt": "0.5"}, r"imec0\.ap\.meta: imMaxInt is '0\.5'; expected a whole number"),
        ({"imMaxInt": "x"}, r"imec0\.ap\.meta: imMaxInt is 'x'; expected a number above 0"),
        ({"imMaxInt": 0}, r"imec0\.ap\.meta: imMaxInt is '0'; expected a number above 0"),
        ({"imAiRangeMax": "nan"}, "imAiRangeMax is 'nan'; expected a number above 0"),
        ({"nSavedChans": "5.5"}, r"nSavedChans is '5\.5'; expected a whole number"),
        ({"~imroTbl": "(0,4)"}, r"imroTbl is '\(0,4\)', without gains of channels; expected entries"),
        ({"gains": (500, 0, 500, 500)}, "imroTbl is .*, without gains of channels"),
        (
            {"imDatPrb_type": 4711},
            "imDatPrb_type is '4711', a probe whose gain .*, and there is no imChan0apGain",
        ),
    ):
        path, _ = probe(tmp_path, **keys)
        with pytest.raises(memload.FormatError, match=message):
            memload.open_spikeglx(path)
    with pytest.raises(IsADirectoryError, match=r"a folder; expected a file, such as one of 'run_g0_t0"):
        memload.open_spikeglx(tmp_path)
    with pytest.raises(IsADirectoryError, match="a folder; expected a file, such as"):
        memload.open_temporaldata(tmp_path)
    path.with_suffix(".meta").write_text("a=1\n")
    with pytest.raises(
        memload.FormatError, match=r"no typeThis; is it a .meta file of SpikeGLX\? Its keys are \['a'\]"
    ):
        memload.open_spikeglx(path)
    path.with_suffix(".meta").unlink()
    with pytest.raises(FileNotFoundError, match=r"a \.bin and a \.meta file of one name"):
        memload.open_spikeglx(path)
