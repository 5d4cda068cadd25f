"""MLflow and TensorBoard: a report becomes metrics, pictures and files of a run.

    python docs/examples/trackers_example.py

Needs ``pip install mlflow-skinny tensorboard``; the digits of scikit-learn are the data. MLflow's
small package brings no database, so that this run goes to plain files.
"""

import os
import tempfile
from pathlib import Path

import mlflow
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import temperance as tp
from temperance.integrations.trackers import log_to_mlflow, log_to_tensorboard


def main(folder: Path) -> dict[str, int]:
    """Fit, judge, and log the report to both."""
    x, y = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=3000).fit(x[:900], y[:900])
    report = tp.evaluate(logits=model.decision_function(x[900:]), labels=y[900:])

    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((folder / "mlruns").as_uri())
    experiment = mlflow.create_experiment("digits", (folder / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment):
        first = log_to_mlflow(report, prefix="test")
    second = log_to_tensorboard(report, folder / "logs", prefix="test")
    return {"mlflow": len(first.figures), "tensorboard": len(second.figures)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(main(Path(temporary)))
