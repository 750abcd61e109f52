"""The monitor's figures in a run of MLflow, read back through its own client from its own store."""

import json
import os
import subprocess
import sys

import pytest
from waiting import MOST_SECONDS

PROGRAM = """
import json, sys
import mlflow, memload
mlflow.set_tracking_uri(sys.argv[1])
with mlflow.start_run() as run:
    with memload.Monitor(interval=60, log=memload.MLflowLog(), show=False) as monitor:
        monitor.mark(7, epoch=2)
history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "memory/held_gb")
seen = [(sample.step, sample.held / 1e9, int(sample.time * 1000)) for sample in monitor.samples]
print(json.dumps([[(one.step, one.value, one.timestamp) for one in history], seen, len(monitor.findings)]))
"""


@pytest.mark.mlflow
def test_a_run_of_mlflow_holds_every_sample_at_its_step_and_time(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, (tmp_path / "runs").as_uri()],
        env={**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"},  # of newer versions: a store that needs no data base
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    kept, seen, findings = json.loads(done.stdout.splitlines()[-1])
    assert kept == seen
    assert [step for step, _, _ in kept] == [0, 7]
    assert findings == 0
