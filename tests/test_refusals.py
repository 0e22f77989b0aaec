"""All that is refused before any work: each field's range, each join, and what else is typed.

A value is tried just outside of each end of its field's range and just inside, a join where it is
wrong. A refusal of the command is one line that begins with the key, exit status 2, and no file.
"""

import ast
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from optdyn import experiment, methods
from optdyn.base.errors import ConfigError, Join
from optdyn.base.fields import Text, Value, all_fields
from optdyn.cli import app, train
from optdyn.experiment import Config
from optdyn.train import replicas, trainer
from optdyn.train.checks import check
from tests.own_flags import called

NAN, INFINITE = float("nan"), float("inf")


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """`refused(*arguments)`: the line by which `optdyn train` refuses them."""
    (tmp_path / "default.py").write_text("from optdyn.experiment import Config as get_config\n")
    monkeypatch.chdir(tmp_path)
    for module, act in ((trainer, "training"), (replicas, "_recorded")):
        monkeypatch.setattr(module, act, None)  # what is not refused ends at once

    def files():
        return sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__")

    def run(*given):
        there = files()
        file = [] if "--config=" in " ".join(given) else [f"--config={tmp_path / 'default.py'}"]
        line = [*file, "--workdir=new", *given]
        with called(monkeypatch, "launch.train", line), pytest.raises(SystemExit) as ended:
            app.run(train.main)
        said = capsys.readouterr().err
        assert ended.value.code == 2 and said.startswith("error: "), (given, said)
        assert said.count("\n") == 1 and said.endswith("\n"), said
        assert files() == there
        return said.removeprefix("error: ")

    return run


def refusal(values):
    with pytest.raises(ConfigError) as caught:
        check(values if isinstance(values, Config) else Config().with_(values))
    said = str(caught.value)
    assert "\n" not in said and len(said) < 500
    return said


# Fields: the type of the default, and the range.


def fields():
    """(the name that chooses who has it, its key, itself) of each field of each value."""
    found = [({}, key, field) for key, field in all_fields(Config())]
    methods.built_in()
    for root in Value.roots:
        for name, member in root.members.items():
            chosen = {f"{root.section}.name": name}
            table = member.field_table().items()
            found += [(chosen, f"{root.section}.{key}", field) for key, field in table]
    return [field for field in found if "about" in field[2].metadata]


OF_ANOTHER_TYPE = {  # by the default's
    bool: (1, 0, "True", None),
    int: (64.5, True, "64", None, (64,), 10**5000),
    float: (True, "0.1", None, (0.1,), NAN, -INFINITE, 1e31, 1e-31, 10**400),
    str: (None, 3, "a\nb", "a\0b", "\ud800", "x" * 5000, b"kjv"),
    tuple: (3, "64", {1: 2}, (None,), (True,), ({"a": 1},)),
    dict: (3, "a", {1: 2}, {"a": object()}),
}
NUMBERS = r"(-?[\d,.]+)"
ENDS = {  # of ranges by their words: a step outside of each end, and what is still inside
    f"from {NUMBERS} to {NUMBERS}": lambda a, b, step: ([a - step(a), b + step(b)], [a, b]),
    f"between {NUMBERS} and {NUMBERS}": lambda a, b, step: ([a, b], [a + step(a), b - step(b)]),
    f"(?:above|more than) {NUMBERS}": lambda a, step: ([a], [a + step(a)]),
    f"at most {NUMBERS}": lambda b, step: ([b + step(b)], [b]),
    f"at least {NUMBERS}": lambda a, step: ([a - step(a)], [a]),
    f"(?:less than|below) {NUMBERS}": lambda b, step: ([b], [b - step(b)]),
}
OTHER_RANGES = {  # that two numbers do not say
    "a finite number": ([INFINITE], [1e30]),
    "at least 0; infinite is one": ([-1.0, NAN], [0.0, INFINITE]),
    "at least 1, or 0 for none": ([-1], [0, 1]),
    "at least 1, or 0 for the groups": ([-1], [0, 1]),
    "from 2 to 8, or 32": ([1, 9, 31, 33], [32]),
    "'character', 'byte' or 'bpe:N', of a vocabulary of N from 256 up": (
        ["nosuch", "", "bpe:255", "bpe:x"],
        ["byte", "bpe:256"],
    ),
    "at most 1,000 widths from 1 to 1,048,576": (
        [(0,), (-6,), (2**20 + 1,), (1,) * 1001, ("64",), ((64,),)],
        [(), (1, 2**20)],
    ),
    "mini-batches of at least 1": ([(8, 0), ("many",)], [(), (1,)]),
    "names, or ()": ([(1,), ([],), (("accuracy",),)], [()]),
    "numbers between -1 and 1, or ()": ([(0.5, 1.0), (-1.0,), (NAN,), ("low",)], [(), (0.9,)]),
    "numbers, one a channel, or ()": ([("0.1",), (NAN,), ((0.1,),)], [(), (0.1, 0.2)]),
    "numbers, one a worker, or ()": ([("fast",), (NAN,), ((1.0,),)], [(), (1.0,)]),
    "one finite number or more above 0": ([(), (0.1, 0.0), (INFINITE,), ("low",)], [(0.1,)]),
    "one number or more between -1 and 1": ([(), (0.0, 1.0), (NAN,), ("low",)], [(0.9,)]),
    "two numbers from 0 up, the least and the most": (
        [(), (1,), (2, 1), (-1, 1), (1, 2, 3), ("a", "b")],
        [(1, 1)],
    ),
    "whole numbers from 1 to 1,000, or ()": ([(0,), (1001,), (1.5,), ("a",)], [(), (1, 1000)]),
}
RANGES = {  # the keys by the words of their ranges; those of '' are free, or refused by a join
    "": (
        "cluster.bandwidths cluster.disturbances cluster.latencies cluster.service.path code "
        "data.dataset data.dir data.path init_from loss method.delay method.elasticity "
        "method.fragments method.fresh method.graph method.reset_wait method.wait model.lowering "
        "note optimizer.chain optimizer.schedule"
    ),
    "above 0": "method.consensus_rate method.outer_learning_rate method.slow_learning_rate",
    "above 0 and below 1": "evaluation.decay",
    "above 0 and at most 1": (
        "method.averaged_share method.compression_share plan.efficiency tune.probe_share"
    ),
    "at least -1": "method.staleness_bound",
    "at least 0": (
        "checkpoint_every cluster.absence cluster.bandwidth cluster.bandwidth_variation "
        "cluster.latency cluster.local_bandwidth cluster.local_latency "
        "cluster.pieces.conv_compute cluster.pieces.conv_network cluster.pieces.fc "
        "cluster.pieces.fc_network cluster.presence cluster.server_bandwidth "
        "cluster.service.variation data.dirichlet data.test_evaluated data.train_evaluated "
        "data.train_examples method.age_cutoff method.age_decay method.allotted method.correction "
        "method.grace method.quorum method.synchronous_updates model.noise model.norm_examples "
        "optimizer.decay_steps optimizer.eps optimizer.learning_rate optimizer.warmup_steps "
        "optimizer.weight_decay parallel.devices replicas.count seed"
    ),
    "at least 0 and less than 1": (
        "cluster.diurnal method.outer_momentum method.slow_momentum method.smoothing "
        "method.threshold optimizer.b1 optimizer.b2"
    ),
    "at least 1": (
        "batch_size data.sequence_length evaluation.last log_every method.arrivals method.chunks "
        "method.coefficients method.compression_block method.compression_rank "
        "method.first_moment_meetings method.groups method.max_batches method.micro_batch "
        "method.micro_batches method.period method.second_moment_meetings method.window "
        "model.condition parallel.accumulation plan.devices probes.every replicas.block "
        "replicas.subspace steps tune.seeds"
    ),
    "at least 2": "plan.rounds",
    "at least 54 updates": "probes.window",
    "between -1 and 1": "optimizer.momentum",
    "bytes, more than 0": "plan.memory",
    "finite and at least 0": (
        "method.cooldown_epochs method.patience method.reset_batches method.warmup_epochs"
    ),
    "finite and more than 0": "tune.epoch_seconds tune.probe_seconds tune.seconds",
    "from -1 to 1": "method.aligned",
    "from 1 to 10,000": "evaluation.batches",
    "from 0 to 1": (
        "cluster.disturbance_probability cluster.overlap method.error_decay method.mixing "
        "method.momentum_decay method.momentum_part"
    ),
    "from 0 to 1,000": "cluster.regions",
    "from 0 to 10": "model.spread",
    "from 0 to 4,096": "data.image_size",
    "from 1 to 1,000": "model.blocks",
    "from 1 to 1,048,576": (
        "cluster.devices_per_node cluster.nodes model.attention_heads model.dimension model.width"
    ),
    "from 1 to 256": "method.chunk",
    "more than 0": "cluster.day cluster.seconds_per_example optimizer.decay_rate",
    "one of": (
        "cluster.collective cluster.split data.augment evaluation.average evaluation.statistics "
        "method.blocking_dtype method.compression "
        "method.gossip_order method.inner_state method.merging method.pipeline method.server "
        "method.snapshots method.transfer_dtype method.variant method.waiting method.weights "
        "model.dtype model.norm model.stem parallel.api tune.mode"
    ),
}


def ends(field):
    """(values just outside of a field's range, values just inside)."""
    metadata, outside, inside = field.metadata, [], []
    default, words = metadata["default"], metadata["range"] and metadata["range"].expected
    if type(default) is int:
        outside = [int(metadata["largest"]) + 1, -int(metadata["largest"]) - 1]
    if metadata["one_of"]:
        return ["nosuch", "a,b"], metadata["one_of"]
    if not words:
        return outside, [default]
    if words in OTHER_RANGES:
        others, inside = OTHER_RANGES[words]
        return [*outside, *others], inside

    def step(at):
        whole = isinstance(default, int)
        return 1 if whole else max(abs(np.spacing(at)), 1e-30)

    of = type(default)
    for pattern, made in ENDS.items():
        if found := re.search(pattern, words):
            numbers = [of(float(text.replace(",", ""))) for text in found.groups()]
            out, still = made(*numbers, step=step)
            outside, inside = outside + out, inside + still
            words = words.replace(found[0], "")
    assert inside, f"a range in new words: {words}"
    return outside, [value for value in inside if value not in outside]


def test_a_value_of_another_type_or_just_outside_of_its_range_is_refused_by_its_key():
    """One just inside is none. Numbers are refused beyond what float64 or an array's length is."""
    ranges = {}
    for chosen, key, field in fields():
        made, default = Config().with_(chosen), field.metadata["default"]
        outside, inside = ends(field)
        kinds = (kind for kind in OF_ANOTHER_TYPE if isinstance(default, kind))
        for value in (*OF_ANOTHER_TYPE[next(kinds)], *outside):
            if key == "loss" or (value == INFINITE == field.metadata["largest"]):
                continue  # a loss may be a function
            with pytest.raises(ConfigError) as caught:
                made.with_({key: value})
                pytest.fail(f"{key} = {value!r} is not refused")
            said = str(caught.value)
            assert said.startswith(f"config.{key} = ") and ": must be " in said
            assert "\n" not in said and len(said) < 300
        for value in inside:
            made.with_({key: value})
        words = (
            "one of"
            if field.metadata["one_of"]
            else getattr(field.metadata["range"], "expected", "")
        )
        if words not in OTHER_RANGES and not isinstance(default, (bool, dict)):
            ranges.setdefault(words, set()).add(key)
    assert ranges == {words: set(keys.split()) for words, keys in RANGES.items()}


def test_the_command_refuses_each_field_in_a_line_before_any_file(refused):
    for chosen, key, field in fields():
        outside, _ = ends(field)
        if not outside and isinstance(field.metadata["default"], (str, tuple, dict)):
            continue
        value = outside[0] if outside else "x"
        names = [f"--config.{name}={text}" for name, text in chosen.items()]
        said = refused(*names, f"--config.{key}={value}")
        assert said.startswith(f"config.{key} = ") and ": must be " in said


# Joins: what does not go together.

OF_MANY = {  # {how the line goes on after the key: {arguments: methods that refuse them}}
    "{name!r} does not simulate": {
        "cluster.overlap=0.5": "local",
        "cluster.speeds=(1.0,)": "local",
        "cluster.split=proportional": "daso local",
        "cluster.pieces.conv_compute=1.0": "daso dynamic_batch elastic ringmaster",
        "cluster.presence=1.0": "daso des_loc gasloc sparseloco",
        "cluster.regions=3": "daso",
        "cluster.server_bandwidth=1.0": "model_averaging",
        "cluster.disturbance_probability=0.5": "sync",
    },
    "must be one of 'constant'": {
        "cluster.service.name=geometric": "sync daso ringmaster buffered elastic",
        "cluster.service.name=exponential": "local stale_pipeline",
        "cluster.service.name=measured": "sync",
        "cluster.service.name=race": "ringleader",
    },
    "config.method.name = {name!r}": {
        "parallel.api=overlap": "des_loc eager diloco+gossip gasloc sparseloco",
        "parallel.api=jit": "dynamic_batch",
    },
    "must divide the cluster's 4 workers": {
        "method.groups=3 cluster.nodes=4": "asynchronous buffered elastic ringleader"
    },
    "must be another where nodes average": {
        "optimizer.name=soap method.inner_state=averaged": "model_averaging",
        "optimizer.name=soap": "des_loc",
    },
    "must be one of 'ring'": {"method.graph=star": "ad_psgd gossip gasloc"},
    "excludes config.method.name = {name!r}": {"method.snapshots=host": "buffered ringleader"},
    "must be 1: {name!r} computes its gradients by other parts": {
        "parallel.accumulation=2": "dynamic_batch stale_pipeline"
    },
    "needs config.method.name one of 'sync', 'asynchronous', 'ringmaster'": {
        "replicas.count=3": "daso local elastic buffered ringleader"
    },
}
BOTH = (  # methods that both say how a gradient is taken, or what nodes exchange
    *("local+dynamic_batch", "local+stale_pipeline", "des_loc+gossip", "eager+gossip"),
    *("daso+gossip", "sparseloco+gossip", "gasloc+gossip", "diloco+slowmo", "diloco+gasloc"),
)
JOINS = {  # {arguments: {more of them: how the line begins}}
    "": {
        "cluster.nodes=1048576 cluster.devices_per_node=2": "cluster.nodes: makes 2,097,152",
        "cluster.nodes=3 cluster.speeds=(1.0,2.0)": "cluster.speeds: must be 3 positive numbers",
        "cluster.nodes=2 cluster.speeds=(1.0,0.0)": "cluster.speeds: must be 2 positive numbers",
        "cluster.speeds=(-1.0,)": "cluster.speeds: must be 1 positive numbers, one a worker",
        "cluster.service.name=trace": "cluster.service.path: must be a CSV file, which a trace",
        "parallel.devices=3 parallel.api=jit": "batch_size: must be a multiple of 3 (devices that",
        "parallel.accumulation=3": "batch_size: must be a multiple of 3 (devices that",
        "parallel.api=pmap parallel.shard_optimizer=True": "parallel.shard_optimizer: needs",
        "parallel.api=jit parallel.shard_snapshots=True": "parallel.shard_snapshots: needs",
        "model.lowering=gemm,nosuch model.name=cnn": "model.lowering: must be from ('', 'xla'",
        "model.name=transformer model.width=30": "model: transformer of width 30: must be a",
        "model.name=resnet model.channels=(12,)": "model: resnet of 12 channels with norm 'group':",
        "model.name=cnn model.lowering=winograd": "model: lowering 'winograd' of a convolution 5 x",
        "model.name=resnet model.lowering=winograd": "model: lowering 'winograd' of a convolution",
        "loss=nosuch": "loss: must be one of cross_entropy, label_smoothing, next_token",
        "metrics=accurcy": "metrics: must be one of accuracy, absolute_error, cross_entropy",
        "method.fresh=('nosuch',)": "method.fresh: must be of the blocks hidden0, hidden1",
        "method.name=sync+buffered method.sync.fresh=classifier": "method.sync.fresh: must be ()",
        "data.dirichlet=0.5 cluster.nodes=3": "batch_size: must be a multiple of",
        "data.dirichlet=0.5 method.name=dynamic_batch": "data.dirichlet: needs nodes that wait for",
    },
    "replicas.count=3": {
        "parallel.api=jit": "replicas.count: needs config.method.name one of 'sync'",
        "data.augment=flip": "data.augment: excludes config.replicas.count, whose objective is",
        "data.streaming=True": "data.streaming: excludes config.replicas.count, whose objective is",
        "data.dirichlet=0.5 cluster.nodes=2": "data.dirichlet: excludes config.replicas.count",
        "probes.momentum=True": "probes.momentum: excludes config.replicas.count, as replicas are",
        "data.replacement=False": "data.replacement: must be True with config.replicas.count, as a",
        "optimizer.name=adam data.replacement=True": "replicas.count: needs config.optimizer",
    },
    "cluster.pieces.conv_compute=1.0": {
        "cluster.pieces.conv_compute=0 cluster.pieces.fc=0.1": "cluster.pieces.conv_compute: must",
        "cluster.overlap=0.5": "cluster.overlap: must be False with config.cluster.pieces, which",
        "cluster.nodes=2 cluster.speeds=(1.0,2.0)": "cluster.speeds: with config.cluster.pieces",
        "cluster.service.name=trace cluster.service.path=a.csv": "cluster.service.name: must be",
        "method.name=asynchronous cluster.service.name=geometric": "cluster.service.name: must be",
        "method.name=asynchronous+local": "cluster.pieces: excludes config.method.name =",
        "method.name=asynchronous method.staleness_bound=0": "method.staleness_bound: needs",
    },
    "probes.momentum=True": {
        "probes.momentum=False probes.steer=True": "probes.steer: needs config.probes.momentum and",
        "probes.steer=True optimizer.name=adam": "probes.steer: needs config.probes.momentum and",
        "probes.similarity=True": "probes.similarity: needs nodes with parameters of their own",
        "probes.mean=True": "probes.mean: needs nodes with parameters of their own, not",
        "probes.window=54 probes.every=53": "probes.window: at most config.probes.every = 53",
    },
    "optimizer.learning_rate=0.1": {
        "optimizer.name=lion optimizer.momentum=0.5": "optimizer.momentum: optax.lion has no",
        "optimizer.name=nosuch": "optimizer.name: must be an optimizer of optax",
        "optimizer.name=": "optimizer.name: must be an optimizer of optax",
        "optimizer.name=global_norm": "optimizer.name: must be an optimizer of optax",
        "optimizer.name=contrib.nosuch": "optimizer.name: must be an optimizer of optax",
        "optimizer.name=lbfgs": "optimizer: optax.lbfgs cannot be used",
        "optimizer.name=optax:identity": "optimizer.name: must be a function with an argument",
        "optimizer.schedule=nosuch": "optimizer.schedule: must be one of constant, cosine, linear",
        "optimizer.options={'b1':0.5}": "optimizer.options.b1: must be an argument of optax.sgd",
        "optimizer.options={'momentum':0.5}": "optimizer.options.momentum: must be set as",
        "optimizer.options={'learning_rate':1.0}": "optimizer.options.learning_rate: set",
        "optimizer.chain=(3,)": "optimizer.chain: must be names of transforms, as",
        "optimizer.chain_options.nosuch=1": "optimizer.chain_options.nosuch: must be an argument",
        "method.name=slowmo optimizer.learning_rate=0.0": "optimizer.learning_rate: must be other",
    },
    "evaluation.average=ema": {
        "cluster.nodes=2 method.name=diloco probes.mean=True": "evaluation.average: must be ''",
        "method.name=asynchronous cluster.service.name=race": "evaluation.average: must be '' in a",
        "method.name=asynchronous method.snapshots=host": "evaluation.average: must be '' with",
        "replicas.count=3 data.replacement=True": "evaluation.average: must be '' with",
    },
    "method.name=asynchronous": {
        "parallel.devices=2": "parallel.devices: must be 0: 'asynchronous' has as many devices",
        "parallel.shard_snapshots=True": "parallel.shard_snapshots: needs config.parallel.api =",
        "parallel.api=jit method.snapshots=host": "method.snapshots: needs config.parallel.api =",
        "replicas.count=2 method.snapshots=host": "method.snapshots: needs config.replicas.count =",
        "method.staleness_bound=0 cluster.service.name=geometric": "method.staleness_bound: needs",
        "method.staleness_bound=0 replicas.count=3": "method.staleness_bound: excludes replicas",
        "cluster.presence=1.0 method.staleness_bound=1": "cluster.presence: needs",
        "cluster.diurnal=0.5 cluster.service.name=geometric": "cluster.diurnal: needs",
    },
    "method.name=asynchronous cluster.nodes=4 method.groups=2": {
        "data.dirichlet=0.5": "data.dirichlet: needs config.method.groups = 2 to be",
        "method.compression=powersgd": "method.compression: of asynchronous must be one of ''",
        "method.compression=top_k method.groups=1": "method.compression: needs method.groups of at",
        "method.compression=top_k cluster.service.name=race": "method.compression: needs",
    },
    "method.name=asynchronous cluster.nodes=2 method.groups=2 data.dirichlet=0.5": {
        "cluster.service.name=race": "data.dirichlet: needs service times that are drawn, not",
        "probes.momentum=True": "data.dirichlet: excludes config.probes.momentum where groups",
        "method.name=buffered method.arrivals=2": "data.dirichlet: needs updates by the gradient",
    },
    "method.name=asynchronous cluster.service.name=race": {
        "method.fresh=('hidden0',)": "method.fresh: a merged server must have the last of",
        "method.fresh=classifier probes.momentum=True probes.steer=True": "method.fresh: in a race",
        "method.snapshots=bfloat16": "cluster.service.name: needs config.method.snapshots = '', as",
        "parallel.api=jit": "cluster.service.name: needs the defaults of config.parallel",
        "replicas.count=3": "cluster.service.name: needs config.replicas.count = 0, one race is",
        "data.streaming=True": "cluster.service.name: needs config.data.streaming = False",
    },
    "method.name=asynchronous+local method.asynchronous.groups=2 cluster.nodes=4": {
        "method.asynchronous.compression=top_k": "method.asynchronous.compression: excludes local",
        "cluster.service.name=race method.asynchronous.fresh=classifier": "method.asynchronous",
    },
    "method.name=ringmaster": {
        "method.delay_bound=2 replicas.count=3": "method.delay_bound: excludes replicas",
        "method.name=ringmaster+local method.ringmaster.snapshots=host": "method.ringmaster",
    },
    "method.name=buffered cluster.nodes=4 method.groups=4": {
        "method.arrivals=5 method.waiting=k_sync": "method.arrivals: must be at most",
        "method.arrivals=5 method.waiting=k_async": "method.arrivals: must be at most",
        "method.arrivals=3": "batch_size: must be a multiple of 3 (config.method.arrivals x",
    },
    "method.name=async_local_sgd": {
        "method.server=adam method.momentum_part=0.5": "method.momentum_part: must be 0 with",
    },
    "method.name=async_local_sgd cluster.service.name=race": {
        "method.server=heloco method.age_decay=0.5": "method.age_decay: must be 0 with",
        "optimizer.warmup_steps=5": "cluster.service.name: needs config.optimizer.schedule =",
        "optimizer.chain=staleness_rate": "cluster.service.name: needs config.optimizer.chain",
        "probes.momentum=True": "cluster.service.name: needs config.probes.momentum = False, as it",
    },
    "method.name=elastic cluster.nodes=4": {
        "method.elasticity=2.0": "method.elasticity: must be from 0 to config.method.groups = 1",
        "method.elasticity=-0.1": "method.elasticity: must be from 0 to config.method.groups = 1",
    },
    "method.name=decoupled method.groups=2 cluster.nodes=2": {
        "method.quorum=3": "method.quorum: must be at most config.method.groups = 2, or",
        "method.fragments=9": "method.fragments: must be from 1 to config.method.period = 8",
        "method.fragments=0": "method.fragments: must be from 1 to config.method.period = 8",
        "method.delay=-1": "method.delay: must be at least 0",
    },
    "method.name=daso": {
        "cluster.nodes=2 cluster.devices_per_node=2 parallel.api=pmap": "parallel.api",
        "method.wait=-1": "method.wait: must be from 0 to config.method.max_batches = 4",
        "method.wait=5": "method.wait: must be from 0 to config.method.max_batches = 4",
        "method.reset_wait=-1": "method.reset_wait: must be from 0 to 4",
        "method.reset_wait=5": "method.reset_wait: must be from 0 to 4",
        "method.wait=3 method.reset_batches=2": "method.reset_batches: must be 3 or more, W =",
    },
    "method.name=daso+asynchronous cluster.nodes=2 cluster.devices_per_node=2": {
        "method.asynchronous.groups=4": "method.asynchronous.groups: must divide a node's 2",
        "cluster.server_bandwidth=1.0": "cluster.server_bandwidth: must be 0 where nodes exchange",
        "cluster.presence=1.0": "cluster.presence: excludes config.method.name =",
        "method.asynchronous.groups=2 method.asynchronous.snapshots=host": "method.asynchronous",
    },
    "method.name=dynamic_batch cluster.service.name=measured": {
        "": "cluster.service.name: needs real workers that are one node, config.parallel.api",
        "parallel.api=shard_map cluster.speeds=(1.0,)": "cluster.speeds: excludes",
    },
    "method.name=model_averaging cluster.nodes=2": {
        "method.fragments=0": "method.fragments: must be from 1 to config.method.period = 8",
        "method.fragments=9": "method.fragments: must be from 1 to config.method.period = 8",
        "method.fragments=3 method.delay=2": "method.delay: must be from 0 to 1, less than",
        "method.delay=-1": "method.delay: must be from 0 to 7, less than",
        "method.inner_state=reset method.fragments=2": "method.inner_state: must be 'kept' with",
        "method.inner_state=averaged method.delay=1": "method.inner_state: must be 'kept' with",
        "cluster.presence=1.0 method.delay=1": "method.delay: must be the default with",
        "cluster.presence=1.0 method.compression=sign": "method.compression: must be the default",
        "cluster.regions=2 cluster.latencies=((0.0,1.0),(1.0,0.0))": "cluster.regions: excludes",
        "method.compression_bits=4 method.compression=sign": "method.compression_bits: must be 32",
    },
    "method.name=diloco method.merging=correct": {
        "method.mixing=0.5": "method.mixing: must be 0 with config.method.merging = 'correct'",
        "parallel.api=overlap": "parallel.api: config.method.name = 'diloco' keeps what nodes did",
    },
    "method.name=des_loc": {
        "method.delay=2": "method.delay: must be 0 with config.method.name = 'des_loc'",
        "method.inner_state=reset": "method.inner_state: must be 'kept' with config.method.name =",
    },
    "method.name=sparseloco": {
        "method.compression=sign": "method.compression: of sparseloco must be one of '', 'top_k'",
    },
    "method.name=gossip cluster.nodes=4 method.compression=top_k method.gossip_order=adapt": {
        "method.graph=random": "method.graph: must be one of 'ring', 'exponential', 'complete'",
        "method.compression=powersgd": "method.compression: of gossip must be one of '', 'top_k'",
        "method.gossip_order=combine": "method.gossip_order: must be 'adapt' with",
        "cluster.presence=1.0": "cluster.presence: must be 0 with compressed gossip",
    },
    "method.name=gossip cluster.nodes=2048 batch_size=2048": {
        "method.graph=push": "cluster.nodes: must be at most 256 with gossip on",
    },
    "method.name=gasloc": {
        "method.graph=push": "method.graph: must be another with config.method.name = 'gasloc':",
    },
    "method.name=diloco+gossip": {
        "method.gossip.graph=push": "method.gossip.graph: must be another with config.method.name",
        "method.gossip.graph=star": "method.gossip.graph: must be one of 'ring', 'exponential'",
        "method.diloco.compression=sign": "method.diloco.compression: must be '' with",
        "method.gossip.compression=top_k method.gossip.gossip_order=adapt": "method.gossip",
        "method.diloco.fragments=2": "method.diloco.fragments: must be 1 with config.method.name =",
        "method.diloco.inner_state=averaged": "method.diloco.inner_state: must be 'kept' with",
        "cluster.presence=1.0": "cluster.presence: must be 0 with config.method.name =",
    },
    "method.name=local model.name=resmlp cluster.service.name=constant": {
        "model.name=quadratic": "method: local parallelism: needs a model with a block",
        "method.variant=overlapping method.window=9": "method: window 9: 1 to 8, the blocks before",
        "cluster.nodes=3": "cluster.nodes: must divide the model's 8 blocks",
        "cluster.nodes=4 method.variant=overlapping": "cluster.nodes: blocks 1 to 2 learn together",
        "cluster.nodes=4 method.variant=chunked": "cluster.nodes: blocks 0 to 3 learn together and",
        "cluster.nodes=2 method.shared_heads=True": "method.shared_heads: must be False on several",
        "cluster.devices_per_node=3": "batch_size: must be a multiple of 3",
        "cluster.nodes=2 batch_size=6 method.variant=backprop": "batch_size: must be a multiple of",
        "cluster.nodes=2 parallel.api=jit": "parallel.api: config.method.name = 'local' runs",
        "cluster.nodes=2 parallel.api=shard_map probes.momentum=True": "probes.momentum: excludes",
    },
    "method.name=stale_pipeline cluster.service.name=constant model.hidden=(6,4,5)": {
        "cluster.nodes=4": "cluster.nodes: must be from 1 to 3, the model's",
        "cluster.nodes=3 method.micro_batches=2 method.pipeline=2bw": "method.micro_batches: must",
        "cluster.nodes=3 parallel.api=jit": "parallel.api: config.method.name = 'stale_pipeline'",
        "cluster.nodes=3 cluster.devices_per_node=5": "batch_size: must be a multiple of 5",
        "cluster.nodes=3 method.pipeline=predict optimizer.name=adam": "optimizer.name: 'predict'",
    },
    "optimizer.name=closed_loop": {
        "method.name=dynamic_batch": "method.name: must be one of 'sync', 'asynchronous'",
        "method.name=elastic": "method.name: must be one of 'sync', 'asynchronous'",
        "optimizer.options.gamma=-1.0": "optimizer: closed_loop cannot be used (gamma -1.0",
        "optimizer.options.staleness=0.5": "optimizer: closed_loop cannot be used (staleness 0.5",
    },
    "batch_size=64": {
        "method.name=daso cluster.nodes=3": "batch_size: must be a multiple of the cluster's 3",
        "method.name=gossip cluster.nodes=3": "batch_size: must be a multiple of the cluster's 3",
    },
    "model.hidden=(6,)": {
        "method.name=asynchronous+dynamic_batch": "method.name: dynamic_batch divides the work of",
        "method.name=daso+stale_pipeline": "method.name: stale_pipeline cuts one model over the",
        "method.name=nosuch": "method.name: must be one of sync, ad_psgd, async_local_sgd",
        "method.name=daso+nosuch": "method.name: must be one of sync, ad_psgd, async_local_sgd",
        "method.name=no_such_file:NAME": "method.name: no module 'no_such_file', neither installed",
        "method.name=optdyn.methods.daso:Choice": "method.name: ",
    },
}

OF_STATE = {  # of a model with batch norms, or if the line says so only with dropout
    "evaluation.statistics=carried": {
        "parallel.api=overlap": "evaluation.statistics: must be 'recomputed' with config.parallel",
        "cluster.service.name=race": "evaluation.statistics: must be 'recomputed' in a race, whose",
        "method.name=local": "model.name: must be a model whose last block has no state with ",
        "init_from=elsewhere": "init_from: must be '' with a state that is carried, which is no",
    },
    "log_every=1": {
        "replicas.count=3": "replicas.count: must be 0, as the objective of a model with batch",
        "probes.sharpness=True": "probes.sharpness: must be False, as it is not defined for a",
        "method.name=local method.probes=True": "method.probes: must be False, as it is not",
        "replicas.count=2": "replicas.count: must be 0, as the objective of a model with dropout",
    },
}
CONSTANT = ("local", "stale_pipeline")  # methods that need a service time of that name


def rows():
    """(arguments without the dashes, how the line begins) of each row of the tables."""
    for words, table in OF_MANY.items():
        for more, names in table.items():
            key = more.split("=")[0].removesuffix(".conv_compute")
            for name in names.split():
                service = " cluster.service.name=constant" * (name in CONSTANT)
                given = f"method.name={name}{service} {more}"
                yield given, f"{key}: {words.format(name=name)}"
    for given, table in JOINS.items():
        yield from ((f"{given} {more}", said) for more, said in table.items())
    for names in BOTH:
        yield f"method.name={names}", f"method.name: {names.replace('+', ' and ')} both say"


def is_said(line, said):
    """Whether the line begins with that key, and goes on with those words."""
    key, _, words = said.partition(": ")
    return re.match(rf"config\.{re.escape(key)}[.:= ]", line) and words in line


def typed(given):
    return {k: Text(v) for k, v in (one.split("=", 1) for one in given.split())}


def state_refusals():
    """Goes through the rows of `OF_STATE`, which need a model."""
    for given, table in OF_STATE.items():
        for more, said in table.items():
            config, state = Config().with_(typed(f"{given} {more}")), "dropout" not in said
            with pytest.raises(ConfigError) as caught:
                joins = experiment.state_joins(config, state, True, "last block" in said)
                experiment.refuse_first(config, joins)
            assert is_said(str(caught.value), said)


@pytest.mark.parametrize(("given", "said"), rows())
def test_values_that_do_not_go_together_are_refused_by_a_key(refused, given, said):
    line = refused(*(f"--config.{one}" for one in given.split()))
    assert is_said(line, said)


def test_each_row_of_the_joins_is_provoked(monkeypatch):
    """Those of the experiment and of the methods, and what a method requires of its fields."""
    reached = set()

    def note():
        frame = sys._getframe(2)
        reached.add((frame.f_code.co_filename, frame.f_lineno))

    def join(cls, key, wrong, said, made=Join.__new__):
        if wrong:
            note()
        return made(cls, key, wrong, said)

    def require(self, name, good, wanted, made=Value.require):
        if not good:
            note()
        made(self, name, good, wanted)

    monkeypatch.setattr(Join, "__new__", join)
    monkeypatch.setattr(Value, "require", require)
    for given, said in rows():
        assert is_said(refusal(typed(given)), said)
    state_refusals()
    missed = [
        f"{path}:{call.lineno}: {ast.unparse(call)}"
        for path in [experiment.__file__, *map(str, Path(methods.__file__).parent.rglob("*.py"))]
        for call in ast.walk(ast.parse(Path(path).read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Join", "self.require")
        if not {(path, line) for line in range(call.lineno, call.end_lineno + 1)} & reached
    ]
    assert not missed


# What is typed, and files.

TYPED = {
    "--config.optimizer.learnin_rate=1": "config.optimizer has no key 'learnin_rate'; did you mean "
    "learning_rate?\n",
    "--config.base.steps=2": "no key 'base.steps'; that of a run has 'steps'",
    "--config.groups=2": "config has no key 'groups'; did you mean method.groups?",
    "--config.nosuch=1": "config has no key 'nosuch'\n",
    "--config.nosuch.key=1": "config has no key 'nosuch'\n",
    "--config.nosuch.options.key=1": "config has no key 'nosuch'\n",
    "--config.a..b=1": "config has no key 'a'",
    "--config.steps.key=1": "config.steps has no keys of its own\n",
    "--config.base.nosuch=2": "config has no key 'nosuch'",
    "--config.optimizer.lr=1": "config.optimizer has no key 'lr'; did you mean learning_r",
    # Keys of another member.
    "--config.model.channels=(3,)": "'mlp' has no such key, which is of cnn and resnet\n",
    "--config.method.period=3": "config.method.period: 'sync' has no such key, which is of ",
    "--config.optimizer.b1=0.5": "'sgd' has no such key, which is of adam and adamw\n",
    "--config.optimizer.name=adam --config.optimizer.momentum=0.5": "config.optimizer.momentum: ",
    "--config.cluster.service.variation=1": "'exponential' has no such key, which is of gamma",
    "--config.data.tokenizer=byte": "config.data.tokenizer: 'mnist5k' has no such key, which is",
    "--config.data.name=kjv --config.data.augment=flip": "config.data.augment: 'kjv' has no such "
    "key, which is of folder, mnist5k and tfds\n",
    "--config.method.name=diloco+local --config.method.period=3": "config.method.period: "
    "'diloco+local' has no such key; say config.method.diloco.period\n",
    "--config.method.name=diloco+local --config.method.diloco.perid=3": "has no key 'perid'; did",
    # Texts that are no value.
    "--config.steps=many": "config.steps = 'many': must be a whole number",
    "--config.steps=1.5": "config.steps = 1.5: must be a whole number",
    "--config.steps=": "config.steps = '': must be a whole number",
    "'--config.optimizer.learning_rate=fast: yes'": "config.optimizer.learning_rate = 'fast: yes': "
    "must be a number",
    "--config.data.streaming=2": "config.data.streaming = '2': must be True or False\n",
    "--config.cluster.disturbance_epochs=wide": "('wide',): must be a list whose entries are",
    "--config.optimizer=adam": "config.optimizer = 'adam': must be set key by key; did you mean "
    "config.optimizer.name?\n",
    "--config.method=diloco": "; did you mean config.method.name?\n",
    "--config.parallel=jit": "config.parallel = 'jit': must be set key by key\n",
    # Names.
    "--config.method.name=async": "of your own; did you mean asynchronous or async_loc",
    "--config.method.name=daso+Local": "config.method.name = 'Local': must be one of",
    "--config.model.name=MLP": "config.model.name = 'MLP': must be one of mlp, resmlp, ",
    "--config.model.name=Mlp": "of your own; did you mean mlp?\n",
    "--config.data.name=nosuch": "config.data.name = 'nosuch': must be one of mnist5k, kjv",
    "--config.optimizer.name=Adam": "must be an optimizer of optax; did you mean adam?",
    "--config.optimizer.schedule=cosin": "of your own; did you mean cosine?",
    "--config.cluster.service.name=exponental": "; did you mean exponential?",
    "--config.parallel.api=shardmap": "'pmap', 'overlap'; did you mean shard_map?",
    # Flags.
    "--nosuch=1": "Unknown command line flag 'nosuch'; there are --",
    "--optimizer.learning_rate=1": "; did you mean --config.optimizer.learning_rate?",
    "config.steps=3": "unexpected argument 'config.steps=3'",
    "--flagfile=nosuch": "nosuch",
    "--workdir=": "--workdir is empty",
    # Files that are not there.
    "--config=nosuch.py": "config file nosuch.py: not found",
    "--config=nosuch.json": "config file nosuch.json: not found",
    "--config=quikstart": "quikstart: not found; did you mean quickstart or grids/quick",
    "--config=nosuch": "nosuch: not found; shipped are gpt, images",
    "--config.cluster.service.name=trace --config.cluster.service.path=a.csv": "a.csv: No such",
    "--config.data.name=text": "config.data.path = '': must be a folder or a text file",
    "--config.data.name=folder": "config.data.path = '': must be a folder",
}
MAKE = "import optdyn as od\ndef get_config():\n    "
FILES = {  # {config file: (its text, what is said of it)}
    "none.py": (
        "def get_config(): return 3",
        "none.py: its get_config() returns no Experiment and",
    ),
    "empty.py": ("", "empty.py: has no attribute 'get_config'"),
    "broken.py": ("def get_config(:\n", "broken.py:1: SyntaxError: invalid syntax"),
    "unknown.py": (
        "get_config = nosuch\n",
        "unknown.py:1: NameError: name 'nosuch' is not defined",
    ),
    "misspelt.py": (
        f"{MAKE}return od.config('quickstart').with_(step=3)\n",
        "config has no key 'step'; did you mean steps",
    ),
    "typed.py": (
        f"{MAKE}return od.Experiment(model='mlp')\n",
        "config.model = 'mlp': must be of type Model, such as MLP(",
    ),
    "assigned.py": (
        f"{MAKE}config = od.Experiment()\n    config.steps = 3\n    return config\n",
        "assigned.py:4: FrozenInstanceError: cannot assign",
    ),
    "key.py:b": (
        "CASES = {'a': 1}\ndef get_config(case):\n    return CASES[case]\n",
        "key.py:3: KeyError: 'b'\n",
    ),
    "case.py": (
        "def get_config(case): pass",
        "case.py: get_config() missing 1 required positional",
    ),
    "missing.py": (f"{MAKE}return open('/nosuch/file')\n", "missing.py:3: FileNotFoundError: "),
    "value.py": (
        f"{MAKE}raise ValueError('two\\nlines')\n",
        "value.py:3: ValueError: two lines\n",
    ),
    "deep.py": (
        "import statistics\ndef get_config():\n    return statistics.mean(map(inverse, [0]))\n"
        "def inverse(x):\n    return 1 // x\n",
        "deep.py:5: ZeroDivisionError: integer division",
    ),
    "given.py": (
        "from optdyn.train.grid import log_range\ndef get_config(): return log_range(0, 1, 3)\n",
        "grid: log_range(0, 1, 3): must go from",
    ),
    "grid.py": (
        f"{MAKE}return od.Grid(od.Experiment(), [{{'seed': 1}}])\n",
        "the config is a grid of runs; `optdyn sweep`",
    ),
    "steps.json": ('{"steps": "many"}', "steps.json: is no config of a run: config.steps = 'many'"),
    "other.json": (
        '{"status": "completed"}',
        "other.json: is no config of a run: config has no key 'status'",
    ),
    "member.json": (
        '{"method": {"name": "sync", "groups": 2}}',
        "member.json: is no config of a run: config.method.groups: 'sync' has no such key",
    ),
    "torn.json": ('{"steps": 3', "torn.json: cannot be read (Expecting"),
    "list.json": ("[3]", "list.json: "),
    "empty.json": ("", "empty.json: "),
    "trace.csv": ("", "trace.csv: must be a .py file, which is run, or a .json"),
    "run": (None, "is a workdir; its config is run/config.json"),
}


@pytest.mark.parametrize("given", TYPED)
def test_what_is_mistyped_is_refused_in_a_line(refused, given):
    assert TYPED[given] in refused(*shlex.split(given))


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_no_config_is_refused_in_a_line(refused, tmp_path, file):
    text, said = FILES[file]
    if text is None:
        (tmp_path / file).mkdir()
        (tmp_path / file / "config.json").write_text("{}")
    else:
        (tmp_path / file.partition(":")[0]).write_text(text)
    assert said in refused(f"--config={file}")


def test_a_trace_without_a_worker_is_refused_in_a_line(refused, tmp_path):
    rows = "".join(f"{i % 7},{i}\n" for i in range(1000))
    (tmp_path / "trace.csv").write_text(f"worker,seconds\n{rows}")
    given = ("cluster.nodes=8", "cluster.service.name=trace", "cluster.service.path=trace.csv")
    given += ("method.name=asynchronous", "method.groups=8")
    said = refused(*(f"--config.{one}" for one in given))
    assert "trace.csv: no arrival of worker 7 of 8" in said
