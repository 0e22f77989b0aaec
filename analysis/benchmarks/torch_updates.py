"""The same updates in torch, for `step_time`: `torch_updates.py THREADS FORM`.

FORM is `eager`, or `compiled` for `torch.compile` of loss and optimizer. A line `NAME UPDATES` is
answered with the seconds of one update. Batches lie ready as float tensors, so torch is not charged
for choosing and scaling them.
"""

import itertools
import sys
import time
from functools import partial

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


def loss_of(model, images, labels):
    return cross_entropy(model(images), labels)


def main():
    threads, form = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    batches = [(torch.rand(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))) for _ in range(62)]
    wrap = torch.compile if form == "compiled" else lambda function: function
    models = {}
    for name, make in (("mlp", mlp), ("cnn", lenet)):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        models[name] = optimizer, wrap(partial(loss_of, model)), wrap(optimizer.step)
    for line in sys.stdin:
        name, updates = line.split()
        optimizer, loss, step = models[name]
        start = time.perf_counter()
        for i in range(int(updates)):
            images, labels = batches[i % len(batches)]
            optimizer.zero_grad()
            loss(images, labels).backward()
            step()
        print((time.perf_counter() - start) / int(updates), flush=True)


if __name__ == "__main__":
    main()
