"""A plain loop of SVRG in PyTorch, as it is often copied, for beside_pytorch.py.

Two models, one optimizer, two backward passes a step, and a full gradient at
each snapshot. Rows are in memory, and batches are views of them.
"""

import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import nn


def softmax():
    return nn.Linear(784, 10)


def perceptron():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
                         nn.Linear(256, 10))


def lenet():
    return nn.Sequential(nn.Conv2d(1, 20, 5), nn.Tanh(), nn.MaxPool2d(2),
                         nn.Conv2d(20, 50, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10))


NETWORKS = {'softmax 784-10': softmax, 'MLP 784-512-256-10': perceptron, 'LeNet': lenet}


class Loop:
    """Training of a network on given batches, from given weights."""

    def __init__(self, network, weights, features, labels, batch_size, rate):
        self.model, self.snapshot = network(), network()
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), weights):
                parameter.copy_(torch.from_numpy(value))
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.batches = list(zip(torch.from_numpy(features).split(batch_size),
                                torch.from_numpy(labels.astype(np.int64)).split(batch_size)))

    def train_epoch(self, order):
        """Take a snapshot, and train on the batches in an order."""
        self.snapshot.load_state_dict(self.model.state_dict())
        self.snapshot.zero_grad()
        for data, label in self.batches:
            self.loss(self.snapshot(data), label).backward()
        full_gradient = [parameter.grad / len(self.batches)
                         for parameter in self.snapshot.parameters()]
        for i in order:
            data, label = self.batches[i]
            self.optimizer.zero_grad()
            self.snapshot.zero_grad()
            self.loss(self.model(data), label).backward()
            self.loss(self.snapshot(data), label).backward()
            for parameter, then, full in zip(self.model.parameters(), self.snapshot.parameters(),
                                             full_gradient):
                parameter.grad += full - then.grad
            self.optimizer.step()


def main():
    """Answer what comes through a pipe: trainings to begin, epochs to check or to time."""
    pipe = Connection(int(sys.argv[1]))
    torch.set_num_threads(int(sys.argv[2]))
    pipe.send('PyTorch %s' % torch.__version__)
    loop = None
    for what, *given in iter(pipe.recv, None):
        if what == 'begin':
            network, *rest = given
            loop = Loop(NETWORKS[network], *rest)
            pipe.send(None)
        elif what == 'check':
            loop.train_epoch(*given)
            pipe.send([parameter.detach().numpy() for parameter in loop.model.parameters()])
        else:
            epochs, = given
            tic = time.perf_counter()
            for _ in range(epochs):
                loop.train_epoch(range(len(loop.batches)))
            pipe.send((time.perf_counter() - tic) / epochs)


if __name__ == '__main__':
    main()
