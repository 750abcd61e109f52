"""Runs a script that uses a framework, on one rank or several, and reads what each rank reports."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import memload

SCRIPTS = Path(__file__).parent / "framework_scripts"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(script, folder, *names, ranks=1, launcher="torchrun", seconds=150):
    """Return what each rank reports, by scenario. Nothing may hang: the processes are ended after so many seconds.

    Args:
        script: name of a file in framework_scripts.
        folder: empty, for the reports.
        names: scenarios; default: all.
        ranks: processes; more than one are started by the launcher.
        launcher: "torchrun", or "itself" for a script that starts its other ranks.
    """
    command = [sys.executable]
    if ranks > 1 and launcher == "torchrun":
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
    command += [str(SCRIPTS / script), str(folder), *names]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(memload.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_ADDR": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        pytest.fail(f"{script} did not end within {seconds} s; its last words:\n{output[-4000:]}")
    reports = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    wrong = [one["error"] for found in reports for one in found.values() if "error" in one]
    assert not wrong, wrong[0]
    assert process.returncode == 0, output[-4000:]
    assert len(reports) == ranks, output[-4000:]
    return reports
