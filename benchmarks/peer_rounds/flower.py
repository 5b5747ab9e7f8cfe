"""Flower's simulation: a client is a plain PyTorch loop, one for each core, on Ray."""

from __future__ import annotations

import os
import random

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from benchmarks.peer_rounds import work

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    i = int(context.node_config["partition-id"])
    x, y = (torch.from_numpy(array) for array in work.client(i))
    model = work.network()
    model.load_state_dict(message.content.array_records["model"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.LR, momentum=work.MOMENTUM)
    for index in torch.randperm(len(x)).split(work.BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    content = RecordDict(
        {"model": ArrayRecord(model.state_dict()), "n": MetricRecord({"n": len(x)})}
    )
    return Message(content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    model = work.network().state_dict()
    nodes: list[int] = []
    while len(nodes) < work.CLIENTS:
        nodes = sorted(grid.get_node_ids())
    while True:
        work.turn()
        content = RecordDict({"model": ArrayRecord(model), "config": ConfigRecord({})})
        drawn = random.sample(nodes, work.COHORT)
        asked = [Message(content, dst_node_id=node, message_type="train") for node in drawn]
        found = [
            reply.content.array_records["model"].to_torch_state_dict()
            for reply in grid.send_and_receive(asked)
            if not reply.has_error()
        ]
        assert len(found) == work.COHORT, "not the work that was to be timed"
        model = {name: sum(one[name] for one in found) / len(found) for name in model}


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
