"""The commands of `optdyn`: which module each runs, and what it does in a few words."""

from typing import NamedTuple

APP = ("cli.app",)  # whose flags are those of every command with a config
DRY = ("cli.dry", *APP)  # likewise of those that can say what they would take


class Command(NamedTuple):
    """A module of optdyn that is run as `__main__`, and those besides it whose flags it takes."""

    module: str
    about: str
    also: tuple[str, ...] = ()


COMMANDS = {
    "train": Command("cli.train", "one run", DRY),
    "race": Command("cli.race", "one run of real workers that race", DRY),
    "sweep": Command("cli.sweep", "a grid of runs", APP),
    "report": Command("report.report", "a page of what was run"),
    "export": Command("report.export", "runs, to W&B or MLflow"),
    "tune": Command("cli.tune", "groups, momentum and learning rate, chosen in training", DRY),
    "plan": Command("cli.plan", "mini-batch, algorithms and devices to train with", DRY),
    "price": Command("cli.price", "seconds of methods on a cluster, without training", APP),
    "profile": Command("cli.profile", "what an update is made of on this machine", APP),
    "papers": Command("cli.papers", "the papers' claims, judged"),
    "local": Command("cli.local", "several processes on this machine as one job"),
    "submit": Command("cli.submit", "shards of a grid as jobs", ("cli.sweep", *APP)),
    "reality": Command("report.race", "a race of real workers, held against theory"),
    "momentum": Command("report.implicit_momentum", "implicit momentum, fitted to recordings"),
    "efficiency": Command("report.statistical_efficiency", "what staleness costs in updates"),
    "prepare": Command("problem.data.prepare", "a data set, for config.data.name=tfds"),
    "config": Command("cli.show", "a config as it is resolved, or what differs in two", APP),
    "list": Command("cli.listing", "what can be named in a config, shipped configs, keys"),
    "cite": Command("cli.cite", "BibTeX of the papers that a run used"),
    "completion": Command("cli.completion", "a script that completes commands in a shell"),
}
