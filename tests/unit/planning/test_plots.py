"""Plan.plot: bars as long as the bytes of an account, the free bytes as a line, and a log over the prediction."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import memload
from memload.cli import main as cli
from memload.errors import FormatError
from memload.monitoring.log import JsonLog
from memload.monitoring.samples import Sample

pytest.importorskip("matplotlib")
VOLUMES = memload.DatasetShape(3_000, {"betas": ("float32", (150, 150, 100))})
PNG = b"\x89PNG\r\n\x1a\n"
SCALE = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}


def planned(tier="mmap", **options):
    return memload.plan(VOLUMES, 32, tier=tier, **{"ram": "64GB", "gpu": "24GB", "disk": "2TB"} | options)


def trained():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(150 * 150 * 100, 16))
    loss = lambda batch: model(batch["betas"]).mean()  # noqa: E731
    return planned(model=model, loss=loss, optimizer=torch.optim.AdamW)


def panel(figure, place):
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == place)


def bars(axes):
    """Return the bytes of each bar's segments, by the name of the bar and of the cause."""
    scale, names = SCALE[axes.get_xlabel()], [text.get_text() for text in axes.get_yticklabels()]
    found = {name: {} for name in names}
    for container in axes.containers:
        for patch in container.patches:
            row = round(patch.get_y() + patch.get_height() / 2)
            found[names[row]][container.get_label()] = round(patch.get_width() * scale)
    return found


def counted(account):
    return {line.name: line.predicted for line in account.lines if line.counted and line.predicted}


def test_segments_are_as_long_as_the_lines_of_the_accounts():
    plan = trained()
    figure = plan.plot()
    for account in plan.accounts:
        drawn = bars(panel(figure, account.place))["mmap"]
        assert {name: size for name, size in drawn.items() if "not counted" not in name} == counted(account)
    assert bars(panel(figure, "RAM"))["stock loader"] == counted(plan.stock)
    assert bars(panel(figure, "RAM"))["mmap"]["page cache, not counted"] == VOLUMES.nbytes


def test_segments_stand_one_after_the_other():
    axes = panel(trained().plot(), "GPU")
    patches = [patch for container in axes.containers for patch in container.patches]
    ends = [0.0, *(patch.get_x() + patch.get_width() for patch in patches)]
    assert [patch.get_x() for patch in patches] == pytest.approx(ends[:-1])


def test_plans_side_by_side_have_the_same_colour_for_the_same_cause():
    mapped, loaded = planned(), planned("ram")
    axes = panel(mapped.plot(name="mapped", beside={"in RAM": loaded}), "RAM")
    drawn = bars(axes)
    assert list(drawn) == ["mapped", "in RAM"]
    assert drawn["in RAM"] == counted(loaded.ram)
    colours = {}
    for container in axes.containers:
        if "not counted" not in container.get_label():
            colours.setdefault(container.get_label(), set()).update(one.get_facecolor() for one in container.patches)
    assert {len(seen) for seen in colours.values()} == {1}
    assert len(set.union(*colours.values())) == len(colours)


def lines_at(axes):
    return [line.get_xdata()[0] * SCALE[axes.get_xlabel()] for line in axes.lines if line.get_gid() == "free"]


def test_the_free_bytes_are_a_line_unless_it_would_flatten_the_bars():
    loaded = planned("ram", ram="20GB")
    axes = panel(loaded.plot(), "RAM")
    assert lines_at(axes) == pytest.approx([20e9])
    assert axes.get_xlim()[1] * 1e9 > loaded.ram.predicted
    assert any("does not fit" in text.get_text() for text in axes.texts)
    far = panel(planned("mmap", ram="2TB").plot(), "RAM")
    assert lines_at(far) == []
    assert far.get_title(loc="right") == "2 TB free"


def test_what_is_unknown_is_in_the_legend():
    class Other(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x)

    axes = panel(planned(model=Other()).plot(), "GPU")
    assert "activations: unknown" in [text.get_text() for text in axes.get_legend().get_texts()]


def logged(path, *held):
    log = JsonLog(path)
    log.begin()
    for k, nbytes in enumerate(held):
        log.sample(Sample(time=1000.0 + k, held=nbytes, rss=nbytes, total=64 * 10**9))
    log.close()
    return path


def test_the_log_is_drawn_over_bands_of_the_prediction(tmp_path):
    plan = planned()
    figure = plan.plot(log=logged(tmp_path / "run.jsonl", 10**8, 9 * 10**8, 8 * 10**8))
    (axes,) = figure.axes
    scale = SCALE[axes.get_ylabel()]
    (held,) = [line for line in axes.lines if line.get_gid() == "held"]
    assert list(held.get_xdata()) == [0, 1, 2]
    assert [round(y * scale) for y in held.get_ydata()] == [10**8, 9 * 10**8, 8 * 10**8]
    bands = {patch.get_label(): round(patch.get_height() * scale) for patch in axes.patches}
    assert bands == counted(plan.ram)
    (predicted,) = [line for line in axes.lines if line.get_gid() == "predicted"]
    assert round(predicted.get_ydata()[0] * scale) == plan.ram.predicted
    assert held.get_label() == "held, measured: at most 900 MB"


def test_what_a_run_writes_is_drawn_over_the_disk_that_the_plan_states(tmp_path):
    log = JsonLog(tmp_path / "run.jsonl")
    log.begin()
    for k, free in enumerate((None, 9 * 10**9, 7 * 10**9, 95 * 10**8)):
        log.sample(Sample(time=1000.0 + k, held=10**8, rss=10**8, total=64 * 10**9, disk_free=free))
    log.close()
    plan = planned()
    _, axes = plan.plot(log=tmp_path / "run.jsonl").axes
    assert axes.get_title(loc="left") == "disk: mmap"
    (taken,) = [line for line in axes.lines if line.get_gid() == "taken"]
    scale = SCALE[axes.get_ylabel()]
    assert [round(y * scale) for y in taken.get_ydata()] == [0, 2 * 10**9, 0]
    assert {patch.get_label(): round(patch.get_height() * scale) for patch in axes.patches} == counted(plan.disk)


def test_wrong_arguments_are_refused(tmp_path):
    plan = planned()
    with pytest.raises(ValueError, match="two plans have the name 'mmap'"):
        plan.plot(beside={"mmap": planned("ram")})
    with pytest.raises(ValueError, match="a log is drawn over one plan"):
        plan.plot(beside={"b": plan}, log=tmp_path / "x")
    (tmp_path / "empty").write_text("{}\n")
    with pytest.raises(FormatError, match="no sample in it"):
        plan.plot(log=tmp_path / "empty")


def test_the_command_draws_a_file_without_a_display_and_without_pyplot(tmp_path):
    program = (
        "import sys\nfrom memload.cli.main import main\n"
        "status = main(sys.argv[1:])\nassert 'matplotlib.pyplot' not in sys.modules\nsys.exit(status)"
    )
    arguments = ["plan", "--rows", "100", "--field", "x:float32:8", "--ram", "64GB", "--plot", tmp_path / "out"]
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    ended = subprocess.run([sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)
    assert ended.stdout.splitlines()[-1] == f"drawn: {tmp_path / 'out.png'}"


def test_the_command_draws_a_log_and_refuses_one_without_a_plot(tmp_path, capsys):
    log = logged(tmp_path / "run.jsonl", 10**8)
    arguments = ["plan", "--rows", "100", "--field", "x:float32:8", "--ram", "64GB", "--log", str(log)]
    assert cli.main(arguments) == 2
    assert "--log is drawn into a plot: give --plot" in capsys.readouterr().err
    assert cli.main([*arguments, "--plot", str(tmp_path / "a.svg")]) == 0
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_the_command_draws_the_same_plan_on_other_tiers_beside_it(tmp_path, capsys):
    arguments = [
        "plan",
        "--rows",
        "100",
        "--field",
        "x:float32:8",
        "--ram",
        "64GB",
        "--beside",
        "ram",
        "--beside",
        "mmap",
    ]
    assert cli.main(arguments) == 2
    assert "--beside is drawn into a plot: give --plot" in capsys.readouterr().err
    assert cli.main([*arguments, "--tier", "hybrid", "--cache-bytes", "1MiB", "--plot", str(tmp_path / "a.svg")]) == 0
    drawn = (tmp_path / "a.svg").read_text()
    assert "<!-- hybrid | ram | mmap -->" in drawn
    assert "stock loader" not in drawn
    arguments = [*arguments[:-4], "--beside", "mmap", "--beside", "ram", "--plot", str(tmp_path / "b.svg")]
    assert cli.main(arguments) == 0, "the plan's own tier is drawn once"
    assert "<!-- mmap | ram -->" in (tmp_path / "b.svg").read_text()


def test_a_curve_has_a_gap_where_samples_are_missing(tmp_path):
    log = JsonLog(tmp_path / "run.jsonl")
    log.begin()
    for second in (0, 1, 2, 30, 31):
        log.sample(Sample(time=1000.0 + second, held=10**8, rss=10**8, total=64 * 10**9))
    log.close()
    plan = memload.plan(memload.DatasetShape(100, {"x": ("float32", (8,))}), 10, ram="64GB", tier="mmap")
    (axis,) = plan.plot(log=tmp_path / "run.jsonl").axes[:1]
    curve = next(line for line in axis.lines if line.get_gid() == "held")
    assert curve.get_xdata().tolist() == [0, 1, 2, 30, 30, 31]
    assert np.isnan(curve.get_ydata()).tolist() == [False, False, False, True, False, False]
