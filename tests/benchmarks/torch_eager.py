"""The same updates in torch eager, for `step_time`; runs under any Python that has torch.

Reads `NAME UPDATES` lines and answers each with the seconds of one update. Batches lie ready as
float tensors: torch is not charged for choosing and scaling them, as our side is.
"""

import itertools
import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

BATCH = 64


def lenet():
    convolutions = []
    for channels, features in ((1, 6), (6, 16)):
        convolutions += [nn.Conv2d(channels, features, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), *dense(256, 120, 84, 10))


def mlp():
    return nn.Sequential(nn.Flatten(), *dense(784, 256, 256, 10))


def dense(*widths):
    layers = []
    for one, other in itertools.pairwise(widths):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return layers[:-1]


def main():
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    batches = [(torch.rand(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))) for _ in range(62)]
    models = {}
    for name, make in (("mlp", mlp), ("cnn", lenet)):
        model = make()
        models[name] = model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for line in sys.stdin:
        name, updates = line.split()
        model, optimizer = models[name]
        start = time.perf_counter()
        for i in range(int(updates)):
            images, labels = batches[i % len(batches)]
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        print((time.perf_counter() - start) / int(updates), flush=True)


if __name__ == "__main__":
    main()
