"""MLflow: an experiment with a run for each method and seed, told of every round.

pip install mlflow
pgfed run --module-path examples --set 'output.callbacks=["log_to_mlflow:MLflow"]'
"""

import mlflow

import pgfed


class MLflow(pgfed.Callback):
    def begin(self, run):
        mlflow.set_experiment(run.experiment.name)
        mlflow.start_run(run_name=f"{run.method}-{run.seed}")
        mlflow.log_params(run.settings)

    def round(self, run, record):
        numbers = {k: record[k] for k in ("mean_score", "mean_loss", "bytes_up", "bytes_down")}
        known = {k: v for k, v in numbers.items() if v is not None}
        mlflow.log_metrics(known, step=record["round"])

    def end(self, run):
        mlflow.end_run()
