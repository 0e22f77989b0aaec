"""The same updates in torch DistributedDataParallel over gloo, for `sharded`.

    torch_ddp.py BATCH UPDATES FORM FOLDER

FORM is `eager`, `compiled` (`torch.compile` of the model), or `exchange` (only an all-reduce of as
many numbers). A line of the pipe FOLDER/RANK is a model's name; process 0 answers `seconds NUMBER`.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_updates import lenet, mlp


def main():
    batch, updates = map(int, sys.argv[1:3])
    form, folder = sys.argv[3], Path(sys.argv[4])
    rank, processes = (int(os.environ[f"OPTDYN_{name}"]) for name in ("PROCESS", "PROCESSES"))
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{os.environ['OPTDYN_COORDINATOR']}",
        rank=rank,
        world_size=processes,
    )
    torch.manual_seed(rank)
    part = batch // processes
    batches = [(torch.rand(part, 1, 28, 28), torch.randint(0, 10, (part,))) for _ in range(16)]
    models = {}
    for name, make in (("mlp", mlp), ("cnn", lenet)):
        model = DistributedDataParallel(make())  # which gives all processes the weights of one
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        models[name] = torch.compile(model) if form == "compiled" else model, optimizer
    flat = {
        name: torch.zeros(sum(p.numel() for p in model.parameters()))
        for name, (model, _) in models.items()
    }
    with open(folder / str(rank)) as requests:
        for line in requests:
            model, optimizer = models[line.strip()]
            start = time.perf_counter()
            for i in range(updates):
                if form == "exchange":
                    distributed.all_reduce(flat[line.strip()])
                    continue
                images, labels = batches[i % len(batches)]
                optimizer.zero_grad()
                cross_entropy(model(images), labels).backward()
                optimizer.step()
            if rank == 0:
                print("seconds", (time.perf_counter() - start) / updates, flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
