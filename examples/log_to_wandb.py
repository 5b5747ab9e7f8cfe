"""Weights & Biases: a run there for each method and seed, told of every round.

pip install wandb
pgfed run --module-path examples --set 'output.callbacks=["log_to_wandb:Wandb"]'
"""

import wandb

import pgfed


class Wandb(pgfed.Callback):
    def begin(self, run):
        name, group = f"{run.method}-{run.seed}", run.experiment.name
        self.there = wandb.init(project="pgfed", group=group, name=name, config=run.settings)

    def round(self, run, record):
        numbers = {k: record[k] for k in ("mean_score", "mean_loss", "bytes_up", "bytes_down")}
        self.there.log({k: v for k, v in numbers.items() if v is not None}, step=record["round"])

    def end(self, run):
        self.there.finish()
