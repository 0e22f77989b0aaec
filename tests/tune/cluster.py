"""A cluster in closed form, whose best setting is known."""

import math

from optdyn.tune.choice import EpochPoint, Measures, Outcome


class FakeBench:
    """Total momentum is mu + 1 - 1/g (arXiv 1605.09774), and best at some value.

    All probes and epochs are taken down. The loss of a probe does not depend on the point; that of
    the nth epoch is the nth part. `losses`: of the epochs instead, in turn.
    """

    def __init__(self, best=0.95, alpha=0.01, served=0.1, loss=None, losses=(), measured=None):
        self.best, self.alpha, self.served = best, alpha, served
        self.loss = loss or self.efficiency
        self.losses, self.asked = iter(losses), []
        self.measured = measured
        self.probes, self.epochs, self.notes = [], [], []

    def pace(self, groups):
        return max(self.served, 1 / groups)

    def start(self, point):
        return 100.0

    def measure(self, point):
        return self.measured or Measures(0.1, 0.0, {2**n: 1.0 for n in range(8)})

    def updates(self, setting, seconds):
        return seconds / self.pace(setting.groups)

    def efficiency(self, setting, seconds):
        """Falls by the update, the faster the nearer both numbers are to the best."""
        total = setting.momentum + 1 - 1 / setting.groups
        if setting.learning_rate > 5 * self.alpha or total > 1.7:
            return math.nan
        rate = setting.learning_rate / self.alpha * math.exp(-((total - self.best) ** 2))
        return math.exp(-1e-3 * rate * self.updates(setting, seconds))

    def outcome(self, setting, seconds):
        return Outcome(self.loss(setting, seconds), int(self.updates(setting, seconds)), seconds)

    def probe(self, point, seconds, setting):
        self.probes.append((point, seconds, setting))
        return self.outcome(setting, seconds)

    def train(self, point, seconds, setting, loss, settle=False):
        self.epochs.append((point, seconds, setting))
        self.asked.append(loss)
        outcome = self.outcome(setting, seconds)
        least = next(self.losses, outcome.loss / (point.epoch + 1))
        return least if isinstance(least, Outcome) else outcome._replace(loss=least)

    def note(self, what, setting):
        self.notes.append((what, setting))

    def tried(self, setting):
        return self.probe(EpochPoint(), 200, setting)

    @property
    def settings(self):
        return [setting for _, _, setting in self.probes]
