"""The commands of `optdyn`: which module each runs, and what it does in a few words."""

from typing import NamedTuple

APP = ("launch.app",)  # whose flags are those of every command with a config
DRY = ("launch.dry", *APP)  # likewise of those that can say what they would take


class Command(NamedTuple):
    """A module of optdyn that is run as `__main__`, and those besides it whose flags it takes."""

    module: str
    about: str
    also: tuple[str, ...] = ()


COMMANDS = {
    "train": Command("launch.train", "one run", DRY),
    "race": Command("launch.race", "one run of real workers that race", DRY),
    "sweep": Command("launch.sweep", "a grid of runs", APP),
    "report": Command("analysis.report", "a page of what was run"),
    "export": Command("analysis.export", "runs, to W&B or MLflow"),
    "tune": Command("launch.tune", "groups, momentum and learning rate, chosen in training", DRY),
    "plan": Command("launch.plan", "mini-batch, algorithms and devices to train with", DRY),
    "price": Command("launch.price", "seconds of methods on a cluster, without training", APP),
    "profile": Command("launch.profile", "what an update is made of on this machine", APP),
    "papers": Command("launch.papers", "the papers' claims, judged"),
    "local": Command("launch.local", "several processes on this machine as one job"),
    "submit": Command("launch.submit", "shards of a grid as jobs", ("launch.sweep", *APP)),
    "reality": Command("analysis.race", "a race of real workers, held against theory"),
    "momentum": Command("analysis.implicit_momentum", "implicit momentum, fitted to recordings"),
    "efficiency": Command("analysis.statistical_efficiency", "what staleness costs in updates"),
    "prepare": Command("problem.data.prepare", "a data set, for config.data.name=tfds:NAME"),
    "config": Command("launch.show", "a config as it is resolved, or what differs in two", APP),
    "list": Command("launch.listing", "what can be named in a config, shipped configs, keys"),
    "cite": Command("launch.cite", "BibTeX of the papers that a run used"),
    "completion": Command("launch.completion", "a script that completes commands in a shell"),
}
